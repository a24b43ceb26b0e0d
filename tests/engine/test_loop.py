"""A run from beginning to end: what its folder holds, resuming it, stopping it, and what stops it."""

import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from latebloom import Phase, SequenceModel, TrainedRun, run, when_beyond
from latebloom.engine.trainer import Trainer
from latebloom.errors import CheckpointError, ConfigError, InterruptedRun, NonFiniteLossError


def lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_everything_in_its_folder(tiny, tmp_path):
    seen = []
    trained = run(tiny, tmp_path / "a", observe=seen.append)
    names = sorted(path.name for path in (tmp_path / "a").iterdir() if not path.name.startswith("."))
    assert names == [
        "checkpoints", "config.json", "environment.json", "evaluation.json", "manifest.json", "metrics.jsonl",
        "model", "result.json", "times.json",
    ]  # fmt: skip
    assert trained.switch_step == 12
    assert trained.result["switch_reason"] == "step 12 was reached"
    assert trained.result["parameters"] == sum(p.numel() for p in trained.model.parameters())
    assert trained.evaluation.lengths == [5, 10, 15]
    switch = [line for line in lines(tmp_path / "a") if "switch" in line]
    assert switch == [{"step": 12, "switch": "step 12 was reached"}]
    losses = [line for line in lines(tmp_path / "a") if "loss" in line]
    assert [line["step"] for line in losses] == [3, 6, 9, 12, 15, 18, 21, 24]
    checks = [line for line in lines(tmp_path / "a") if "check" in line]
    assert [line["step"] for line in checks] == [8, 16, 24]
    assert set(checks[0]["check"]) == {"5", "15"}
    environment = json.loads((tmp_path / "a" / "environment.json").read_text())
    assert {"torch", "python", "latebloom", "commit", "processor", "threads", "device", "seed"} <= set(environment)
    assert seen[0].phase == "delayed"
    assert seen[-1].phase == "done"
    assert {progress.phase for progress in seen} == {"delayed", "full", "testing", "done"}


def test_a_line_logged_at_the_switch_belongs_to_the_delay(tiny, tmp_path):
    run(tiny, tmp_path)
    phases = {line["step"]: line["phase"] for line in lines(tmp_path) if "loss" in line}
    assert phases[12] == "delayed"
    assert phases[15] == "full"


def test_a_finished_run_is_not_trained_again(tiny, tmp_path, monkeypatch):
    first = run(tiny, tmp_path)

    def refuse(self):
        raise AssertionError("trained again")

    monkeypatch.setattr(Trainer, "advance", refuse)
    second = run(tiny, tmp_path)
    assert second.evaluation == first.evaluation
    assert second.result == first.result
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert TrainedRun.load(tmp_path).config == tiny


def test_without_a_folder_a_run_gives_the_same_model(tiny, tmp_path):
    kept, free = run(tiny, tmp_path), run(tiny)
    assert free.folder is None
    assert free.evaluation == kept.evaluation
    assert isinstance(free.model, SequenceModel)


def test_training_leaves_the_callers_random_state_alone(tiny):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(tiny)
    assert torch.equal(torch.rand(3), expected)


def test_a_folder_with_another_run_is_refused(tiny, tmp_path):
    run(tiny, tmp_path)
    with pytest.raises(CheckpointError, match=r"holds a run with other settings \(seed: 0 -> 1\)"):
        run(replace(tiny, seed=1), tmp_path)


def test_a_folder_in_use_is_refused(tiny, tmp_path):
    """The lock belongs to the open file, so a second opening in this process meets it as another process would."""
    refusals = []

    def second(progress):
        if not refusals:
            with pytest.raises(CheckpointError, match="is in use") as caught:
                run(tiny, tmp_path)
            refusals.append(str(caught.value))

    run(tiny, tmp_path, observe=second)
    assert len(refusals) == 1


def test_a_folder_that_cannot_be_written_is_refused(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"out: .*file/run cannot be written \(Not a directory\)"):
        run(tiny, tmp_path / "file" / "run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_saves_and_says_how_to_go_on(tiny, tmp_path, number):
    whole = run(tiny, tmp_path / "whole")

    def stop(progress):
        if progress.step == 9:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(InterruptedRun, match=r"stopped at step (9|10) of 24 and saved; continue with: latebloom train"):
        run(tiny, tmp_path / "cut", observe=stop)
    assert signal.getsignal(number) is before
    assert not (tmp_path / "cut" / "result.json").exists()
    again = run(tiny, tmp_path / "cut")
    assert again.evaluation == whole.evaluation
    assert (tmp_path / "cut" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    resumed = json.loads((tmp_path / "cut" / "environment.json").read_text())["resumed"]
    assert len(resumed) == 1


def test_a_run_in_a_thread_works_without_signals(tiny):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(tiny)))
    thread.start()
    thread.join()
    assert results[0].switch_step == 12


def explosive(tiny, **changes):
    """A rate of 1e30 after the switch overflows float32 within two steps."""
    wild = Phase(learning_rate=1e30, warmup=0, schedule="constant", batch_size=8)
    return replace(tiny, training=replace(tiny.training, clip=1e30, full=wild, **changes))


def test_a_loss_that_is_no_number_stops_the_run_and_names_step_phase_and_checkpoint(tiny, tmp_path):
    with pytest.raises(NonFiniteLossError) as caught:
        run(explosive(tiny), tmp_path)
    message = str(caught.value)
    assert "at step 14 (phase full, learning rate peak 1e+30)" in message
    assert f"the last good checkpoint is {tmp_path / 'checkpoints' / 'step-00000010'}" in message
    assert all(json.loads(line)["step"] <= 12 for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert not (tmp_path / "result.json").exists()


def test_weights_that_overflow_in_the_last_update_are_not_passed_off_as_a_result(tiny, tmp_path):
    """The loss of the last step is still a number; what the step made of the weights is not."""
    huge = Phase(learning_rate=1e30, warmup=0, schedule="constant", batch_size=8)
    training = replace(tiny.training, steps=13, clip=1e30, full=huge, weight_decay=10.0)
    with pytest.raises(NonFiniteLossError, match="at step 13"):
        run(replace(tiny, training=training), tmp_path)
    assert not (tmp_path / "result.json").exists()


def test_what_is_tested_is_what_is_saved_with_a_ramp_that_has_just_ended(tiny, tmp_path):
    delay = replace(tiny.delay, hold="ramp", ramp_steps=12)
    trained = run(replace(tiny, delay=delay), tmp_path)
    assert trained.evaluate() == trained.evaluation
    assert TrainedRun.load(tmp_path).evaluate() == trained.evaluation


@pytest.mark.parametrize("change", ["missing", "delay", "weights"])
def test_a_checkpoint_that_is_not_this_runs_is_refused_in_one_sentence(tiny, tmp_path, change):
    """Written as ours, digests and all, but with other contents."""
    from latebloom.engine.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint

    def stop(progress):
        if progress.step >= 6:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRun):
        run(tiny, tmp_path, observe=stop)
    newest = latest_checkpoint(tmp_path / "checkpoints")
    assert newest is not None
    tensors, state = load_checkpoint(newest, tiny.hashes)
    if change == "missing":
        del state["trainer"]
    elif change == "delay":
        state["trainer"]["runs"][0]["memory"] = None
    else:
        tensors["model"].pop("logits.weight")
    save_checkpoint(tmp_path / "checkpoints", tensors, state, tiny.hash)
    with pytest.raises(CheckpointError) as caught:
        run(tiny, tmp_path)
    assert "\n" not in str(caught.value)
    assert newest.name in str(caught.value)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tiny, tmp_path):
    def stop(progress):
        if progress.step >= 12:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRun):
        run(tiny, tmp_path, observe=stop)
    older, newest = sorted((tmp_path / "checkpoints").iterdir())
    content = json.loads((newest / "state.json").read_text())
    content["state"]["trainer"]["step"] += 1
    (newest / "state.json").write_text(json.dumps(content))
    told = f"{newest.name} is damaged: state.json was changed after it was written; the run continues from {older.name}"
    with pytest.warns(UserWarning, match=told):
        trained = run(tiny, tmp_path)
    assert trained.evaluation == run(tiny).evaluation


def test_a_damaged_run_whose_checkpoints_are_damaged_too_keeps_its_result(tiny, tmp_path):
    run(tiny, tmp_path)
    result = (tmp_path / "result.json").read_bytes()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    for state in (tmp_path / "checkpoints").glob("*/state.json"):
        state.write_text("{}")
    with (
        pytest.warns(UserWarning, match="is damaged or not a checkpoint"),
        pytest.raises(CheckpointError, match=f"remove {tmp_path} and train the run again"),
    ):
        run(tiny, tmp_path)
    assert (tmp_path / "result.json").read_bytes() == result


def test_a_restored_run_says_that_it_was_resumed(tiny, tmp_path):
    run(tiny, tmp_path)
    (tmp_path / "evaluation.json").unlink()
    with pytest.warns(UserWarning, match="evaluation.json was damaged and is restored"):
        run(tiny, tmp_path)
    assert len(json.loads((tmp_path / "environment.json").read_text())["resumed"]) == 1


def test_an_error_of_another_file_is_not_taken_for_a_failed_write(tiny, tmp_path):
    def read(progress):
        Path("/nowhere/table").read_bytes()

    with pytest.raises(FileNotFoundError, match="table"):
        run(tiny, tmp_path, observe=read)


def test_when_beyond_is_measured_on_held_out_sequences_and_recorded(tiny, tmp_path):
    until = when_beyond(0.01, latest=20, checks=2, every=3)  # guessing is enough
    trained = run(replace(tiny, delay=replace(tiny.delay, until=until)), tmp_path)
    assert trained.switch_step in (6, 9, 12, 15, 18)
    assert "for 2 checks in a row at 0.01 or more" in trained.result["switch_reason"]


@pytest.mark.parametrize("hold", ["freeze", "ramp", "none"])
def test_the_other_ways_to_hold_attention_back_run_too(tiny, tmp_path, hold):
    delay = replace(tiny.delay, hold=hold, ramp_steps=5 if hold == "ramp" else 0)
    trained = run(replace(tiny, delay=delay), tmp_path)
    again = TrainedRun.load(tmp_path)
    assert again.evaluate().counts == trained.evaluation.counts


def test_an_unfinished_run_says_how_to_go_on(tiny, tmp_path):
    def stop(progress):
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRun):
        run(tiny, tmp_path, observe=stop)
    with pytest.raises(CheckpointError, match="is not finished; continue with: latebloom train --out"):
        TrainedRun.load(tmp_path)
    with pytest.raises(CheckpointError, match="is inside a run; give the run's folder"):
        TrainedRun.load(tmp_path / "checkpoints")


def test_a_device_that_is_not_there_is_refused(tiny):
    with pytest.raises(ConfigError, match="device: 'gpu' is not known"):
        run(tiny, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="device: 'cuda' is not available here; choices: cpu"):
            run(tiny, device="cuda")


def test_accuracies_of_fewer_answers_are_not_shown_after_the_switch(tiny, tmp_path):
    """During the delay they are of the answers in the loss, and from the next check after the switch on of all."""
    seen = []
    training = replace(tiny.training, log_every=3, check_every=8)  # checks at steps 8 and 16, the switch at step 12
    run(
        replace(tiny, delay=replace(tiny.delay, withhold=("recall",)), training=training), tmp_path, observe=seen.append
    )
    between = [one for one in seen if one.phase == "full" and one.step < 16]
    assert [one.step for one in between]
    assert all(one.accuracy is None and one.accuracy_beyond is None for one in between)
    assert all(one.accuracy is not None for one in seen if 8 < one.step < 12 or one.step > 16)
