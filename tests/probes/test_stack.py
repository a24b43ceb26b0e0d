"""Many models that are probed at once give what each gives alone."""

from dataclasses import replace

import pytest
import torch
from planted import BOTH, plant
from test_probes_everywhere import SMALL, TASK, own

from latebloom import SequenceModel, hybrid
from latebloom.layers.attention import Scores
from latebloom.layers.recurrence import Recurrence
from latebloom.models.block import residual_parts
from latebloom.probes import NAMES
from latebloom.probes.classifier import DECAY, Classes, fit
from latebloom.probes.horizon import MemoryHorizon
from latebloom.probes.interference import GradientInterference
from latebloom.probes.probe import Probe, StackedProbe
from latebloom.probes.stack import Stack, can_share_stack, part_of
from latebloom.probes.subject import Subject
from latebloom.probes.table import Table
from latebloom.results.probe_runs import measure
from latebloom.tasks import Composite

TOLERANCE = 1e-5
"""Of shares, cosines and weights; products of stacked matrices may be rounded in another order."""


def subjects(count: int = 3, task=TASK, **settings) -> list[Subject]:
    torch.manual_seed(0)
    models = (SequenceModel(hybrid(width=8, blocks=1, heads=2, **settings), task.vocabulary_size) for _ in range(count))
    return [Subject(model, task, 4, seed=number % 2) for number, model in enumerate(models)]


def assert_equal_tables(found: Table, expected: Table, tolerance: float = TOLERANCE) -> None:
    for row, other in zip(found.rows, expected.rows, strict=True):
        for cell, wanted in zip(row, other, strict=True):
            is_number = isinstance(wanted, float)
            assert cell == (pytest.approx(wanted, rel=tolerance, abs=tolerance) if is_number else wanted)


def check(several: list[Subject], names=NAMES) -> None:
    """Compare the last model of a stack, which is not the module that is called, with the same model alone."""
    for name in names:
        probe = Probe.members[name](name=name, **SMALL[name])
        assert isinstance(probe, StackedProbe)
        assert_equal_tables(probe.measure_stack(Stack(several))[-1], probe.measure(several[-1]))


@pytest.mark.parametrize("name", own(Recurrence))
def test_every_recurrence_is_probed_alone_and_in_stacks(name):
    check(subjects(2, recurrence=Recurrence.named(name)))


@pytest.mark.parametrize("name", own(Scores))
def test_every_score_function_is_probed_in_stacks(name):
    settings = {"positions": "rotary", "look_back": True, "gate_bias": 0.0}
    check(subjects(2, scores=name, **settings), ("sharpness", "positions"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU")
def test_stacks_on_a_gpu_are_probed_as_on_a_cpu():
    """Planted models, because what these answer does not depend on rounding."""
    several = [Subject(plant(BOTH, "ra"), BOTH, 12, seed=seed) for seed in range(3)]
    on_gpu = [replace(subject, model=plant(BOTH, "ra").cuda()) for subject in several]
    for name in ("ablation", "sharpness", "positions", "horizon"):
        probe = Probe.members[name](name=name, **SMALL[name])
        assert isinstance(probe, StackedProbe)
        for found, subject in zip(probe.measure_stack(Stack(on_gpu)), several, strict=True):
            assert_equal_tables(found, probe.measure(subject), 2e-3)


def test_models_are_given_their_own_sequences_bit_for_bit():
    task = Composite(modulus=3, keys=16, values=4, order="interleaved")
    stack = Stack(subjects(task=task))
    batch = stack.draw(7, 5, first_row=2, seed_shift=1 << 40)
    for number, subject in enumerate(stack.subjects):
        alone = task.batch(subject.seed + (1 << 40), "test", 0, length=7, size=5, first_row=2)
        for name in ("tokens", "positions", "targets"):
            assert torch.equal(getattr(part_of(batch, number), name), getattr(alone, name))


def test_accuracies_of_planted_models_are_the_same_in_a_stack():
    """One model of the stack has no recurrence to speak of, and the others are exact."""
    models = [plant(BOTH, "ra") for _ in range(3)]
    torch.nn.init.zeros_(models[1].blocks[0][0].body.cell.bias_ih_l0)
    several = [Subject(model, BOTH, 12, seed=5) for model in models]
    found = Stack(several).accuracy(30, 32)
    assert found == [Stack([subject]).accuracy(30, 32)[0] for subject in several]
    assert [one["sum"] == 1.0 for one in found] == [True, False, True]


def test_a_stack_leaves_its_models_as_they_were():
    several = subjects(2)
    before = [{name: value.clone() for name, value in one.model.state_dict().items()} for one in several]
    check(several)
    for subject, values in zip(several, before, strict=True):
        assert all(torch.equal(value, values[name]) for name, value in subject.model.state_dict().items())
        assert not any({"forward", "_mixed"} & module.__dict__.keys() for module in subject.model.modules())
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in subject.model.modules())


def test_recorded_gradients_are_read_and_the_others_measured():
    first, second = subjects(2)
    rows = [["all", "total", *(0.5,) * 9]]
    recorded = replace(second, recorded=[{"step": 7, "interference": {"attention": 1.0, "rows": rows}}])
    probe = GradientInterference(sequences=2)
    found = probe.measure_stack(Stack([first, recorded]))
    assert found[0] == probe.measure(first)
    assert found[1].values("step") == [7]


def test_only_models_of_one_shape_share_a_stack():
    one, other = subjects(2)
    assert can_share_stack(one, other)
    wider = Subject(SequenceModel(hybrid(width=16, blocks=1, heads=2), TASK.vocabulary_size), TASK, 4)
    changed = Subject(other.model, other.task, 5)
    foreign = Subject(torch.nn.Embedding(TASK.vocabulary_size, 3), TASK, 4)
    for another in (wider, changed, foreign):
        assert not can_share_stack(one, another)
    with pytest.raises(ValueError, match="cannot be probed at once"):
        Stack([one, wider])
    for part in residual_parts(one.model, "recurrence"):
        part.stacking = "loop"  # as in a component whose operations have no batching rule
    assert not can_share_stack(one, other)


def test_a_stack_that_does_not_fit_into_memory_is_halved(monkeypatch):
    probe = MemoryHorizon(tokens=8, sequences=1)
    whole, sizes, shares = MemoryHorizon.measure_stack, [], []

    def measure_stack(self, stack, progress=lambda share: None):
        sizes.append(len(stack))
        if len(stack) > 2:
            raise torch.OutOfMemoryError
        return whole(self, stack, progress)

    several = subjects(5)
    expected = [probe.measure(subject) for subject in several]
    monkeypatch.setattr(MemoryHorizon, "measure_stack", measure_stack)
    assert measure(probe, several, shares.append) == expected
    assert sizes == [5, 2, 3, 1, 2]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


# The classifier of the probe `state`


def test_a_classifier_reaches_the_minimum_of_its_loss():
    """A convex loss has one minimum, where its gradient is zero."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(2, 300, 6, generator=random)
    labels = (x[..., :3] + 0.5 * torch.randn(2, 300, 3, generator=random)).argmax(dim=2)
    reader = fit(x, labels, torch.ones(2, 3, dtype=torch.bool))
    weight = reader.weight.clone().requires_grad_()
    logits = x @ weight[:, :-1] + weight[:, -1:]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()) * 2
    loss = loss + DECAY * weight[:, :-1].square().sum()
    (gradient,) = torch.autograd.grad(loss, weight)
    assert gradient.abs().max() < 1e-4
    assert (reader(x) == labels).double().mean() > 0.75


def test_classes_that_one_model_has_not_seen_do_not_matter_to_another():
    labels = torch.tensor([[7, 3, 7, 3], [3, 9, 5, 9]])
    classes = Classes.of(labels)
    assert classes.exists.tolist() == [[True, True, False], [True, True, True]]
    numbers, known = classes.numbers(torch.tensor([[3, 9], [9, 7]]))
    assert known.tolist() == [[True, False], [True, False]]
    assert (numbers[0, 0], numbers[1, 0]) == (0, 2)
    x = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
    together = fit(x, classes.numbers(labels)[0], classes.exists)
    alone = Classes.of(labels[:1])
    expected = fit(x[:1], alone.numbers(labels[:1])[0], alone.exists).weight
    torch.testing.assert_close(together.weight[:1, :, :2], expected, rtol=1e-4, atol=1e-4)
    assert not together.weight[0, :, 2].any()
