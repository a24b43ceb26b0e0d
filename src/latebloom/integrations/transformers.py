"""Delayed attention in Transformers' Trainer.

    Trainer(..., callbacks=[DelayedAttentionCallback(until=at_step(6_000))])

The delay begins when training begins, is saved with every checkpoint and restored with it. The gate is logged as
`attention_gate` and `attention_held`. Trainer calls the `report_to` reporters before other callbacks, so pass a
reporter that should show them after this one: `callbacks=[DelayedAttentionCallback(...), Reporter()]`.
"""

import json
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from latebloom.delay.marks import awaiting, entry_for
from latebloom.delay.triggers import AtTokens, WhenPlateau
from latebloom.errors import ConfigError, warn_user
from latebloom.integrations.callback import DelayCallback
from latebloom.integrations.weights import checksums, restore_weights

SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")
"""Ways to train whose checkpoints have the model's own names, and whose weights no process holds alone."""


class DelayedAttentionCallback(DelayCallback, TrainerCallback, ExportableState):
    """Hold the attention of the model back until the trigger fires."""

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        if args.restore_callback_states_from_checkpoint:
            raise ConfigError(
                "delay: restore_callback_states_from_checkpoint would rebuild this callback without its settings; "
                "do not set it, the delay is restored without it"
            )
        if parts.get("model") is not None:
            awaiting.add(parts["model"])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        if isinstance(self.until, AtTokens) and args.include_num_input_tokens_seen == "no":
            raise ConfigError("until: at_tokens needs TrainingArguments(include_num_input_tokens_seen=True)")
        callbacks: Any = state.stateful_callbacks  # by name, once training begins
        saved = callbacks.get(type(self).__name__)
        if state.global_step > 0 and saved is None:
            raise self._missing_state(state.global_step)
        resumed = None
        if state.global_step > 0:
            resumed = saved["attributes"]["delay_state"]
            folder = args.resume_from_checkpoint or f"{args.output_dir}/checkpoint-{state.global_step}"
            restore_weights(parts["model"], saved["attributes"].get("weights", {}), Path(folder))
        self._begin(parts["model"], parts["optimizer"], state.max_steps, resumed)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        if self.delay is not None:  # the trigger is evaluated in the optimizer's step
            self.delay.tokens = int(state.num_input_tokens_seen)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **parts: Any
    ) -> None:
        if self.delay is None or not logs:
            return
        if isinstance(self.until, WhenPlateau) and self.until.metric in logs:
            self.delay.report(logs[self.until.metric])
        logged = {"attention_gate": self.delay.gate, "attention_held": float(self.delay.attention_held)}
        logs.update(logged)
        if state.log_history:
            state.log_history[-1].update(logged)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        # A model without save_pretrained is written by Trainer itself, which keeps nothing but tensors.
        file = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / "model.safetensors"
        entry = {} if self.delay is None else entry_for(self.delay.model)
        if entry and args.should_save and not hasattr(parts["model"], "save_pretrained") and file.exists():
            save_file({**load_file(file), **entry}, file, metadata={"format": "pt"})

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        best = state.best_global_step if args.load_best_model_at_end else None
        if best is not None and self.delay is not None:
            folder = Path(str(state.best_model_checkpoint))
            saved = json.loads((folder / "trainer_state.json").read_text())["stateful_callbacks"][type(self).__name__]
            restore_weights(self.delay.model, saved["attributes"].get("weights", {}), folder)
        switch = None if self.delay is None else self.delay.switch_step
        if self.delay is None or best is None or switch is None or best >= switch:
            self._end()
            return
        warn_user(
            f"delay: the best model is of step {best}, before attention was enabled at step {switch}; attention is "
            "left out again, because it was not trained in this model"
        )
        self.delay.load_state_dict({**self.delay.state_dict(), "switch_step": None, "switch_reason": None})

    def state(self) -> dict[str, Any]:
        """Return the state that Trainer saves in a checkpoint for this callback."""
        if self.delay is None:
            return {"args": {}, "attributes": {"delay_state": None}}
        sharded = AcceleratorState().distributed_type in SHARDED
        weights = {} if sharded else checksums(self.delay.model.state_dict())
        return {"args": {}, "attributes": {"delay_state": self.delay.state_dict(), "weights": weights}}
