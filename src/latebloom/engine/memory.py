"""Memory: whether a run fits at all, and how many runs fit on a GPU at once, measured with one and two runs."""

import os
from dataclasses import replace

import torch

from latebloom.config import RunConfig
from latebloom.engine.process_state import preserve_torch_state
from latebloom.engine.trainer import Trainer
from latebloom.errors import ConfigError
from latebloom.models.match import count_parameters

SHARE = 0.4
"""The share of the free memory that a step may take; graphs take about as much again."""
GENEROUS = 30
"""How many times `least_memory` a short sequence's step is said to take; it takes about ten times that."""


def check_memory(config: RunConfig, device: torch.device) -> None:
    """Raise if a run needs more memory than the machine has; nothing is allocated."""
    needed, there = least_memory(config), memory_of(device)
    if needed > there:
        raise ConfigError(
            f"training: this run needs at least {needed / 2**30:,.0f} GiB of memory, and {device} has "
            f"{there / 2**30:,.0f} GiB; choose a smaller model.width, model.blocks, batch_size or vocabulary of the "
            "task, or give --yes to try"
        )


def least_memory(config: RunConfig) -> int:
    """Return the bytes that a run needs at least: weights, gradients and both moments of AdamW, and one output of every
    block for each token of a batch."""
    model, training = config.model, config.training
    tokens = _largest_batch(config) * config.task.token_count(training.length)
    return 16 * count_parameters(model, config.task.vocabulary_size) + 4 * tokens * model.width * model.blocks


def _largest_batch(config: RunConfig) -> int:
    """Return the largest number of sequences in a step; joint training has the batches of the full phase only."""
    full, delayed = config.training.full.batch_size, config.training.delayed.batch_size
    return full if config.delay is None else max(full, delayed)


def memory_of(device: torch.device) -> int:
    """Return the bytes of memory of a device or, for a CPU, of the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def fits_clearly(config: RunConfig, device: torch.device, runs: int) -> bool:
    """Return whether so many runs fit so easily into the free memory of a GPU that it need not be measured.

    The kernels keep about ten numbers a unit, attention without a kernel a few a pair of tokens, and the loss three a
    word of the vocabulary and supervised token.
    """
    tokens = config.task.token_count(config.training.length)
    generous = GENEROUS * least_memory(config) * (1 + tokens / config.model.width)
    generous += 12 * _largest_batch(config) * tokens * config.task.vocabulary_size
    free, _ = torch.cuda.mem_get_info(device)
    return runs * generous < SHARE * free


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
    largest_step(config, device, count)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def largest_step(config: RunConfig, device: torch.device, count: int) -> None:
    """Do the step of `count` runs that takes the most memory: with attention, at the longest length."""
    full = replace(config.training.full, batch_size=_largest_batch(config))
    joint = replace(config, delay=None, training=replace(config.training, full=full))
    Trainer([replace(joint, seed=seed) for seed in range(count)], device, stacked=True, capture=False).rehearse()
