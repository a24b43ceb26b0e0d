"""Numerical faults in a run: it fails, continues from what was saved before, and leaves its stack's others alone."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from reference import Shared, assert_same, train

from latebloom import RunConfig, run
from latebloom.engine.loop import run_stacked
from latebloom.engine.trainer import Trainer
from latebloom.errors import NonFiniteLossError

PLACES = ("weights", "first moment", "second moment", "gradient", "loss")


def numbers(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Put NaN, infinity or 1e30 into one run of one or of two."""
    place, step = rng.choice(PLACES), rng.randint(1, 24)
    # A second moment of 1e30 is only a small step, and a loss of 1e30 is one that a run may have.
    values = (math.nan, math.inf, -math.inf, 1e30)[: {"second moment": 2, "loss": 3}.get(place, 4)]
    value = rng.choice(values)
    neighbour = shared.stack / "two"  # trained before there is a fault
    with _fault(rng, place, value, step):
        _assert_noticed(rng, folder, shared, shared.config, neighbour, f"{place}={value} at step {step}")
    if (folder / "config.json").exists():  # alone
        train(shared, folder)
        assert_same(folder, shared.finished)


def learning_rate(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Train with a learning rate with which every run diverges."""
    training, rate = shared.config.training, 10 ** rng.uniform(20, 30)
    phase = rng.choice(("delayed", "full"))
    changed = {phase: replace(getattr(training, phase), learning_rate=rate)}
    config = replace(shared.config, training=replace(training, **changed))
    _assert_noticed(rng, folder, shared, config, shared.stack / "two", f"a learning rate of {rate:g}")


def _assert_noticed(
    rng: random.Random, folder: Path, shared: Shared, config: RunConfig, neighbour: Path, what: str
) -> None:
    """Train a run that must fail: alone, or in a stack whose other run must be as it is with a sound neighbour."""
    if rng.random() < 0.4:
        configs = {"one": replace(config, seed=1), "two": shared.config}
        outcome = run_stacked(configs, folder, torch.device("cpu"))
        assert list(outcome.failed) == ["one"], f"{what} in a stack: failed {list(outcome.failed)}"
        assert_same(folder / "two", neighbour)
        return
    try:
        run(config, folder, device="cpu")
    except NonFiniteLossError:
        return
    raise AssertionError(f"{what} went unnoticed")


@contextmanager
def _fault(rng: random.Random, place: str, value: float, step: int) -> Iterator[None]:
    """Spoil the first run of every trainer at a step."""
    advance = Trainer.advance

    def spoil(self: Any) -> list[int]:
        backend = self.backend
        if place in ("gradient", "loss") and self.step + 1 == step:
            _spoil_update(backend, place, value)
        switched = advance(self)
        vars(backend).pop("update", None)
        if place not in ("gradient", "loss") and self.step == step:
            with torch.no_grad():
                _one_number(rng, backend, place).fill_(value)
        return switched

    Trainer.advance = spoil
    try:
        yield
    finally:
        Trainer.advance = advance


def _spoil_update(backend: Any, place: str, value: float) -> None:
    """Let the next update of a backend see another loss or gradient of its first run."""
    update = backend.update

    def spoiled(losses: torch.Tensor, *others: Any) -> torch.Tensor:
        factor = torch.ones_like(losses).index_fill_(0, torch.tensor([0]), value)
        if place == "loss":
            losses = losses * factor
        else:
            losses.register_hook(lambda gradient: gradient * factor)
        return update(losses, *others)

    backend.update = spoiled


def _one_number(rng: random.Random, backend: Any, place: str) -> torch.Tensor:
    """Return a view of one number of the first run."""
    if hasattr(backend, "flat"):  # a stack
        tensor = {"weights": backend.flat, "first moment": backend.first, "second moment": backend.second}[place][0]
        return tensor[rng.randrange(len(tensor))]
    if place == "weights":
        return rng.choice(list(backend.template.parameters())).view(-1)[0]
    state = rng.choice(list(backend.optimizer.state.values()))
    return state["exp_avg" if place == "first moment" else "exp_avg_sq"].view(-1)[0]
