"""One run on a GPU is a stack of one, whose checkpoints and results are those of a run that is trained alone."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pytest
import torch

from latebloom import TrainedRun, run
from latebloom.engine import trainer as trainers
from latebloom.engine.stacked import Stacked
from latebloom.engine.stacks import is_faster_stacked
from latebloom.engine.trainer import Trainer
from latebloom.errors import InterruptedRun
from latebloom.layers.min_gru import MinGRU, MinGRULayer
from latebloom.layers.recurrence import Recurrence
from latebloom.layers.stacking import Stacking

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def stacked(monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(trainers, "is_faster_stacked", lambda config, device: True)


def weights(folder):
    return TrainedRun.load(folder).model.state_dict()


def interrupted(config, folder, step: int) -> None:
    def stop(progress):
        if progress.step >= step:
            raise InterruptedRun("stopped by the test")

    with pytest.raises(InterruptedRun):
        run(config, folder, device="cpu", observe=stop)


def test_only_what_has_stacks_and_is_narrow_is_one_on_a_gpu(tiny):
    assert is_faster_stacked(tiny, GPU)
    assert not is_faster_stacked(tiny, CPU)
    assert not is_faster_stacked(replace(tiny, model=replace(tiny.model, width=128)), GPU)

    @dataclass(frozen=True, kw_only=True)
    class Mine(Recurrence):
        stacking: ClassVar[Stacking] = "vmap"

        name: Literal["mine"] = "mine"

        def build(self, width: int) -> MinGRULayer:
            return MinGRU().build(width)

        def state_size(self, width: int) -> int:
            return width

    assert not is_faster_stacked(replace(tiny, model=replace(tiny.model, recurrence=Mine())), GPU)


@pytest.mark.parametrize("step", [9, 18])  # before and after the switch: attention has no state before it
def test_an_interrupted_stack_of_one_goes_on_bit_for_bit(tiny, tmp_path, stacked, step):
    assert isinstance(Trainer([tiny], CPU).backend, Stacked)
    whole = run(tiny, tmp_path / "whole", device="cpu")
    interrupted(tiny, tmp_path / "half", step)
    seen: list[int] = []
    again = run(tiny, tmp_path / "half", device="cpu", observe=lambda progress: seen.append(progress.step))
    assert again.evaluation == whole.evaluation
    assert seen[0] >= 5  # it went on from a checkpoint
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "half")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("step", [9, 18])
@pytest.mark.parametrize("begins_stacked", [True, False])
def test_either_form_goes_on_from_the_checkpoint_of_the_other(tiny, tmp_path, monkeypatch, step, begins_stacked):
    run(tiny, tmp_path / "whole", device="cpu")
    for number, stacked in enumerate((begins_stacked, not begins_stacked)):
        monkeypatch.setattr(trainers, "is_faster_stacked", lambda config, device, stacked=stacked: stacked)
        if number == 0:
            interrupted(tiny, tmp_path / "half", step)
        else:
            seen: list[int] = []
            run(tiny, tmp_path / "half", device="cpu", observe=lambda progress, seen=seen: seen.append(progress.step))
            assert seen[0] >= 5
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "half")
    # Not a key's bias, which has no effect, so that its gradient is rounding alone.
    for name in (name for name in one if "queries_keys" not in name):
        torch.testing.assert_close(other[name], one[name], rtol=1e-3, atol=1e-4)
