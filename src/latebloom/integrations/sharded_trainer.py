"""Transformers' Trainer with weights, gradients and the optimizer's state divided among processes (FSDP2)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch import Tensor
from torch.optim import Optimizer
from transformers import Trainer

SHARDING: dict[str, Any] = {"fsdp": True, "fsdp_config": {"version": 2, "state_dict_type": "FULL_STATE_DICT"}}
"""Arguments for TrainingArguments. Checkpoints hold whole tensors, which torch reads without unpickling objects; the
index of its sharded checkpoints is a pickle."""


class ShardedTrainer(Trainer):
    """Trainer under FSDP2, with AdamW, whose checkpoints can be resumed while attention is held back.

    It also divides models on CPUs, where Accelerate (1.15) ignores the settings of FSDP without a word.
    """

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        state: Any = self.accelerator.state
        if state.distributed_type == DistributedType.MULTI_CPU:
            settings: Any = self.args.fsdp_plugin_args
            plugin = FullyShardedDataParallelPlugin(**settings)
            if state.mixed_precision != "no":
                plugin.set_mixed_precision(state.mixed_precision)
            state.fsdp_plugin = plugin
            # Accelerate keeps the way to train in both, and copies the second to the first now and then.
            state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.is_fsdp_enabled = True

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        with complete_state(_inner(self.optimizer)):
            super()._save_optimizer_and_scheduler(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        states = _inner(self.optimizer).state
        for parameter in [one for one, state in states.items() if float(state["step"]) == 0]:
            del states[parameter]


@contextmanager
def complete_state(optimizer: Optimizer) -> Iterator[None]:
    """Give parameters without a state, such as those held back, the one before a first step of Adam.

    The distributed checkpoints of torch cannot be loaded if a parameter has no state.
    """
    state = optimizer.state
    like = next((one for one in state.values() if one), {})
    without = [one for group in optimizer.param_groups for one in group["params"] if not state.get(one)]
    for parameter in without:
        state[parameter] = {
            name: torch.zeros_like(value if value.ndim == 0 else parameter) for name, value in like.items()
        }
    try:
        yield
    finally:
        for parameter in without:
            del state[parameter]


def _inner(optimizer: Any) -> Optimizer:
    """Return the optimizer that Accelerate has wrapped."""
    return getattr(optimizer, "optimizer", optimizer)


def gather_weights(trainer: Trainer) -> dict[str, Tensor]:
    """Return the whole weights to the first process, tied ones once; all processes must call it."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    weights: dict[str, Any] = trainer.accelerator.get_state_dict(trainer.model)
    return {name: weight for name, weight in weights.items() if name not in model.all_tied_weights_keys}
