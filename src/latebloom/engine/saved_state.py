"""Checks of the state in a checkpoint: its types and ranges, and that its parts agree with the configuration.

A digest shows that a file is as it was written, not that a run wrote it. A state that no run can have is refused.
"""

import shlex
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from latebloom.config import RunConfig
from latebloom.delay.policy import Delay
from latebloom.delay.triggers import AtFraction, AtStep
from latebloom.engine.backend import Backend
from latebloom.engine.checkpoint import Tensors, complete_checkpoints, fitting, load_checkpoint
from latebloom.engine.folder import RunFolder
from latebloom.errors import DamagedCheckpointError

MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
"""What torch's AdamW keeps for a parameter."""


def load_part(
    folder: RunFolder, config: RunConfig, initial: Mapping[str, Tensor], backend: Backend
) -> tuple[Tensors, dict[str, Any]]:
    """Return tensors and state of the newest checkpoint of a run that joins a stack, after the checks below.

    A damaged one is an error, because the other runs are not at the step of the one before it.
    """
    path = complete_checkpoints(folder.checkpoints)[-1]
    try:
        tensors, state = load_checkpoint(path, folder.hashes(config))
    except DamagedCheckpointError as error:
        cure = f"latebloom verify {shlex.quote(str(folder.path))} --repair"
        raise DamagedCheckpointError(f"{error}; if there is a sound one before it, remove it with: {cure}") from error
    with fitting(path):
        check_state(state, [config], was_extended=False)
        check_optimizer(tensors, initial, backend.attention_names, state)
    return tensors, state


def check_state(state: dict[str, Any], configs: Sequence[RunConfig], was_extended: bool) -> None:
    """Raise ValueError unless these runs can have this state; an extended one may have logged at other steps."""
    step, steps = state["step"], configs[0].training.steps
    _require(_is_count(step) and step <= steps, "step", step)
    _require(state["trainer"]["step"] == step, "trainer.step", state["trainer"]["step"])
    _require(_is_number(state["seconds"]) and state["seconds"] >= 0, "seconds", state["seconds"])
    for number, (config, run, journal) in enumerate(
        zip(configs, state["trainer"]["runs"], state["journals"], strict=True)
    ):
        _check_run(f"runs.{number}", config, run, step, was_extended)
        _check_journal(f"journals.{number}", journal)


def _check_run(name: str, config: RunConfig, run: dict[str, Any], step: int, was_extended: bool) -> None:
    switch, delay = run["switch_step"], config.delay
    is_step = _is_count(switch) and switch <= step and delay is not None
    _require(switch is None or is_step, f"{name}.switch_step", switch)
    if delay is not None:
        latest = delay.until.latest_step(config.training.steps)
        is_exact = isinstance(delay.until, AtStep | AtFraction)
        wanted = (switch == latest) if is_exact and step >= latest else switch is None or not is_exact
        _require(wanted and (switch is not None or step < latest), f"{name}.switch_step", switch)
    reason = run["switch_reason"]
    _require(reason is None if switch is None else isinstance(reason, str), f"{name}.switch_reason", reason)
    _require(isinstance(run["memory"], dict), f"{name}.memory", run["memory"])
    _require(_is_count(run["summed"]) and run["summed"] <= step, f"{name}.summed", run["summed"])
    since = step - max(step - step % config.training.log_every, switch or 0)  # means are read there, and start again
    is_known = not was_extended and step < config.training.steps
    _require(not is_known or run["summed"] == since, f"{name}.summed", run["summed"])
    failed = run["failed_step"]
    _require(failed is None or (_is_count(failed) and 1 <= failed <= step), f"{name}.failed_step", failed)
    phase = _phase_of_last_step(delay, switch, step)
    _require(run["phase_done"] in ("", phase), f"{name}.phase_done", run["phase_done"])
    _require(_is_number(run["rate_done"]) and run["rate_done"] >= 0, f"{name}.rate_done", run["rate_done"])


def _phase_of_last_step(delay: Delay | None, switch: int | None, step: int) -> str:
    return "delayed" if delay is not None and (switch is None or switch >= step) else "full"


def _check_journal(name: str, journal: dict[str, Any]) -> None:
    size, digest, seen = journal["metrics_bytes"], journal["metrics_digest"], journal["last_seen"]
    _require(_is_count(size), f"{name}.metrics_bytes", size)
    is_digest = isinstance(digest, str) and len(digest) == 64
    _require(digest is None or is_digest, f"{name}.metrics_digest", digest)
    _require(
        isinstance(seen, dict)
        and seen.keys() == {"loss", "accuracy", "accuracy_beyond"}
        and all(value is None or _is_number(value) for value in seen.values()),
        f"{name}.last_seen",
        seen,
    )


def check_optimizer(
    tensors: Tensors, initial: Mapping[str, Tensor], attention: set[str], state: dict[str, Any]
) -> None:
    """Raise ValueError unless the parameters of a single run are finite and every trained one has the optimizer's
    state, at its step.

    `initial` are the parameters before the first step. One that still has its initial value may have no state, because
    a layer may have parameters that nothing trains. Attention, of which the names are given, may have none, or fewer
    steps.
    """
    if "optimizer" not in tensors:  # a stack, whose tensors have one form
        return
    step, found = state["step"], dict[str, set[str]]()
    failed = state["trainer"]["runs"][0]["failed_step"] is not None  # in a stack; alone it fails again
    if not failed:
        for name, tensor in (*tensors["model"].items(), *tensors["optimizer"].items()):
            _require(bool(tensor.isfinite().all()), name, "a number that is not finite")
    for name in tensors["optimizer"]:
        parameter, _, key = name.rpartition("/")
        found.setdefault(parameter, set()).add(key)
    for name, before in initial.items():
        keys, weights = found.get(name, set()), tensors["model"][name]
        _require(weights.dtype == before.dtype, name, weights.dtype)
        if not keys and (step == 0 or name in attention or torch.equal(weights, before.detach().cpu())):
            continue
        _require(keys == MOMENTS, f"optimizer.{name}", sorted(keys))
        done = float(tensors["optimizer"][f"{name}/step"])
        _require(done == step if name not in attention else 0 < done <= step, f"optimizer.{name}/step", done)
        least = float(tensors["optimizer"][f"{name}/exp_avg_sq"].min())
        _require(least >= 0 or failed, f"optimizer.{name}/exp_avg_sq", least)
        moments = [tensors["optimizer"][f"{name}/{key}"] for key in ("exp_avg", "exp_avg_sq")]
        forms = [(tuple(one.shape), one.dtype) for one in moments]
        _require(forms == [(tuple(weights.shape), weights.dtype)] * 2, f"optimizer.{name}", forms)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _require(condition: bool, name: str, value: object) -> None:
    if not condition:
        text = repr(value)
        raise ValueError(f"{name}: {text if len(text) <= 60 else f'{text[:60]}...'} is not possible there")
