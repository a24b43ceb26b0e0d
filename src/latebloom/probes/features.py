"""The recurrent states and the residual stream of a model at some tokens, with the running state as labels.

Shapes: B sequences, T tokens, D width, A positions, F features, N samples.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from latebloom.evaluation.accuracy import evaluating
from latebloom.probes.subject import Subject
from latebloom.tasks.task import Batch, Task

Features = dict[tuple[str, int], Tensor]
"""By kind (`state`: of the recurrence, `stream`: what the layers after it read) and layer: (N, F)."""


def running_task(task: Task) -> Task:
    """Return the task with the running state supervised at every item, if it can be; its sequences are the same."""
    names = {field.name for field in fields(task)} if is_dataclass(task) else set()
    return replace(task, supervision="aligned") if "supervision" in names else task


def labelled(subject: Subject, batch: Batch, most: int, late: bool) -> tuple[Tensor, Tensor]:
    """Return positions and the state after them, (B, A), at most `most` of them: evenly spread, or the last ones."""
    columns = batch.columns[subject.task.state_answer or ""]
    count = columns.stop - columns.start
    first = max(0, count - most) if late else 0
    chosen = torch.linspace(first, count - 1, min(most, count)).round().long() + columns.start
    return batch.positions[:, chosen], batch.targets[:, chosen]


def read_features(subject: Subject, length: int, sequences: int, most: int, *, late: bool) -> tuple[Features, Tensor]:
    """Return the features at positions where the state is known, and the state there (N,)."""
    found: dict[tuple[str, int], list[Tensor]] = {}
    labels: list[Tensor] = []
    probed = replace(subject, task=running_task(subject.task))
    with evaluating(subject.model), torch.inference_mode():
        for batch in probed.batches(length, sequences):
            positions, states = labelled(probed, batch, most, late)
            labels.append(states.flatten())
            for key, value in _read(subject, batch.tokens, positions):
                found.setdefault(key, []).append(value.flatten(0, 1).float())
    return {key: torch.cat(parts) for key, parts in found.items()}, torch.cat(labels)


def _read(subject: Subject, tokens: Tensor, positions: Tensor) -> Iterator[tuple[tuple[str, int], Tensor]]:
    """Yield the features (B, A, F) of each recurrent layer."""
    inputs: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}
    with ExitStack() as undo:
        for layer, module in enumerate(subject.mixers):
            body = module.body if subject.is_own else module

            def keep_input(_: Any, arguments: Any, layer: int = layer) -> None:
                inputs[layer] = arguments[0]

            def keep_output(_: Any, arguments: Any, output: Any, layer: int = layer) -> None:
                outputs[layer] = output[0] if isinstance(output, tuple) else output

            if subject.is_own:
                undo.callback(body.register_forward_pre_hook(keep_input).remove)
            undo.callback(module.register_forward_hook(keep_output).remove)
        subject.logits(tokens, positions[:, -1:])
    for layer, module in enumerate(subject.mixers):
        if subject.is_own:
            yield ("state", layer), _states(module.body, inputs[layer], positions)
        if outputs[layer].dim() == 3 and outputs[layer].shape[:2] == tokens.shape:  # not a convolution's (B, D, T)
            yield ("stream", layer), _at(positions, outputs[layer])


def _states(body: Any, x: Tensor, positions: Tensor) -> Tensor:
    """Return the state (B, A, F) of a recurrent layer after the tokens at some positions: it is run token by token."""
    state, kept = None, None
    wanted = {int(place) for place in positions.unique()}
    for t in range(max(wanted) + 1):
        _, state = body(x[:, t : t + 1], state)
        if t in wanted:
            flat = torch.cat([one.flatten(1) for one in tree_leaves(state) if isinstance(one, Tensor)], dim=1)
            kept = flat.new_zeros(*positions.shape, flat.shape[1]) if kept is None else kept
            kept = torch.where((positions == t)[:, :, None], flat[:, None], kept)
    assert kept is not None
    return kept


def _at(positions: Tensor, x: Tensor) -> Tensor:
    return x.gather(1, positions[:, :, None].expand(-1, -1, x.shape[2]))
