"""State that no run can have is refused although its digest is right; and numbers that no run should go on with."""

import json
import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from latebloom import RunConfig, run
from latebloom.engine.checkpoint import latest_checkpoint
from latebloom.engine.files import digest, json_digest
from latebloom.engine.loop import run_stacked, run_until
from latebloom.engine.pause import Stop
from latebloom.engine.trainer import Trainer
from latebloom.errors import CheckpointError, NonFiniteLossError
from latebloom.integrations.load_model import load_model
from latebloom.layers.recurrence import Recurrence, RecurrentLayer
from latebloom.studies.stacks import plan_waves


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, tiny_run) -> Path:
    """A run with a checkpoint at step 20 of 24, not to be changed."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    run(tiny_run, folder, device="cpu")
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "checkpoints" / "step-00000024")
    return folder


def forge(folder: Path, change) -> None:
    """Change the state of the newest checkpoint, and make its digest fit."""
    checkpoint = latest_checkpoint(folder / "checkpoints")
    assert checkpoint is not None
    header = json.loads((checkpoint / "state.json").read_text())
    change(header["state"])
    header["state_digest"] = json_digest(header["state"])
    (checkpoint / "state.json").write_text(json.dumps(header))


PLACES = {
    "step": ("step",),
    "trainer.step": ("trainer", "step"),
    "runs.0.switch_step": ("trainer", "runs", 0, "switch_step"),
    "runs.0.switch_reason": ("trainer", "runs", 0, "switch_reason"),
    "runs.0.memory": ("trainer", "runs", 0, "memory"),
    "runs.0.summed": ("trainer", "runs", 0, "summed"),
    "runs.0.phase_done": ("trainer", "runs", 0, "phase_done"),
    "runs.0.rate_done": ("trainer", "runs", 0, "rate_done"),
    "seconds": ("seconds",),
    "journals.0.metrics_bytes": ("journals", 0, "metrics_bytes"),
    "journals.0.last_seen": ("journals", 0, "last_seen"),
    "runs.0.failed_step": ("trainer", "runs", 0, "failed_step"),
}
VALUES = ("x", -5, 7, 10**20, 1.5, [], True, math.nan, None)
POSSIBLE = {
    "seconds": (7, 10**20, 1.5),
    "runs.0.switch_reason": ("x",),
    "runs.0.failed_step": (None, 7),
    "runs.0.rate_done": (7, 10**20, 1.5),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_forged_state_is_refused(place, stopped, tiny, tmp_path):
    *above, last = PLACES[place]
    for number, value in enumerate(VALUES):
        if any(value == possible and type(value) is type(possible) for possible in POSSIBLE.get(place, ())):
            continue
        folder = Path(shutil.copytree(stopped, tmp_path / str(number)))

        def change(state, value=value) -> None:
            for key in above:
                state = state[key]
            state[last] = value

        forge(folder, change)
        with pytest.raises(CheckpointError, match=r"does not fit this run .*|is damaged"):
            run(tiny, folder, device="cpu")
        assert not (folder / "result.json").exists()


def test_the_true_state_is_not_refused(stopped, tiny, tmp_path):
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    forge(folder, lambda state: None)
    assert run(tiny, folder, device="cpu").evaluation == run(tiny, device="cpu").evaluation


@pytest.mark.parametrize("lost", ["all", "one", "its steps"])
def test_a_checkpoint_without_the_optimizer_is_refused(lost, stopped, tiny, tmp_path):
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    file = folder / "checkpoints" / "step-00000020" / "optimizer.safetensors"
    tensors = load_file(file)
    first = "embedding.weight/step" if "embedding.weight/step" in tensors else next(k for k in tensors if "/step" in k)
    kept = {
        "all": {},
        "one": {k: v for k, v in tensors.items() if k != first},
        "its steps": tensors | {first: torch.tensor(3.0)},
    }
    save_file(kept[lost], file)
    header = json.loads(file.with_name("state.json").read_text())
    header["digests"]["optimizer"] = digest(file.read_bytes())
    file.with_name("state.json").write_text(json.dumps(header))
    with pytest.raises(CheckpointError, match=r"does not fit this run \(ValueError: optimizer"):
        run(tiny, folder, device="cpu")


IMPOSSIBLE = {"NaN": lambda x: x * math.nan, "below 0": lambda x: -1 - x * x, "double": Tensor.double}


@pytest.mark.parametrize(
    ("group", "change"),
    [("model", "NaN"), ("model", "double"), *(("optimizer", change) for change in IMPOSSIBLE)],
)
def test_tensors_that_no_run_can_have_are_refused_after_the_last_step_too(group, change, stopped, tiny, tmp_path):
    """After the last step nothing is trained any more that would show it."""
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    run(tiny, folder, device="cpu")
    (folder / "result.json").unlink()
    for checkpoint in (folder / "checkpoints").iterdir():
        file, state = checkpoint / f"{group}.safetensors", checkpoint / "state.json"
        tensors = load_file(file)
        changed = {name: IMPOSSIBLE[change](one) for name, one in tensors.items() if "/step" not in name}
        save_file(tensors | changed, file)
        header = json.loads(state.read_text())
        header["digests"][group] = digest(file.read_bytes())
        state.write_text(json.dumps(header))
    with pytest.raises(CheckpointError, match="is not possible there"):
        run(tiny, folder, device="cpu")


def test_a_forged_state_is_refused_where_a_run_is_extended_too(stopped, tiny, tmp_path):
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    forge(folder, lambda state: state["trainer"].update(runs=[]))
    longer = replace(tiny, training=replace(tiny.training, steps=30))
    with pytest.raises(CheckpointError, match="does not fit this run"):
        run(longer, folder, device="cpu")


def test_inspect_refuses_a_forged_checkpoint_without_naming_an_option_that_it_lacks(stopped, tmp_path):
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    forge(folder, lambda state: state.pop("step"))
    with pytest.raises(CheckpointError, match=r"does not fit this run \(KeyError: 'step'\)$"):
        load_model(folder / "checkpoints" / "step-00000020")


ENVIRONMENTS = {
    "resumed": (5, "x", None), "extended": (5, "x", None, [5], [{}], [{"hashes": 5}]), "command": (5, [5], None)
}  # fmt: skip


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_that_no_run_has_written_is_refused(name, stopped, tiny, tmp_path):
    for number, value in enumerate(ENVIRONMENTS[name]):
        folder = Path(shutil.copytree(stopped, tmp_path / str(number)))
        file = folder / "environment.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
        with pytest.raises(
            CheckpointError, match=r"environment.json is damaged: command, resumed or extended has a form"
        ):
            run(tiny, folder, device="cpu")


class UnusualLayer(RecurrentLayer):
    """An Elman network with a fixed parameter, one that is not used, and a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rnn = nn.RNN(width, width, batch_first=True)
        self.rnn.bias_ih_l0.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3))
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, state=None, noise=None):
        self.calls += self.training
        return self.rnn(x, state)


def test_buffers_and_parameters_that_nothing_trains_need_no_optimizer_state(tiny, tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Unusual(Recurrence):
        name: Literal["unusual"] = "unusual"

        def build(self, width: int) -> UnusualLayer:
            return UnusualLayer(width)

        def state_size(self, width: int) -> int:
            return width

    config = replace(tiny, model=replace(tiny.model, recurrence=Unusual()))
    run(config, tmp_path / "whole", device="cpu")
    run_until(config, tmp_path / "paused", Stop(15), device="cpu")
    run(config, tmp_path / "paused", device="cpu")
    models = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "paused")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert models[0]["blocks.0.0.body.calls"] > 0


@pytest.fixture
def paused(tiny, tmp_path) -> tuple[Path, dict[str, RunConfig]]:
    """Two runs that a stack has left at step 7."""
    configs = {f"seed-{seed}": replace(tiny, seed=seed) for seed in (1, 2)}
    run_stacked(configs, tmp_path, torch.device("cpu"), stop=Stop(7, test=False))
    return tmp_path, configs


def test_a_stack_checks_the_state_of_each_run_that_joins_it(paused):
    folder, configs = paused
    forge(folder / "seed-2", lambda state: state["trainer"]["runs"][0].update(switch_step=3, switch_reason="x"))
    with pytest.raises(CheckpointError, match=r"seed-2.* does not fit this run .*runs.0.switch_step: 3"):
        run_stacked(configs, folder, torch.device("cpu"))


def test_a_damaged_checkpoint_of_a_paused_run_is_named_and_stops_no_other(paused):
    folder, configs = paused
    run_until(configs["seed-2"], folder / "seed-2", Stop(9, test=False), device="cpu")
    run_until(configs["seed-1"], folder / "seed-1", Stop(9, test=False), device="cpu")
    file = folder / "seed-2" / "checkpoints" / "step-00000009" / "model.safetensors"
    file.write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"seed-2.*is damaged.* verify \S*seed-2 --repair"):
        run_stacked(configs, folder, torch.device("cpu"))
    file.with_name("state.json").write_text("{")
    waves = plan_waves(configs, folder, lambda config, wanted: 10)
    assert waves == [{"seed-2": configs["seed-2"]}, {"seed-1": configs["seed-1"]}]
    with pytest.warns(UserWarning, match="continues from step-00000007"):
        run(configs["seed-2"], folder / "seed-2", device="cpu")


def spoil(monkeypatch, at: int, change) -> None:
    """Change the trainer after a step."""
    advance = Trainer.advance

    def advance_and_change(self: Trainer) -> list[int]:
        switched = advance(self)
        if self.step == at:
            change(self)
        return switched

    monkeypatch.setattr(Trainer, "advance", advance_and_change)


def moment(key: str, value: float):
    def change(trainer: Trainer) -> None:
        next(iter(trainer.backend.optimizer.state.values()))[key].view(-1)[0] = value  # type: ignore[attr-defined]

    return change


def weight(value: float):
    def change(trainer: Trainer) -> None:
        with torch.no_grad():
            next(trainer.backend.template.parameters()).view(-1)[0] = value

    return change


FAULTS = {
    "an infinite second moment": moment("exp_avg_sq", math.inf),
    "a NaN in the first moment": moment("exp_avg", math.nan),
    "an infinite weight": weight(math.inf),
    "a weight of 1e30": weight(1e30),
}


@pytest.mark.parametrize("at", [14, 24], ids=["before a checkpoint", "in the last step"])
@pytest.mark.parametrize("fault", FAULTS)
def test_numbers_that_are_not_finite_stop_the_run_and_no_checkpoint_has_them(fault, at, tiny, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        spoil(patch, at, FAULTS[fault])
        with pytest.raises(NonFiniteLossError, match="were not finite"):
            run(tiny, tmp_path, device="cpu")
    assert run(tiny, tmp_path, device="cpu").evaluation == run(tiny, device="cpu").evaluation


def test_a_run_of_a_stack_with_such_a_number_does_not_touch_the_others(tiny, tmp_path, monkeypatch):
    configs = {f"seed-{seed}": replace(tiny, seed=seed) for seed in (1, 2)}
    whole = run_stacked(configs, tmp_path / "whole", torch.device("cpu"))

    def change(trainer: Trainer) -> None:
        trainer.backend.second[0, 0] = math.inf  # type: ignore[attr-defined]

    spoil(monkeypatch, 14, change)
    outcome = run_stacked(configs, tmp_path / "spoilt", torch.device("cpu"))
    assert list(outcome.failed) == ["seed-1"]
    assert outcome.trained["seed-2"].evaluation == whole.trained["seed-2"].evaluation
