"""Shared beginnings: up to which step two runs are provably identical, and a fork of a run from there.

Runs of a study often differ only from some step on, such as two delays that end at different steps. They can be trained
once up to there. A fork has the weights, optimizer state and metrics of the run that it comes from, and its own
configuration, so it ends with the same bits as a run that was trained alone from the beginning.
"""

from latebloom.config import RunConfig
from latebloom.delay.policy import stage_at
from latebloom.delay.triggers import AtFraction, AtStep
from latebloom.differences import differences
from latebloom.engine.checkpoint import complete_checkpoints, load_checkpoint, save_checkpoint
from latebloom.engine.files import digest, write_file, write_json
from latebloom.engine.folder import RunFolder, read_json
from latebloom.engine.pause import checkpoint_step
from latebloom.engine.schedule import rate_of_step
from latebloom.errors import CheckpointError, LatebloomError
from latebloom.reading import read_plain

COMPARED = (
    "delay", "delay.until", "delay.hold", "delay.ramp_steps", "delay.withhold",
    *(f"training.{phase}.{name}" for phase in ("delayed", "full")
      for name in ("learning_rate", "warmup", "schedule", "cycles", "batch_size")),
    "training.restart", "training.recurrence_factor", "training.attention_factor",
)  # fmt: skip
"""Settings whose effect at each step is known: `shared_steps` compares it. Runs that differ in others share nothing."""
WITHOUT_EFFECT = ("training.checkpoint_every", "evaluation.multiples", "evaluation.sequences")
"""Settings that change neither a training step nor the metrics."""


def shared_steps(one: RunConfig, other: RunConfig) -> int:
    """Return the number of first steps in which two runs provably have the same weights, state and metrics.

    It is less than the number of all steps, because a run writes its last metrics at its last step.
    """
    for name, _, _ in differences(one.to_json(), other.to_json()):
        known = name in COMPARED or name.startswith("delay.until.") or name in WITHOUT_EFFECT
        if not known:
            return 0
    steps = one.training.steps
    limit = steps - 1
    if one.watched_lengths != other.watched_lengths:  # a check writes another line
        limit = min(limit, one.training.check_every - 1)
    triggers = [config.delay.until for config in (one, other) if config.delay is not None]
    if len(triggers) == 2 and triggers[0] == triggers[1] and isinstance(triggers[0], AtStep | AtFraction):
        switch: int | None = triggers[0].latest_step(steps)
    else:
        # Before a trigger acts, it has no effect. Equal triggers that measure act alike while the runs are alike, but
        # nobody knows when they fire.
        switch = None
        first = [trigger.first_step(steps) for trigger in triggers]
        limit = min([limit, *(step - 1 for step in first)])
    for step in range(limit):
        switched = switch if switch is not None and step >= switch else None
        if _step_settings(one, step, switched) != _step_settings(other, step, switched):
            return step
    return max(0, limit)


def first_step(config: RunConfig) -> tuple[object, ...]:
    """Return what the `COMPARED` settings decide at the first step; runs that differ there share nothing."""
    return _step_settings(config, 0, None)


def fork(source: RunFolder, target: RunFolder, config: RunConfig, step: int, device: str) -> bool:
    """Begin a run in `target` from the checkpoint of another one at `step`; return whether that was possible.

    It is not if the target has begun, or if the source has no sound checkpoint and metrics there; then the target is
    trained from the beginning.
    """
    try:
        found = source.read_config()
    except LatebloomError:
        return False
    checkpoint = next(
        (path for path in complete_checkpoints(source.checkpoints) if checkpoint_step(path) == step), None
    )
    if checkpoint is None or shared_steps(found, config) < step:
        return False
    with target.opened(config, device):
        if target.is_finished or complete_checkpoints(target.checkpoints):
            return False
        try:
            tensors, state = load_checkpoint(checkpoint, source.hashes(found))
            (journal,) = state["journals"]
            metrics = read_plain(source.metrics_file)[: journal["metrics_bytes"]]
        except (CheckpointError, OSError, KeyError, TypeError, ValueError):
            return False
        if digest(metrics) != journal["metrics_digest"]:
            return False
        write_file(target.metrics_file, metrics)
        about = read_json(target.environment_file) | {"forked": {"from": found.hash, "step": step}}
        write_json(target.environment_file, about)
        # The time up to here counts in the run that was trained.
        save_checkpoint(target.checkpoints, tensors, {**state, "times": {}}, config.hash)
    return True


def _step_settings(config: RunConfig, step: int, switch_step: int | None) -> tuple[object, ...]:
    """Return everything at step 0, 1, ... that the `COMPARED` settings decide."""
    training, delay = config.training, config.delay
    stage = stage_at(delay, step, switch_step)
    factors = None if switch_step is None else (training.recurrence_factor, training.attention_factor)
    batch_size = (training.delayed if stage.phase == "delayed" else training.full).batch_size
    return stage, rate_of_step(training, delay, switch_step, step), factors, batch_size
