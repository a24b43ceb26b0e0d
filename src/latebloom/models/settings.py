"""What a model is, as settings."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from latebloom.errors import ConfigError, require, unknown
from latebloom.fields import check_fields
from latebloom.models.recurrent import RECURRENCES

PARTS = {"r": "recurrence", "a": "attention", "m": "MLP"}


@dataclass(frozen=True, kw_only=True)
class Attention:
    """How attention looks back."""

    heads: int = 4
    """Heads; they divide the width."""
    positions: Literal["none", "rotary", "learned"] = "none"
    """How attention knows the order; the recurrence knows it by itself, so a hybrid needs none."""
    context: int = 1024
    """The number of tokens that learned positions cover; the others have no bound."""
    look_back: bool = False
    """Make keys from a token and the one before it, as short convolutions do; the paper's form has it off."""
    sharpen: bool = False
    """Multiply the scores by log(1 + n), n the tokens that they choose from, so that softmax stays as sharp among many
    as among few; the paper's form has it off."""
    zero_output: bool = False
    """Start the output projection at zero, so that letting attention in changes nothing at first."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.heads >= 1, "heads", self.heads, "1 or more")
        require(self.context >= 1, "context", self.context, "1 or more")


@dataclass(frozen=True, kw_only=True)
class Model:
    """A stack of equal blocks between an embedding and the logits."""

    layout: str = "ram"
    """The parts of a block in order: r recurrence, a attention, m MLP. ram: hybrid, rm: LSTM, am: Transformer."""
    width: int = 128
    """The width of the residual stream."""
    blocks: int = 4
    """How many blocks."""
    recurrence: str = "lstm"
    """Which recurrence stands at r."""
    attention: Attention = field(default_factory=Attention)
    """The attention that stands at a."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.width >= 1, "width", self.width, "1 or more")
        require(self.blocks >= 1, "blocks", self.blocks, "1 or more")
        if not self.layout or any(letter not in PARTS for letter in self.layout):
            parts = ", ".join(f"{letter} ({part})" for letter, part in PARTS.items())
            raise ConfigError(
                f"layout: {self.layout!r} is not a row of {parts}, such as ram (hybrid), rm (LSTM), am (Transformer)"
            )
        if self.recurrence not in RECURRENCES:
            raise unknown("recurrence", self.recurrence, RECURRENCES)
        heads = self.attention.heads
        if "a" in self.layout and self.width % heads:
            choices = [str(n) for n in range(1, self.width + 1) if self.width % n == 0]
            raise ConfigError(
                f"attention.heads: {heads} does not divide width {self.width}; choices: {', '.join(choices)}"
            )
        if "a" in self.layout and self.attention.positions == "rotary" and (self.width // heads) % 2:
            raise ConfigError(
                f"attention.positions: rotary turns pairs of features, so width / heads must be even; "
                f"it is {self.width} / {heads} = {self.width // heads}"
            )


def hybrid(**settings: Any) -> Model:
    """The paper's hybrid: recurrence, attention and MLP in every block."""
    return _model("ram", settings)


def lstm(**settings: Any) -> Model:
    """The hybrid without its attention."""
    return _model("rm", settings)


def transformer(**settings: Any) -> Model:
    """The hybrid without its recurrence; rotary positions unless told otherwise."""
    return _model("am", {"positions": "rotary"} | settings)


def _model(layout: str, settings: dict[str, Any]) -> Model:
    """Settings of a model and of its attention in one row, as `hybrid(width=64, look_back=True)` gives them."""
    of_attention = {f.name for f in fields(Attention)}
    of_model = {f.name for f in fields(Model)} - {"layout", "attention"}
    for name in settings:
        if name not in of_attention | of_model:
            raise unknown("setting", name, sorted(of_attention | of_model))
    attention = Attention(**{name: value for name, value in settings.items() if name in of_attention})
    return Model(
        layout=layout,
        attention=attention,
        **{name: value for name, value in settings.items() if name in of_model},
    )


MODELS = {"hybrid": hybrid, "lstm": lstm, "transformer": transformer}
