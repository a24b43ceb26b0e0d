"""One step: the loss, what is asked, and that nothing waits for the device."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from latebloom import Composite, RunConfig, SequenceModel, hybrid
from latebloom.engine.backend import Alone, parameters_by_role
from latebloom.engine.loss import answer_losses, total_loss
from latebloom.engine.trainer import Trainer


def test_losses_are_means_over_the_positions_of_each_answer():
    task = Composite(modulus=3, keys=8, values=4)
    model = SequenceModel(hybrid(width=8, blocks=1, heads=2), task.vocabulary_size)
    batch = task.batch(0, "train", 0, length=7, size=5)
    losses = answer_losses(model, batch)
    logits = model(batch.tokens)
    each: dict[str, list[torch.Tensor]] = {"sum": [], "recall": []}
    for row in range(5):
        for column, place in enumerate(batch.positions[row].tolist()):
            name = "recall" if column == batch.positions.shape[1] - 1 else "sum"
            each[name].append(F.cross_entropy(logits[row, place], batch.targets[row, column]))
    assert len(each["sum"]) == 5 * 5
    assert len(each["recall"]) == 5
    for name, terms in each.items():
        torch.testing.assert_close(losses[name], torch.stack(terms).mean())
    by_answer = losses["sum"] + losses["recall"]
    torch.testing.assert_close(total_loss(losses, batch, per_token=False), by_answer)
    by_position = torch.stack(each["sum"] + each["recall"]).mean()
    torch.testing.assert_close(total_loss(losses, batch, per_token=True), by_position)


def test_every_parameter_is_in_the_optimizer_once():
    model = SequenceModel(hybrid(width=8, blocks=2, heads=2), 12)
    backend = Alone(model, RunConfig().training, torch.device("cpu"))
    held = [id(parameter) for group in backend.optimizer.param_groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in model.parameters())
    assert backend.roles == ["recurrence", "rest", "attention"]


@pytest.mark.parametrize("hold", ["bypass", "freeze"])
def test_attention_has_no_optimizer_state_before_the_switch_and_a_fresh_one_after_it(tiny, hold):
    trainer = Trainer([replace(tiny, delay=replace(tiny.delay, hold=hold))], torch.device("cpu"))
    backend = trainer.backend
    assert isinstance(backend, Alone)
    attention = list(parameters_by_role(backend.template)["attention"].values())
    for _ in range(12):
        trainer.advance()
    assert not any(parameter in backend.optimizer.state for parameter in attention)
    trainer.advance()
    assert all(backend.optimizer.state[parameter]["step"] == 1 for parameter in attention)


def test_what_is_withheld_is_not_asked_until_the_switch(tiny):
    trainer = Trainer([tiny], torch.device("cpu"))
    names = []
    for _ in range(14):
        trainer.advance()
        names.append(sorted(trainer.read_means()[0]))
    assert names[:12] == [["gradient_norm", "loss", "loss_sum"]] * 12
    assert names[12:] == [["gradient_norm", "loss", "loss_recall", "loss_sum"]] * 2


class NoReadingBack(TorchDispatchMode):
    """Refuses the operations whose result the host must wait for: they stall a GPU and cannot be captured."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "is_nonzero")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self.WAITING or (name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])):
            raise AssertionError(f"the step waits for {name}")
        return func(*args, **(kwargs or {}))


def test_the_guard_sees_what_would_wait():
    x = torch.tensor([1.0, 2.0])
    readers = [
        lambda: x.sum().item(),
        lambda: bool(x[0] > 0),
        lambda: x[x > 1],
        lambda: x.nonzero(),
        lambda: x.equal(x),
    ]
    for read in readers:
        with pytest.raises(AssertionError, match="waits"), NoReadingBack():
            read()


@pytest.mark.parametrize("delay", [True, False])
def test_a_step_waits_for_nothing(tiny, delay):
    trainer = Trainer([tiny if delay else replace(tiny, delay=None)], torch.device("cpu"))
    with NoReadingBack():
        for _ in range(14):
            trainer.advance()


def test_two_trainers_of_one_configuration_agree_bit_for_bit(tiny):
    torch.manual_seed(3)
    first = Trainer([tiny], torch.device("cpu"))
    torch.manual_seed(4)
    second = Trainer([tiny], torch.device("cpu"))
    for _ in range(14):
        first.advance()
        second.advance()
    for one, other in zip(*(trainer.backend.model(0).parameters() for trainer in (first, second)), strict=True):
        assert torch.equal(one, other)
