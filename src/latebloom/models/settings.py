"""Settings of a model."""

from dataclasses import dataclass, field, fields
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any

from latebloom import layers
from latebloom.errors import ConfigError, require, unknown
from latebloom.fields import Bound, Count, at_least, at_most, check_fields
from latebloom.layers.attention import NoPositions, Positions, RandomWindow, Scores, Softmax
from latebloom.layers.lstm import LSTM
from latebloom.layers.parts import divisors
from latebloom.layers.recurrence import Recurrence
from latebloom.models.layout import Block, parse_layout

for _layer in iter_modules(layers.__path__):  # a folder of `layers` registers its components when it is imported
    if _layer.ispkg:
        import_module(f"{layers.__name__}.{_layer.name}")


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Settings of attention."""

    heads: Count = 4
    """Number of heads; it divides the width."""
    positions: Positions = field(default_factory=NoPositions)
    """How attention knows the order of tokens; a hybrid needs none, because the recurrence knows it."""
    scores: Scores = field(default_factory=Softmax)
    """How queries and keys become weights."""
    look_back: bool = False
    """Project keys from a token and the one before it, as short convolutions do; the paper's form has it off."""
    zero_output: bool = False
    """Start the output projection at zero, so that enabling attention changes nothing at first."""
    window: Annotated[int | None, Bound(lambda n: n is None or n >= 1, "1 or more, or null")] = None
    """Sliding-window attention: each token attends to this many tokens up to itself; null for all."""
    random_window: RandomWindow | None = None
    """A shorter window that some training batches have; null for none."""
    gate_bias: float | None = None
    """A learned gate sigmoid(Wx + b) on attention's output, whose bias b starts at this value: -4 starts it nearly
    closed; null for no gate."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.window is not None and self.random_window is not None:
            short = self.random_window.tokens
            require(short < self.window, "random_window.tokens", short, f"below the window of {self.window}")


MOST_BLOCKS = 10_000
"""A model is built block by block, which takes about a millisecond for each."""
LONGEST_LAYOUT = 10_000
"""Characters. The blocks of a layout are built to count their parameters."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A stack of blocks between an embedding and the logits."""

    layout: str = "ram"
    """The parts of a block in order: r recurrence, a attention, m MLP. ram: hybrid, rm: LSTM, am: Transformer. Parts in
    parentheses stand side by side, as in (ra)m; different blocks are separated by spaces, as in rm rm rm am."""
    width: Count = 128
    """The width of the residual stream."""
    blocks: Annotated[int, at_least(1), at_most(MOST_BLOCKS)] = 4
    """Number of blocks; a layout of several blocks is repeated until there are as many."""
    recurrence: Recurrence = field(default_factory=LSTM)
    """The recurrence at r."""
    attention: Attention = field(default_factory=Attention)
    """The attention at a."""

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "layout", " ".join(self.layout.split()))
        if len(self.layout) > LONGEST_LAYOUT:
            raise ConfigError(
                f"layout: {len(self.layout)} characters are not possible; it must be {LONGEST_LAYOUT} or less"
            )
        pattern = len(parse_layout(self.layout))
        if self.blocks % pattern:
            raise ConfigError(
                f"blocks: {self.blocks} is not a multiple of the {pattern} blocks of layout {self.layout!r}; "
                f"write for example blocks={pattern * -(-self.blocks // pattern)}"
            )
        if self.is_recurrent:
            _check("recurrence", self.recurrence, self.width)
        heads = self.attention.heads
        if self.has_attention and self.width % heads:
            raise ConfigError(
                f"attention.heads: {heads} does not divide width {self.width}; choices: {divisors(self.width)}"
            )
        if self.has_attention:
            _check("attention.positions", self.attention.positions, self.width, heads)
            _check("attention.scores", self.attention.scores, self.width, heads)

    @property
    def layout_blocks(self) -> list[Block]:
        """The parts of every block of the model."""
        pattern = parse_layout(self.layout)
        return [*pattern] * (self.blocks // len(pattern))

    @property
    def is_recurrent(self) -> bool:
        return "r" in self.layout

    @property
    def has_attention(self) -> bool:
        return "a" in self.layout

    @property
    def can_be_stacked(self) -> bool:
        """Whether many such models can be trained as one program."""
        used = [self.recurrence] if self.is_recurrent else []
        used += [self.attention.positions, self.attention.scores] if self.has_attention else []
        return all(component.stacking != "none" for component in used)


def _check(field: str, component: Any, *sizes: int) -> None:
    try:
        component.check(*sizes)
    except ConfigError as error:
        raise ConfigError(f"{field}: {error}") from None


def hybrid(**settings: Any) -> Model:
    """Return the settings of the paper's hybrid: recurrence, attention and MLP in every block."""
    return _model("ram", settings)


def lstm(**settings: Any) -> Model:
    """Return the settings of the hybrid without attention."""
    return _model("rm", settings)


def transformer(**settings: Any) -> Model:
    """Return the settings of the hybrid without recurrence; rotary positions unless others are given."""
    return _model("am", {"positions": "rotary"} | settings)


def _model(layout: str, settings: dict[str, Any]) -> Model:
    """Sort settings into those of the model and those of its attention, as in `hybrid(width=64, look_back=True)`."""
    of_attention = {f.name for f in fields(Attention)}
    choices = of_attention | {f.name for f in fields(Model)} - {"layout", "attention"}
    for name in settings:
        if name not in choices:
            raise unknown("setting", name, sorted(choices))
    attention = {name: value for name, value in settings.items() if name in of_attention}
    rest = {name: value for name, value in settings.items() if name not in of_attention}
    return Model(layout=layout, attention=Attention(**attention), **rest)


MODELS = {"hybrid": hybrid, "lstm": lstm, "transformer": transformer}
