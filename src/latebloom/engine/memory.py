"""How many runs fit on a GPU at once, measured with one and two runs."""

from dataclasses import replace

import torch

from latebloom.config import RunConfig
from latebloom.engine.process_state import preserve_torch_state
from latebloom.engine.trainer import Trainer
from latebloom.errors import ConfigError

SHARE = 0.4
"""The share of the free memory that a step may take; graphs take about as much again."""


def runs_that_fit(config: RunConfig, device: torch.device) -> int:
    """Return the number of runs of this shape that can be trained at once; raise if it is zero."""
    try:
        with preserve_torch_state(device):
            one, two = (_peak(config, device, count) for count in (1, 2))
    except torch.OutOfMemoryError:
        raise ConfigError(
            f"training: even one run does not fit into the memory of {torch.cuda.get_device_name(device)}; "
            "choose a smaller model.width, training.full.batch_size or training.length"
        ) from None
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    each = max(1, two - one)
    return max(1, int((SHARE * free - (one - each)) / each))


def _peak(config: RunConfig, device: torch.device, count: int) -> int:
    """Return the peak memory in bytes of one step at the longest length, with `count` runs."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    configs = [replace(config, seed=seed, delay=None) for seed in range(count)]
    Trainer(configs, device, stacked=True, capture=False).rehearse()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
