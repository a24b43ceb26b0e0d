"""Upgrade of the checkpoints of earlier versions."""

from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, dict[str, Tensor]]


def upgrade(tensors: Tensors, state: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Return tensors and state of a checkpoint in the current format.

    In format 1 a single run had its own format without an axis of runs, and stacks called their runs members.
    """
    trainer = state["trainer"]
    if "runs" in trainer:
        return tensors, state
    if "members" in trainer:
        return tensors, {**state, "trainer": {"step": trainer["step"], "runs": trainer["members"]}}
    delay = trainer["delay"] or {"switch_step": None, "switch_reason": None, "memory": {}}
    run = {name: delay[name] for name in ("switch_step", "switch_reason", "memory")}
    run |= {"summed": trainer["summed"], "failed_step": None, "phase_done": "", "rate_done": 0.0}
    sums = {"sums": tensors["sums"]["sums"][None], "first_bad": torch.full((1,), -1)}
    return {**tensors, "sums": sums}, {
        **state,
        "trainer": {"step": trainer["step"], "runs": [run]},
        "journals": [state["journal"]],
    }
