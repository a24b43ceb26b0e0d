"""Two processes train what one trains, with copies of the model or with its parts, and their runs can be resumed."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ranks import run_ranks
from safetensors.torch import load_file
from small_lm import small_training

from latebloom.errors import ConfigError
from latebloom.lm.checkpoints import CHECKPOINTS, newest_checkpoint
from latebloom.lm.corpus import Corpus
from latebloom.lm.train import Training, train

TOLERANCE = 1e-6
"""The largest difference of a weight: sums of gradients are rounded in another order."""


def train_and_resume(settings: Training, folder: Path) -> dict[str, int]:
    """Train a run of copies and one of parts; train both again from a checkpoint in the middle."""
    resumed = {}
    for shard in (False, True):
        one = replace(settings, shard=shard)
        whole, again = folder / f"whole-{shard}", folder / f"again-{shard}"
        if train(one, whole):  # the first process
            shutil.copytree(whole / CHECKPOINTS, again / CHECKPOINTS)
            shutil.copy(whole / "settings.json", again)
            newest = newest_checkpoint(again / CHECKPOINTS)
            assert newest is not None
            shutil.rmtree(newest)
        torch.distributed.barrier()
        resumed[str(shard)] = train(one, again).get("resumed_at", -1)
    return resumed


def test_two_processes_train_what_one_trains_and_resume_bit_for_bit(corpus: Corpus, tmp_path: Path):
    settings = small_training(corpus, until="loss<9@2x", batch=4, steps=8)
    alone = train(settings, tmp_path / "alone")
    found, _ = run_ranks(train_and_resume, replace(settings, batch=2), tmp_path)
    assert found == {"False": 4, "True": 4}
    one = load_file(tmp_path / "alone" / "model" / "model.safetensors")
    for shard in (False, True):
        both, again = (
            load_file(tmp_path / f"{run}-{shard}" / "model" / "model.safetensors") for run in ("whole", "again")
        )
        assert one.keys() == both.keys() == again.keys()
        assert max(float((one[name] - both[name]).abs().max()) for name in one) < TOLERANCE
        assert all(torch.equal(both[name], again[name]) for name in both)
        result = json.loads((tmp_path / f"whole-{shard}" / "result.json").read_text())
        assert result["processes"] == 2
        assert all(result[name] == alone[name] for name in ("tokens", "switch_step", "parameters"))


def test_one_process_has_nothing_to_divide(corpus: Corpus, tmp_path: Path):
    with pytest.raises(ConfigError, match="shard: there is one process; start several with torchrun"):
        train(small_training(corpus, shard=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()
