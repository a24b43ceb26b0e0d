"""Train a language model with Transformers' Trainer, jointly or with delayed attention.

A run is a folder and can be resumed: `settings.json` has the settings, `checkpoints` those of Trainer, `metrics.jsonl`
its log, `model` the trained model with its tokenizer, and `result.json`, which is written last, the outcome.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch

from latebloom.delay.bypass import bypass_attention
from latebloom.delay.find import Found, find_attention
from latebloom.delay.policy import Hold, check_trigger
from latebloom.delay.triggers import AtFraction, Trigger
from latebloom.delay.undisturbed import reshard
from latebloom.differences import describe_differences
from latebloom.engine.environment import describe_environment
from latebloom.engine.files import write_file, write_json
from latebloom.errors import ConfigError, NonFiniteLossError, catch_write_errors
from latebloom.fields import Count, Positive, at_least, check_fields
from latebloom.lm.checkpoints import (
    CHECKPOINTS,
    ENVIRONMENT,
    RESULT,
    SEALED,
    is_first_process,
    is_sealed,
    newest_checkpoint,
    reopen_if_damaged,
    step_of,
)
from latebloom.lm.corpus import Corpus
from latebloom.lm.extra import begin_folder, need_transformers
from latebloom.lm.losses import LastTokens, last_losses
from latebloom.lm.saved import read_saved
from latebloom.lm.seal import seal_result
from latebloom.lm.sizes import build_model
from latebloom.lm.until import held_out_multiple, read_trigger
from latebloom.lm.windows import TrainingWindows, scored_windows, stack, window_batch
from latebloom.lm.work import Work

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer

SETTINGS, METRICS, MODEL = "settings.json", "metrics.jsonl", "model"
HELD_OUT_DOCUMENTS = 16
"""Validation documents on which triggers measure the loss."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """The settings of one training run."""

    model: dict[str, Any]
    """The configuration of the model, as Transformers writes it."""
    corpus: str
    """The folder of the corpus."""
    context: Annotated[int, at_least(8)]
    """Tokens of a training window."""
    batch: Count
    """Windows of a batch, on each process."""
    steps: Count
    """Optimizer steps."""
    learning_rate: Positive
    """Its peak: a warm-up over 5% of the steps, then a cosine."""
    until: str | None = None
    """The trigger that ends the delay, see `latebloom.lm.until`; None for joint training."""
    hold: Hold = "bypass"
    """How attention is held back."""
    ramp_steps: Annotated[int, at_least(0)] = 0
    """With hold ramp: the steps in which attention's output rises after the switch."""
    latest: Annotated[int, at_least(0)] = 0
    """The last step of a trigger that awaits something; by default half of the steps."""
    weight_decay: Annotated[float, at_least(0)] = 0.1
    bf16: bool = False
    """Mixed precision with bfloat16."""
    shard: bool = False
    """Divide weights, gradients and the optimizer's state among the processes (FSDP2)."""
    without_attention: bool = False
    """Leave the attention of a hybrid out for good: the recurrence alone."""
    random_windows: bool = False
    """Limit attention at every step to a random window, see `latebloom.lm.random_windows`."""
    seed: Annotated[int, at_least(0)] = 0
    log_every: Count = 20
    save_every: Count = 200
    """Steps between checkpoints, rounded up to a multiple of `log_every`."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.without_attention and (self.until is not None or self.random_windows):
            raise ConfigError("without_attention: there is no attention to delay or to limit; leave out one of the two")

    def trigger(self) -> Trigger:
        """Return the trigger; joint training has one without effect."""
        if self.until is None:
            return AtFraction(fraction=0.5)
        trigger = read_trigger(self.until, self.latest or max(1, self.steps // 2), self.log_every)
        check_trigger(trigger, self.steps)
        return trigger


class HeldOutLoss:
    """The loss on the same tokens of validation documents, at any multiple of the training context."""

    def __init__(self, model: "PreTrainedModel", corpus: Corpus, context: int) -> None:
        self.model, self.corpus, self.context = model, corpus, context
        self.tokens = corpus.split("validation")

    def __call__(self, multiple: float) -> float:
        length, scored = round(multiple * self.context), min(64, self.context // 2)
        windows = scored_windows(self.corpus, "validation", length, scored, HELD_OUT_DOCUMENTS)
        loss = last_losses(LastTokens(self.model), window_batch(self.tokens, windows, length), scored).mean()
        reshard(self.model)
        return float(loss)

    def probability(self, multiple: float) -> float:
        """Return the geometric mean of the probabilities of the right tokens, which `when_beyond` compares."""
        return exp(-self(multiple))


def train(settings: Training, folder: Path, *, track: str | None = None, work: Work | None = None) -> dict[str, Any]:
    """Train a run in a folder, or continue it from its last checkpoint; return the outcome. A finished run is read."""
    need_transformers()
    from transformers import TrainerState

    if settings.shard and int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise ConfigError("shard: there is one process; start several with torchrun --nproc-per-node N -m latebloom")
    if (folder / RESULT).exists():
        _check_same(folder, settings)
        if not reopen_if_damaged(folder, settings.steps):
            return read_saved(folder / RESULT)
    corpus = Corpus.load(Path(settings.corpus))
    trigger = settings.trigger()
    TrainingWindows(corpus.split("train"), settings.context)  # refuse before anything is written
    model, kernels = build_model(settings.model, settings.seed, corpus.vocabulary, settings.context)
    multiple = held_out_multiple(trigger) or getattr(trigger, "multiple", None)
    if multiple is not None:  # refuse before the work if there is no text for it
        HeldOutLoss(model, corpus, settings.context)(multiple)
    hybrid = find_delayed(model, settings)[0] and not settings.without_attention
    with catch_write_errors(folder), _tracker_settings(folder, track):
        _begin(folder, settings, corpus, kernels)
        resumed = newest_checkpoint(folder / CHECKPOINTS, with_digests=is_sealed(folder))
        over = resumed if resumed is not None and step_of(resumed) >= settings.steps else None
        # Trainer leaves out weights of some families; in a hybrid that goes on, the callback restores them.
        if resumed is not None and (over is not None or not hybrid):
            model = type(model).from_pretrained(resumed, dtype=torch.float32)
        if settings.without_attention:
            bypass_attention(model)
        trainer, delay = build_trainer(model, settings, corpus, folder, track, work)
        began, used = time.monotonic(), time.process_time()
        if over is not None:  # killed before the outcome was written; Trainer would do one more step
            trainer.state = TrainerState.load_from_json(str(over / "trainer_state.json"))
        else:
            trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
        cost: dict[str, float] = {"resumed_at": 0 if resumed is None else step_of(resumed)}
        cost |= {"seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(time.process_time() - used, 1)}
        weights: dict[str, Any] | None = None
        if settings.shard and over is None:
            from latebloom.integrations.sharded_trainer import gather_weights

            weights = gather_weights(trainer)
        if trainer.is_world_process_zero():
            return _finish(folder, settings, trainer, delay, corpus, cost, kernels, weights)
    return {}


def _begin(folder: Path, settings: Training, corpus: Corpus, kernels: dict[str, Any]) -> None:
    """Create the folder and write the settings; of several processes the first does."""
    if (folder / SETTINGS).exists():
        _check_same(folder, settings)
        return
    if not is_first_process():
        return
    begin_folder(folder, ENVIRONMENT)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    import transformers

    about = describe_environment(settings.seed, device) | {"transformers": transformers.__version__, "kernels": kernels}
    write_json(folder / ENVIRONMENT, about | {SEALED: True})
    write_json(folder / SETTINGS, _described(settings, corpus))


def _described(settings: Training, corpus: Corpus) -> dict[str, Any]:
    return {**json.loads(json.dumps(asdict(settings))), "corpus_hash": corpus.hash}


def _check_same(folder: Path, settings: Training) -> None:
    """Raise unless the run in the folder has these settings."""
    defaults = {item.name: item.default for item in fields(Training) if item.default is not MISSING}
    before = defaults | read_saved(folder / SETTINGS)  # a folder of before a setting was there lacks it
    wanted = _described(settings, Corpus.load(Path(settings.corpus)))
    before["corpus"] = wanted["corpus"]  # it may have moved; its hash counts
    if changed := describe_differences(before, wanted):
        raise ConfigError(f"out: {folder} was trained with other settings ({changed}); give a new folder")


def build_trainer(
    model: "PreTrainedModel",
    settings: Training,
    corpus: Corpus,
    folder: Path,
    track: str | None = None,
    work: Work | None = None,
) -> tuple["Trainer", Any]:
    """Return the Trainer of a run and its callback for the delay, which is None for a model that is no hybrid."""
    from transformers import PrinterCallback, Trainer, TrainingArguments
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    from latebloom.integrations.transformers import DelayedAttentionCallback
    from latebloom.lm.callbacks import HeldOutLog, Observer, Seal
    from latebloom.trackers.tracking import Tracker

    trigger, measure = settings.trigger(), HeldOutLoss(model, corpus, settings.context)
    delay, (hybrid, found) = None, find_delayed(model, settings)
    if hybrid and not settings.without_attention:
        # Joint training has the callback too: it restores weights that Trainer leaves out of a resume.
        hold, ramp = ("none", 0) if settings.until is None else (settings.hold, settings.ramp_steps)
        delay = DelayedAttentionCallback(trigger, hold=hold, ramp_steps=ramp, where=found, measure=measure.probability)
    on_gpu, kind, sharding = torch.cuda.is_available(), Trainer, dict[str, Any]()
    if settings.shard:
        from latebloom.integrations.sharded_trainer import SHARDING, ShardedTrainer

        kind, sharding = ShardedTrainer, SHARDING
    args = TrainingArguments(
        output_dir=str(folder / CHECKPOINTS),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, settings.steps // 20),
        adam_beta2=0.95,
        weight_decay=settings.weight_decay,
        bf16=settings.bf16,
        logging_steps=settings.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,  # the filter logs a loss of 0 in place of one that is not finite
        # An entry of the log is a mean since the one before, so a run must not be resumed between two of them.
        save_steps=-(-settings.save_every // settings.log_every) * settings.log_every,
        save_total_limit=2,
        report_to="none",
        run_name=folder.name,
        disable_tqdm=True,
        use_cpu=not on_gpu,
        dataloader_pin_memory=on_gpu,
        seed=settings.seed,
        **sharding,
    )
    callbacks: list[Any] = [] if delay is None else [delay]
    if settings.random_windows:
        from latebloom.lm.random_windows import RandomWindows

        attention = find_attention(model)
        if attention is None or not attention.matched:
            raise ConfigError("random_windows: no attention was found in this model")
        callbacks.append(RandomWindows(model, attention.matched, settings.seed, settings.context))
    if (multiple := held_out_multiple(trigger)) is not None:
        callbacks.append(HeldOutLog(measure, multiple, settings.log_every))
    if track is not None:
        Tracker.named(track, "track").check()
        callbacks += get_reporting_integration_callbacks([track])
    callbacks += [Observer(work or Work()), Seal()]
    trainer = kind(
        model=model,
        args=args,
        train_dataset=TrainingWindows(corpus.split("train"), settings.context),
        data_collator=stack,
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    for one in callbacks:
        if isinstance(one, HeldOutLog):
            one.log = trainer.log
    return trainer, delay


@contextmanager
def _tracker_settings(folder: Path, track: str | None) -> Iterator[None]:
    """Let a tracker write into the folder of the run, unless the user has set where, until training ends."""
    wanted = {  # by tracker, because Transformers prints a line wherever WANDB_MODE is set
        "tensorboard": {"TENSORBOARD_LOGGING_DIR": str(folder / "tensorboard")},
        "wandb": {"WANDB_MODE": "offline", "WANDB_DIR": str(folder)},
    }
    added = {name: value for name, value in wanted.get(track or "", {}).items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def find_delayed(model: "PreTrainedModel", settings: Training) -> tuple[bool, Found | None]:
    """Return whether attention is beside something else, and what was found, before the model is divided among
    processes; raise if attention is to be delayed and cannot be."""
    found = find_attention(model, leaves_out=settings.until is not None and settings.hold in ("bypass", "ramp"))
    try:
        if found is not None:
            found.check(())
    except ConfigError as error:
        if settings.until is not None:
            reason, *advice = re.split("; (?:if this is intended|name it with)", str(error))
            if not advice:
                raise
            # The advice is the argument `where`, which no command has.
            raise ConfigError(f"{reason}; a delay needs a hybrid of attention and a recurrence") from None
        return False, None  # a Transformer or a recurrence alone can be trained jointly
    return True, found


def _finish(
    folder: Path,
    settings: Training,
    trainer: "Trainer",
    delay: Any,
    corpus: Corpus,
    cost: dict[str, float],
    kernels: dict[str, Any],
    weights: dict[str, Any] | None,
) -> dict[str, Any]:
    """Write the model, the log and the outcome; `cost` is that since the run was last resumed.

    `weights` are those of the model if it does not hold all of them itself.
    """
    history: Sequence[dict[str, Any]] = trainer.state.log_history
    losses = [entry["loss"] for entry in history if "loss" in entry]
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    found = model.state_dict() if weights is None else weights
    if not all(bool(one.isfinite().all()) for one in found.values()):  # since the last entry of the log
        raise NonFiniteLossError("the weights are not finite; use a smaller --learning-rate and a new folder")
    model.save_pretrained(folder / MODEL, state_dict=weights)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(corpus.folder / name, folder / MODEL / name)
    steps = [entry for entry in history if "train_runtime" not in entry]  # the summary counts from the last resume
    write_file(folder / METRICS, "".join(f"{json.dumps(entry, sort_keys=True)}\n" for entry in steps).encode())
    held: Any = None
    if settings.until is not None and delay.delay is not None:
        held = delay.delay.state_dict()
    elif settings.until is not None:  # training was over, and the checkpoint has the state of the delay
        saved: Any = trainer.state.stateful_callbacks
        held = saved[type(delay).__name__]["attributes"]["delay_state"]
    processes = trainer.args.world_size
    result = {
        "steps": trainer.state.global_step,
        "tokens": trainer.state.global_step * settings.batch * settings.context * processes,
        "parameters": sum(one.numel() for one in model.parameters()),
        "processes": processes,
        "final_loss": losses[-1] if losses else None,
        "switch_step": None if held is None else held["switch_step"],
        "switch_reason": None if held is None else held["switch_reason"],
        **cost,
        "kernels": kernels,
    }
    files = [folder / METRICS, *(file for file in (folder / MODEL).rglob("*") if file.is_file())]
    result = seal_result(folder, result, files)
    write_json(folder / RESULT, result)
    return result
