"""Every check holds for the package's own components, and catches a component that is broken in its way."""

from dataclasses import make_dataclass, replace
from typing import Any

import pytest
import torch

from latebloom.checks import check_component, find_components
from latebloom.checks.check import CHECKS, sample
from latebloom.cli import main
from latebloom.components import Component
from latebloom.delay.triggers import Trigger
from latebloom.errors import ConfigError
from latebloom.layers.attention import NoPositions, PositionLayer, Positions, Scores, Softmax
from latebloom.layers.attention.softmax import SoftmaxLayer
from latebloom.layers.lstm import LSTM, LSTMLayer
from latebloom.layers.recurrence import Recurrence
from latebloom.layers.stacking import is_stacked
from latebloom.probes.sharpness import Sharpness
from latebloom.recipes import Recipe
from latebloom.studies.find import known_studies
from latebloom.studies.plan import Study
from latebloom.tasks import MQAR, ModularSum, Task
from latebloom.tasks.task import Batch
from latebloom.trackers import Tracker

known_studies()
OWN = [
    sample(member)
    for family in (Task, Recurrence, Scores, Positions, Trigger, Study, Recipe)
    for member in family.members.values()
    if member.__module__.startswith("latebloom.")  # other tests register components of their own
    and not (family is Study and member.name != "timing")  # the others are large, and tested with the studies
]


@pytest.mark.parametrize("component", OWN, ids=lambda one: f"{one.kind()} {one.name}")
def test_the_components_of_the_package_pass(component):
    found = list(check_component(component))
    assert [finding for finding in found if finding.outcome == "fails"] == []
    assert sum(finding.outcome == "holds" for finding in found) >= 2


def variant(base: type[Component], fields: Any = (), **changes: Any) -> Component:
    """A component that is another in some methods or declarations, under a name of its own."""
    body = {"__module__": __name__, "__doc__": "A broken one.", **changes}
    return make_dataclass(
        "Broken", [("name", str, "broken"), *fields], bases=(base,), namespace=body, frozen=True, kw_only=True
    )()


def lstm(**methods: Any) -> Component:
    layer = type("Layer", (LSTMLayer,), methods)
    return variant(LSTM, build=lambda self, width: layer(width))


def forward(change):
    """The LSTM's forward pass, changed."""

    def changed(self, x, state=None, noise=None):
        return change(self, x, state, noise, lambda *given: LSTMLayer.forward(self, *given))

    return changed


class Wrong(torch.autograd.Function):
    """Twice its input, with a gradient of one."""

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output): ...

    @staticmethod
    def backward(ctx, *grads):
        return grads[0]

    @staticmethod
    def vmap(info, in_dims, *args):
        return 2 * args[0], in_dims[0]


class Scaled(LSTMLayer):
    """An LSTM whose outputs have a factor that gets no gradient in a stack."""

    def __init__(self, width):
        super().__init__(width)
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x, state=None, noise=None):
        outputs, state = super().forward(x, state, noise)
        return outputs * (self.scale.detach() if is_stacked(self.scale) else self.scale), state


def softmax(**methods: Any) -> Component:
    layer = type("Layer", (SoftmaxLayer,), methods)
    return variant(Softmax, build=lambda self, width, heads: layer())


def positions(**methods: Any) -> Component:
    layer = type("Layer", (PositionLayer,), methods)
    return variant(NoPositions, build=lambda self, width, heads: layer())


def task(change=None, **declared: Any) -> Component:
    """A modular sum whose batch is changed."""
    methods = dict(declared)
    if change is not None:
        methods["draw"] = lambda self, key, rows, length: change(ModularSum.draw(self, key, rows, length), key, rows)
    return variant(ModularSum, **methods)


def keyed(batch, **changes):
    return Batch(
        **{**{name: getattr(batch, name) for name in ("tokens", "positions", "targets", "columns")}, **changes}
    )


COUNTER = iter(range(10**9))
BROKEN = {
    "says_what_it_is": lambda: variant(ModularSum, __doc__=None),
    "survives_json": lambda: variant(ModularSum, fields=[("size", Any, (1, 2))]),
    # Recurrences
    "has_shapes": lambda: lstm(forward=forward(lambda s, x, h, n, f: (f(x, h, n)[0][..., :-1], f(x, h, n)[1]))),
    "declares_state_size": lambda: variant(LSTM, state_size=lambda self, width: width),
    "is_causal": lambda: lstm(forward=forward(lambda s, x, h, n, f: f(x + x.mean(1, keepdim=True), h, n))),
    "continues_from_its_state": lambda: lstm(forward=forward(lambda s, x, h, n, f: f(x, None, n))),
    "is_deterministic": lambda: lstm(forward=forward(lambda s, x, h, n, f: f(x + torch.rand(1), h, n))),
    "has_gradients": lambda: lstm(forward=forward(lambda s, x, h, n, f: f(Wrong.apply(x), h, n))),
    "layers.can_be_stacked": lambda: variant(
        LSTM, build=lambda self, width: type("L", (LSTMLayer,), {"forward": lambda s, x, *r: s.cell(x)})(width)
    ),
    "layers.can_be_stacked in its gradients": lambda: variant(LSTM, build=lambda self, width: Scaled(width)),
    "takes_state_noise": lambda: lstm(forward=forward(lambda s, x, h, n, f: f(x, h, None))),
    # Scores
    "has_causal_weights": lambda: softmax(weights=lambda s, scores, tile, x: scores.exp() + 1),
    "has_declared_sums": lambda: softmax(weights=lambda s, scores, tile, x: scores.sigmoid()),
    "weighs_in_tiles": lambda: softmax(
        weights=lambda s, scores, tile, x: scores.softmax(-1) * torch.arange(scores.shape[-2])[:, None]
    ),
    "attends_by_its_weights": lambda: softmax(attend=lambda s, q, k, v, x, reach=None: v),
    "is_causal in attention": lambda: softmax(
        attend_joint=lambda s, joint, extra, heads, x: x + x.mean(1, keepdim=True)
    ),
    "is_deterministic in attention": lambda: softmax(attend_joint=lambda s, joint, extra, heads, x: x + next(COUNTER)),
    "has_gradients in attention": lambda: positions(inputs=lambda s, x: Wrong.apply(x)),
    "layers.can_be_stacked in attention": lambda: positions(inputs=lambda s, x: x * float(x.max().item() > 0)),
    # Positions
    "covers_its_tokens": lambda: variant(NoPositions, max_tokens=property(lambda self: 8)),
    # Tasks
    "is_pure": lambda: task(lambda b, key, rows: keyed(b, tokens=(b.tokens + next(COUNTER)) % 5)),
    "has_independent_rows": lambda: task(lambda b, key, rows: keyed(b, tokens=b.tokens.roll(1, 0))),
    "has_different_splits": lambda: variant(
        ModularSum, draw=lambda s, key, rows, length: ModularSum.draw(s, 0, rows, length)
    ),
    "has_declared_shape": lambda: task(token_count=lambda self, length: length),
    "has_large_enough_vocabulary": lambda: task(vocabulary_size=property(lambda self: 10)),
    "has_columns_for_its_answers": lambda: task(answers=("total",), chance=property(lambda self: {"total": 0.1})),
    "scores_the_last_column": lambda: task(lambda b, key, rows: keyed(b, positions=b.positions.flip(1))),
    "has_state_answer": lambda: task(state_answer="total"),
    "has_chance_level": lambda: task(chance=property(lambda self: {"sum": 0.01})),
    "agrees_with_its_oracle": lambda: task(lambda b, key, rows: keyed(b, targets=(b.targets + 1) % 10)),
    "task.can_be_stacked": lambda: task(lambda b, key, rows: keyed(b, tokens=b.tokens * int(b.tokens.max() > 0))),
    "does_not_wait_for_the_device": lambda: task(
        lambda b, key, rows: keyed(b, tokens=b.tokens * int(b.tokens.max() > 0)), stacking="loop"
    ),
    "spells_its_tokens": lambda: task(spell=lambda self, token: ""),
    # The others
    "fires_at_its_latest_step": lambda: variant(Trigger, decide=lambda s, m, memory: None, latest_step=lambda s, n: 10),
    "keeps_memory_that_can_be_saved": lambda: variant(
        Trigger, decide=lambda s, m, memory: memory.update(seen={m.step}), latest_step=lambda s, n: 10
    ),
    "builds_at_every_scale": lambda: variant(Study, build=lambda self, scale: 1 / 0),
    "builds_a_configuration": lambda: variant(Recipe, build=lambda self: None),
    "draws_its_columns": lambda: variant(Sharpness, columns=Sharpness.columns[1:]),
    "takes_metrics": lambda: variant(Tracker, build=lambda self, folder, config, step: None),
}


def name_of(check) -> str:
    """The check's name, with that of its module where several have it."""
    several = [one for ones in CHECKS.values() for one in ones if one.__name__ == check.__name__]
    return f"{check.__module__.rpartition('.')[2]}.{check.__name__}" if len(set(several)) > 1 else check.__name__


def test_every_check_has_a_component_that_it_catches():
    names = {name_of(check) for checks in CHECKS.values() for check in checks}
    caught = {name.partition(" ")[0] for name in BROKEN}
    assert names - caught == {"can_be_captured"}  # on a GPU
    assert caught <= names


@pytest.mark.parametrize("name", BROKEN)
def test_a_check_catches_a_broken_component(name):
    component = BROKEN[name]()
    list(check_component(ModularSum()))  # all checks are known
    found = {finding.check: finding for finding in check_component(component)}
    words = {name_of(check): " ".join((check.__doc__ or "").split()) for checks in CHECKS.values() for check in checks}
    finding = found[words[name.partition(" ")[0]]]
    assert finding.outcome == "fails", finding
    assert finding.reason


def test_reasons_are_in_words():
    def reason(component, words):
        (found,) = [one for one in check_component(component) if words in one.check]
        return found.reason

    assert reason(BROKEN["has_columns_for_its_answers"](), "`answers` names the columns") == (
        "the batch has columns for sum, which `answers` does not name"
    )
    assert reason(BROKEN["has_large_enough_vocabulary"](), "below vocabulary_size") == (
        "a token is 10, so vocabulary_size must be 11 or more; it is 10"
    )
    assert reason(task(lambda b, key, rows: keyed(b, targets=b.targets + 90)), "below vocabulary_size").startswith(
        "an answer is 9"
    )
    assert reason(BROKEN["has_chance_level"](), "best constant guess").startswith(
        "chance of sum is 1%, and always answering "
    )
    cure = "; draw random numbers with integers(key, rows, ...) from latebloom.tasks.random, not with torch.randint"
    assert reason(BROKEN["is_pure"](), "depends on nothing") == f"the same batch differs when it is drawn again{cure}"
    drawn = task(lambda b, key, rows: keyed(b, tokens=torch.randint(10, b.tokens.shape)))
    assert reason(drawn, "in a stack").endswith(cure)
    assert reason(ModularSum(), "of several columns") == "the loss has 15 of sum, and accuracy counts the last"
    assert reason(MQAR(), "of several columns") == "the loss has 7 of recall, and accuracy counts all"
    unknown = task(lambda b, key, rows: replace(b, every=("total",)))
    assert reason(unknown, "`answers` names the columns") == (
        "the batch scores every column of total, which `answers` does not name"
    )
    assert "declare stacking" in reason(BROKEN["task.can_be_stacked"](), "in a stack")
    assert reason(variant(LSTM, stacking="none"), "in a stack") == "it declares that it cannot be stacked"


def test_a_component_is_found_by_its_name_in_a_module_or_in_a_file(tmp_path):
    assert find_components("lstm") == [LSTM()]
    assert {component.name for component in find_components("latebloom.layers.attention")} >= {"rotary", "log_n"}
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom typing import Literal\nfrom latebloom.tasks import ModularSum\n\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(ModularSum):\n    'My sum.'\n"
        "    name: Literal['mine'] = 'mine'\n"
    )
    assert [component.name for component in find_components(str(file))] == ["mine"]
    (tmp_path / "empty.py").write_text("x = 1")
    with pytest.raises(ConfigError, match=r"check: .*empty.py defines no component"):
        find_components(str(tmp_path / "empty.py"))


def test_the_command_prints_a_line_for_each_property_and_ends_with_1_where_one_fails(tmp_path, capsys):
    main(["check", "modular_sum", "recall"])
    said = capsys.readouterr().out
    assert said.index("task modular_sum") < said.index("task recall")
    main(["check", "modular_sum"])
    said = capsys.readouterr().out
    assert "  holds           a batch depends on nothing but (seed, split, index, length)\n" in said
    assert "holds: 15, fails: 0, not applicable: 0" in said
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom typing import Literal\nfrom latebloom.tasks import ModularSum\n\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(ModularSum):\n    'My sum.'\n"
        "    name: Literal['mine'] = 'mine'\n"
        "    vocabulary_size = 3\n"
    )
    with pytest.raises(SystemExit) as stop:
        main(["check", str(file)])
    assert stop.value.code == 1
    assert (
        "fails           tokens and answers are numbers below vocabulary_size: a token is 10" in capsys.readouterr().out
    )
