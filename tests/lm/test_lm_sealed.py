"""Files of a run of a language model that are lost or changed are noticed, in checkpoints and in finished runs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_lm import small_training

from latebloom.cli import main
from latebloom.errors import CheckpointError, Note
from latebloom.lm.corpus import Corpus
from latebloom.lm.evaluate import load_trained
from latebloom.lm.train import Training, train


@pytest.fixture(scope="module")
def settings(corpus: Corpus) -> Training:
    """The checkpoints are of steps 4 and 8, and attention is enabled before the first."""
    return small_training(corpus, steps=8, until="2")


@pytest.fixture(scope="module")
def finished(settings: Training, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sealed") / "run"
    train(settings, folder)
    return folder


@pytest.fixture
def killed(finished: Path, tmp_path: Path) -> Path:
    """A run that was killed after its last checkpoint."""
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(folder / "model")
    (folder / "result.json").unlink()
    (folder / "metrics.jsonl").unlink()
    return folder


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def outcome(folder: Path) -> tuple[bytes, ...]:
    return (folder / "model" / "model.safetensors").read_bytes(), (folder / "metrics.jsonl").read_bytes()


@pytest.mark.filterwarnings("ignore:delay. Trainer left:UserWarning")
@pytest.mark.parametrize("damage", [flip, halve, empty, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "config.json"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_continues(
    name: str, damage: Callable[[Path], None], settings: Training, finished: Path, killed: Path
):
    """Without digests Trainer goes on without a lost file, with another result."""
    damage(killed / "checkpoints" / "checkpoint-8" / name)
    told = f"checkpoint-8 is damaged: {name} is missing or was changed after it was written; the run continues from"
    if name in ("optimizer.pt", "config.json"):  # the others are refused alike, and training takes a second
        with pytest.warns(Note, match=told):
            train(settings, killed)
        assert outcome(killed) == outcome(finished)
        return
    damage(killed / "checkpoints" / "checkpoint-4" / name)
    refused = rf"checkpoint-4 is damaged: {name} .*; remove .* to train from the beginning"
    with pytest.raises(CheckpointError, match=refused), pytest.warns(Note, match=told):
        train(settings, killed)


@pytest.mark.filterwarnings("ignore:delay. Trainer left:UserWarning")
def test_digests_that_leave_out_a_file_do_not_switch_the_check_off(settings: Training, finished: Path, killed: Path):
    (killed / "checkpoints" / "checkpoint-8" / "digests.json").write_text("{}")
    flip(killed / "checkpoints" / "checkpoint-8" / "optimizer.pt")
    with pytest.warns(Note, match="checkpoint-8 is damaged: config.json is missing or was changed"):
        train(settings, killed)
    assert outcome(killed) == outcome(finished)


@pytest.mark.parametrize("damage", [flip, halve, Path.unlink])
@pytest.mark.parametrize("name", ["model/model.safetensors", "model/tokenizer.json", "metrics.jsonl"])
def test_a_damaged_file_of_a_finished_run_is_refused_and_restored(
    name: str, damage: Callable[[Path], None], settings: Training, finished: Path, tmp_path: Path
):
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    damage(folder / name)
    with pytest.raises(CheckpointError, match=rf"run is damaged: {name} is missing or was changed after training; rep"):
        load_trained(folder)
    bare = Path(shutil.copytree(folder, tmp_path / "bare"))
    shutil.rmtree(bare / "checkpoints")
    with pytest.raises(CheckpointError, match=rf"{name} .* there is no checkpoint of the last step; train the run ag"):
        train(settings, bare)
    with pytest.warns(Note, match=f"{name} was damaged and is restored from the last checkpoint"):
        train(settings, folder)
    assert outcome(folder) == outcome(finished)
    load_trained(folder)


def test_a_changed_number_of_a_result_is_noticed(settings: Training, finished: Path, tmp_path: Path):
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"final_loss": 0.0}))
    with pytest.raises(CheckpointError, match=r"damaged: result.json is missing or was changed"):
        load_trained(folder)
    with pytest.warns(Note, match=r"result.json was damaged and is restored"):
        assert train(settings, folder)["final_loss"] == result["final_loss"]


@pytest.mark.filterwarnings("ignore:delay. Trainer left:UserWarning")
def test_a_run_of_an_earlier_version_has_no_digests_and_continues(settings: Training, finished: Path, killed: Path):
    about = json.loads((killed / "environment.json").read_text())
    del about["sealed"]
    (killed / "environment.json").write_text(json.dumps(about))
    for checkpoint in (killed / "checkpoints").iterdir():
        (checkpoint / "digests.json").unlink()
    train(settings, killed)
    assert outcome(killed) == outcome(finished)


@pytest.mark.parametrize("damage", [None, flip])
def test_verify_checks_a_run_of_a_language_model(damage, finished: Path, tmp_path: Path, capsys):
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    if damage is None:
        main(["verify", str(folder)])
        assert capsys.readouterr().out == "1 checked, 1 sound, 0 damaged.\n"
        return
    damage(folder / "model" / "model.safetensors")
    damage(folder / "checkpoints" / "checkpoint-4" / "optimizer.pt")
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(folder)])
    assert stop.value.code == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "checkpoint-4 is damaged: optimizer.pt is missing or was changed" in told
    assert "model/model.safetensors is missing or was changed after training" in told
    assert told.endswith("1 checked, 0 sound, 1 damaged.")
