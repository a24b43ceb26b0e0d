"""Probes take every recurrence, score function and task, hybrids of Transformers, and modules of plain torch."""

import pytest
import torch
from families import build
from torch import nn

from latebloom import SequenceModel, hybrid
from latebloom.components import Component, origin_of
from latebloom.errors import ConfigError
from latebloom.layers.attention import Positions, Scores
from latebloom.probes import NAMES, load_probes
from latebloom.probes.ablation import ATTENTION_OFF, INTACT, Ablation
from latebloom.probes.attention import Edit, edited, without_attention
from latebloom.probes.edits import HeadOff
from latebloom.probes.probe import NotMeasurable, Probe
from latebloom.probes.subject import Subject
from latebloom.tasks import Composite, Task

load_probes()
SMALL = {
    "ablation": {"multiples": (2,), "sequences": 2, "heads": False},
    "sharpness": {"multiples": (1, 2), "sequences": 2},
    "positions": {"multiples": (1, 2), "sequences": 2},
    "state": {"multiples": (1, 2), "sequences": 8, "positions": 2},
    "horizon": {"tokens": 8, "sequences": 1},
    "interference": {"sequences": 2},
}
TASK = Composite(modulus=3, keys=16, values=4)


def own(family: type[Component]) -> list[str]:
    """Return the members of this package, without those that other tests define."""
    return [name for name, member in family.members.items() if origin_of(member) is None]


def measure_all(subject: Subject) -> dict[str, int]:
    """Return the number of rows of every probe; 0 if the probe says that it makes no sense."""
    rows = {}
    for name in NAMES:
        try:
            rows[name] = len(Probe.members[name](name=name, **SMALL[name]).measure(subject).rows)
        except NotMeasurable:
            rows[name] = 0
    return rows


@pytest.mark.parametrize("name", own(Scores))
def test_an_edit_that_changes_nothing_changes_nothing_with_any_scores(name):
    torch.manual_seed(0)
    for positions in Positions.members:
        others = {"positions": positions, "look_back": True, "gate_bias": 0.0}
        settings = hybrid(width=8, blocks=1, heads=2, scores=name, **others)
        model = SequenceModel(settings, TASK.vocabulary_size).eval()
        tokens = TASK.batch(0, "test", 0, length=9, size=3).tokens
        subject = Subject(model, TASK, 4)
        with torch.no_grad():
            before = model(tokens)
            with edited(subject, Edit()):
                torch.testing.assert_close(model(tokens), before, rtol=1e-4, atol=1e-5)
            with without_attention(subject):
                without = model(tokens)
            with edited(subject, HeadOff(0, 0)):
                assert not torch.allclose(model(tokens), before)
            assert torch.equal(model(tokens), before)
            assert not torch.allclose(without, before)


@pytest.mark.parametrize("name", own(Task))
def test_every_task_is_probed(name):
    task = Task.named(name)
    model = SequenceModel(hybrid(width=8, blocks=1, heads=2), task.vocabulary_size)
    rows = measure_all(Subject(model, task, max(4, task.shortest)))
    assert rows.pop("state") > 0 or task.state_answer is None
    assert all(rows.values())


@pytest.mark.parametrize("family", ["bamba", "falcon_h1", "recurrent_gemma"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_hybrids_of_transformers_are_probed(family, implementation):
    model = build(family)
    model.eval().set_attn_implementation(implementation)
    subject = Subject(model, TASK, 4)
    tokens = TASK.batch(0, "test", 0, length=6, size=2).tokens
    with torch.no_grad():
        before = model(input_ids=tokens, use_cache=False).logits
        with edited(subject, Edit()):
            torch.testing.assert_close(model(input_ids=tokens, use_cache=False).logits, before, rtol=1e-4, atol=1e-5)
    if implementation == "sdpa":
        assert all(measure_all(subject).values())
    else:  # its values and outputs are not seen, so these changes are left out
        changes = set(Ablation(multiples=(1,), sequences=2).measure(subject).values("change"))
        assert {INTACT, ATTENTION_OFF, "scores uniform"} <= changes
        assert not {"values of another sequence", "head 0.0 off"} & changes
    with torch.no_grad():
        assert torch.equal(model(input_ids=tokens, use_cache=False).logits, before)


class PlainHybrid(nn.Module):
    """A GRU and `nn.MultiheadAttention` beside its residual path."""

    def __init__(self, need_weights: bool, batch_first: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TASK.vocabulary_size, 8)
        self.recurrence = nn.GRU(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.output = nn.Linear(8, TASK.vocabulary_size)
        self.need_weights, self.batch_first = need_weights, batch_first

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = x + self.recurrence(x)[0]
        y = x if self.batch_first else x.transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        mixed, weights = self.attention(y, y, y, attn_mask=mask, need_weights=self.need_weights)
        assert (weights is not None) is self.need_weights
        return self.output(x + (mixed if self.batch_first else mixed.transpose(0, 1)))


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_hybrid_of_plain_torch_is_probed(need_weights, batch_first):
    torch.manual_seed(0)
    model = PlainHybrid(need_weights, batch_first).eval()
    subject = Subject(model, TASK, 4)
    tokens = TASK.batch(0, "test", 0, length=6, size=3).tokens
    with torch.no_grad():
        before = model(tokens)
        with edited(subject, Edit()):
            torch.testing.assert_close(model(tokens), before, rtol=1e-4, atol=1e-5)
        with edited(subject, HeadOff(0, 0)):
            off = model(tokens)
        projection = model.attention.out_proj.weight  # head 0 acts through the first four columns
        kept = projection[:, :4].clone()
        projection[:, :4] = 0
        torch.testing.assert_close(model(tokens), off, rtol=1e-4, atol=1e-5)
        projection[:, :4] = kept
    assert all(measure_all(subject).values())
    with torch.no_grad():
        assert torch.equal(model(tokens), before)


def test_a_vocabulary_that_is_too_small_is_named():
    with pytest.raises(ConfigError, match="composite has 350 tokens, and Embedding has embeddings for 7"):
        Subject(nn.Embedding(7, 3), Composite(keys=256, values=64, modulus=28), 4)
