"""What the cases of the campaign compare with, and how they train."""

import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from browser import CHROMIUM, Browser
from safetensors.torch import load_file
from synthetic import study

from latebloom import RunConfig, TrainedRun, run
from latebloom.engine.loop import run_stacked
from latebloom.errors import LatebloomError
from latebloom.results.file import write_results


@dataclass(eq=False)
class Shared:
    """A small configuration, its runs that nothing happened to, a results file, and a browser."""

    config: RunConfig
    place: Path
    browser: Browser | None
    number: int = 0
    """The number of the case."""
    at_end: list[Callable[[], object]] = field(default_factory=list)
    """What ends services that cases started."""

    @cached_property
    def finished(self) -> Path:
        return self._trained("finished", self.config)

    @cached_property
    def other(self) -> Path:
        """A run with another seed."""
        return self._trained("other", replace(self.config, seed=self.config.seed + 1))

    @cached_property
    def long_config(self) -> RunConfig:
        """A run of some seconds."""
        training = replace(self.config.training, steps=500, checkpoint_every=25, log_every=10, check_every=250)
        return replace(self.config, training=training)

    @cached_property
    def long(self) -> Path:
        return self._trained("long", self.long_config)

    @cached_property
    def in_stack(self) -> dict[str, RunConfig]:
        return {"one": replace(self.config, seed=1), "two": self.config}

    @cached_property
    def stack(self) -> Path:
        train_stack(self, self.place / "stack")
        return self.place / "stack"

    @cached_property
    def results(self) -> Path:
        write_results(self.place / "a.parquet", study(arms=("dat", "joint"), seeds=2))
        return self.place / "a.parquet"

    def _trained(self, name: str, config: RunConfig) -> Path:
        run(config, self.place / name, device="cpu")
        return self.place / name


def prepare(config: RunConfig, place: Path, with_browser: bool) -> Shared:
    return Shared(config, place, Browser() if with_browser and CHROMIUM else None)


def end(shared: Shared) -> None:
    """Remove what the cases of a process shared."""
    if shared.browser is not None:
        shared.browser.__exit__()
    for close in shared.at_end:
        close()
    shutil.rmtree(shared.place, ignore_errors=True)


def assert_same(found: Path, expected: Path) -> None:
    """Compare two finished runs bit for bit."""
    for name in ("metrics.jsonl", "evaluation.json"):
        assert (found / name).read_bytes() == (expected / name).read_bytes(), f"{name} differs"
    one, two = (load_file(folder / "model" / "model.safetensors") for folder in (found, expected))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one), "weights differ"


def train(shared: Shared, folder: Path) -> TrainedRun:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is damaged and restored
        return run(shared.config, folder, device="cpu")


def train_stack(shared: Shared, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_stacked(shared.in_stack, folder, torch.device("cpu"))


def forked(work: Callable[[], object]) -> int:
    """Start work in a process of its own, which ends with status 0, or 3 after a user's error."""
    child = os.fork()
    if child:
        return child
    status = 4
    try:
        work()
        status = 0
    except LatebloomError:
        status = 3
    finally:
        os._exit(status)


def status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
