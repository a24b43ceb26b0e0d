"""Delayed attention in Transformers' Trainer.

    Trainer(..., callbacks=[DelayedAttentionCallback(until=at_step(6_000))])

The delay begins when training begins, is saved with every checkpoint and restored with it. Gate and phase stand in the
log as `attention_gate` and `attention_held`; Trainer calls its `report_to` reporters before any callback of one's own,
so a reporter that shall show them is given after this one: `callbacks=[DelayedAttentionCallback(...), Reporter()]`.
"""

import warnings
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from latebloom.delay.triggers import AtTokens, WhenPlateau
from latebloom.errors import ConfigError
from latebloom.integrations.callback import DelayCallback


class DelayedAttentionCallback(DelayCallback, TrainerCallback, ExportableState):
    """Holds the model's attention back until the trigger fires."""

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        if args.restore_callback_states_from_checkpoint:
            raise ConfigError(
                "delay: restore_callback_states_from_checkpoint would build this callback anew without its settings; "
                "leave it away, the delay restores itself"
            )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        if isinstance(self.until, AtTokens) and args.include_num_input_tokens_seen == "no":
            raise ConfigError("until: at_tokens takes TrainingArguments(include_num_input_tokens_seen=True)")
        callbacks: Any = state.stateful_callbacks  # by name, once training begins
        saved = callbacks.get(type(self).__name__)
        if state.global_step > 0 and saved is None:
            raise self._refuse_to_guess(state.global_step)
        resumed = saved["attributes"]["delay_state"] if state.global_step > 0 else None
        self._begin(parts["model"], parts["optimizer"], state.max_steps, resumed)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        if self.delay is not None:  # the trigger is asked in the optimizer's step, so that it must know by then
            self.delay.tokens = int(state.num_input_tokens_seen)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **parts: Any
    ) -> None:
        if self.delay is None or not logs:
            return
        if isinstance(self.until, WhenPlateau) and self.until.metric in logs:
            self.delay.report(logs[self.until.metric])
        seen = {"attention_gate": self.delay.gate, "attention_held": float(self.delay.attention_held)}
        logs.update(seen)
        if state.log_history:
            state.log_history[-1].update(seen)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        best = state.best_global_step if args.load_best_model_at_end else None
        switch = None if self.delay is None else self.delay.switch_step
        if self.delay is None or best is None or switch is None or best >= switch:
            self._end()
            return
        warnings.warn(
            f"delay: the best model is of step {best}, before attention was let in at step {switch}; attention is left "
            "out again, as it was never trained in it",
            stacklevel=2,
        )
        self.delay.load_state_dict({**self.delay.state_dict(), "switch_step": None, "switch_reason": None})

    def state(self) -> dict[str, Any]:
        """What Trainer writes into a checkpoint for this callback."""
        return {"args": {}, "attributes": {"delay_state": None if self.delay is None else self.delay.state_dict()}}
