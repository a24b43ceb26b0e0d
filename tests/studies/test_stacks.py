"""Many runs in stacks: which are trained at once, and what a failure does."""

from dataclasses import replace

import pytest
import torch

from latebloom import Delay, RunConfig, TrainedRun, run, when_beyond
from latebloom.cli import main
from latebloom.engine import loop
from latebloom.engine.journal import Journal
from latebloom.engine.loop import run_stacked
from latebloom.engine.outcome import Progress
from latebloom.errors import CheckpointError, ConfigError, InterruptedRun
from latebloom.studies.stacks import plan_waves, run_in_stacks

CPU = torch.device("cpu")


def seeds(config: RunConfig, count: int, first: int = 0) -> dict[str, RunConfig]:
    return {f"seed-{seed}": replace(config, seed=seed) for seed in range(first, first + count)}


def plan(configs, folder, fit=1000):
    return [list(wave) for wave in plan_waves(configs, folder, lambda config, wanted: fit)]


def test_runs_of_one_shape_are_one_wave_and_others_another(tiny, tmp_path):
    configs = seeds(tiny, 3) | {"wide": replace(tiny, model=replace(tiny.model, width=16))}
    assert plan(configs, tmp_path) == [["seed-0", "seed-1", "seed-2"], ["wide"]]


def test_what_does_not_fit_at_once_is_trained_in_even_waves(tiny, tmp_path):
    waves = plan(seeds(tiny, 10), tmp_path, fit=6)
    assert [len(wave) for wave in waves] == [5, 5]
    assert [name for wave in waves for name in wave] == list(seeds(tiny, 10))


def test_what_fits_is_measured_on_the_run_that_takes_most(tiny, tmp_path):
    noisy = replace(tiny, training=replace(tiny.training, state_noise=0.2))
    measured = []
    plan_waves(seeds(tiny, 2) | {"noisy": noisy}, tmp_path, lambda config, wanted: measured.append(config) or 2)
    assert measured == [noisy]


def test_runs_that_cannot_promise_to_switch_together_stand_alone_where_batches_differ(tiny, tmp_path):
    looking = replace(tiny, delay=Delay(until=when_beyond(0.9, latest=12)))  # its phases' batches differ in size
    assert plan(seeds(looking, 2), tmp_path) == [["seed-0"], ["seed-1"]]


def test_finished_runs_are_left_out_and_interrupted_ones_go_on_as_they_were(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    run(replace(tiny, seed=0), tmp_path / "seed-0", device="cpu")

    def stop(step: int):
        def observe(*words):
            if words[-1].step >= step:
                raise InterruptedRun("stopped by the test")

        return observe

    with pytest.raises(InterruptedRun):
        run(replace(tiny, seed=5), tmp_path / "seed-5", device="cpu", observe=stop(9))
    with pytest.raises(InterruptedRun):
        run_stacked(seeds(tiny, 2, first=2), tmp_path, CPU, observe=stop(9))
    configs = seeds(tiny, 8)
    assert plan(configs, tmp_path) == [["seed-2", "seed-3"], ["seed-5"], ["seed-1", "seed-4", "seed-6", "seed-7"]]
    seen: dict[str, int] = {}

    def observe(name: str, progress: Progress) -> None:
        seen.setdefault(name, progress.step)

    assert run_in_stacks(configs, tmp_path, CPU, observe, fit=lambda config, device: 100) == {}
    assert seen["seed-2"] > 0  # went on
    assert seen["seed-5"] > 0
    assert seen["seed-1"] == 0
    assert "seed-0" not in seen
    assert plan(configs, tmp_path) == []


def test_a_stack_that_was_killed_while_it_wrote_its_results_writes_the_rest(tiny, tmp_path, monkeypatch):
    configs = seeds(tiny, 3)
    written = []
    conclude = Journal.conclude

    def killed_after_one(self, *arguments, **named):
        if written:
            raise InterruptedRun("killed by the test")
        written.append(self)
        return conclude(self, *arguments, **named)

    monkeypatch.setattr(Journal, "conclude", killed_after_one)
    with pytest.raises(InterruptedRun):
        run_stacked(configs, tmp_path, CPU)
    monkeypatch.setattr(Journal, "conclude", conclude)
    assert plan(configs, tmp_path) == [list(configs)]
    seen: dict[str, int] = {}

    def observe(name: str, progress: Progress) -> None:
        seen.setdefault(name, progress.step)

    assert run_in_stacks(configs, tmp_path, CPU, observe, fit=lambda config, device: 100) == {}
    assert min(seen.values()) == tiny.training.steps  # nothing was trained again
    for name, config in configs.items():
        assert TrainedRun.load(tmp_path / name).evaluation == run(config, device="cpu").evaluation
    assert not list(tmp_path.glob("stack-*"))  # its checkpoints have served


def test_what_a_stack_left_that_was_killed_in_its_clean_up_is_removed(tiny, tmp_path, monkeypatch):
    configs = seeds(tiny, 2)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "remove_folder", lambda path: None)
        run_stacked(configs, tmp_path, CPU)
    (tmp_path / ".writing-gone-stack-x").mkdir()
    assert len(list(tmp_path.glob("*stack-*"))) == 2
    assert run_in_stacks(configs, tmp_path, CPU, lambda name, seen: None) == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed-0", "seed-1"]


def test_a_member_of_an_interrupted_stack_does_not_begin_anew_by_itself(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr("sys.argv", ["/bin/latebloom", "train", "--seeds", "2", "--out", "some where"])

    def stop(name, progress):
        if progress.step >= 9:
            raise InterruptedRun("stopped by the test")

    configs = {f"arm/{name}": config for name, config in seeds(tiny, 2).items()}
    with pytest.raises(InterruptedRun):
        run_stacked(configs, tmp_path, CPU, observe=stop)
    member = tmp_path / "arm" / "seed-1"
    with pytest.raises(SystemExit):
        main(["train", "--out", str(member), "--device", "cpu"])
    said = capsys.readouterr().err.strip()
    assert f"{member} was trained in a stack of 2 runs" in said
    assert "continue with: latebloom train --seeds 2 --out 'some where'; to train it alone" in said
    (stack,) = tmp_path.glob("stack-*")
    assert said.endswith(f"remove {stack}")
    run_stacked(configs, tmp_path, CPU)
    main(["train", "--out", str(member), "--device", "cpu"])
    assert "is finished already" in capsys.readouterr().out


def test_metrics_that_another_run_has_written_are_refused(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)

    def stop(name, progress):
        if progress.step >= 9:
            raise InterruptedRun("stopped by the test")

    with pytest.raises(InterruptedRun):
        run_stacked(seeds(tiny, 2), tmp_path, CPU, observe=stop)
    metrics = tmp_path / "seed-1" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().replace(b"loss", b"lost"))
    with pytest.raises(CheckpointError, match="another run has written into it"):
        run_stacked(seeds(tiny, 2), tmp_path, CPU)


def test_a_wave_that_fails_does_not_stop_the_others(tiny, tmp_path):
    (tmp_path / "wide").write_text("a file where a folder should be")
    configs = {"wide": replace(tiny, model=replace(tiny.model, width=16))} | seeds(tiny, 2)
    failures = run_in_stacks(configs, tmp_path, CPU, lambda name, seen: None, fit=lambda config, device: 100)
    assert list(failures) == ["wide"]
    assert "cannot be written" in failures["wide"]
    assert (tmp_path / "seed-1" / "result.json").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU")
def test_more_than_fits_is_known_before_training(tiny):
    from latebloom.engine.memory import runs_that_fit

    device = torch.device("cuda")
    assert runs_that_fit(tiny, device) > 1000  # of a width that the kernels do not take
    assert runs_that_fit(replace(tiny, model=replace(tiny.model, width=16)), device) > 1000
    huge = replace(tiny.training, full=replace(tiny.training.full, batch_size=1 << 24))
    with pytest.raises(ConfigError, match="even one run does not fit"):
        runs_that_fit(replace(tiny, training=huge, delay=None), device)
