"""The recurrent states and the residual stream of a model at some tokens, with the running state as labels.

Shapes: S models, B sequences, T tokens, D width, A positions, F features, N samples.
"""

from contextlib import ExitStack
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from latebloom.evaluation.accuracy import evaluating
from latebloom.layers.rows import rows_at
from latebloom.models.sequence_model import PIECE
from latebloom.probes.stack import Stack
from latebloom.probes.subject import Subject
from latebloom.tasks.task import Batch, Task

Features = dict[tuple[str, int], Tensor]
"""By kind (`state`: of the recurrence, `stream`: what the layers after it read) and layer."""


def running_task(task: Task) -> Task:
    """Return the task with the running state supervised at every item, if it can be; its sequences are the same."""
    names = {field.name for field in fields(task)} if is_dataclass(task) else set()
    return replace(task, supervision="aligned") if "supervision" in names else task


def labelled(batch: Batch, state_answer: str, most: int, late: bool) -> tuple[Tensor, Tensor]:
    """Return positions and the state after them, (S, B, A), at most `most` of them: evenly spread, or the last ones."""
    columns = batch.columns[state_answer]
    count = columns.stop - columns.start
    first = max(0, count - most) if late else 0
    chosen = torch.linspace(first, count - 1, min(most, count)).round().long() + columns.start
    return batch.positions[..., chosen], batch.targets[..., chosen]


def read_features(
    stack: Stack, length: int, sequences: int, most: int, *, late: bool, seed_shift: int = 0
) -> tuple[Features, Tensor]:
    """Return the features (S, N, F) at positions where the state is known, and the state there (S, N)."""
    found: dict[tuple[str, int], list[Tensor]] = {}
    labels: list[Tensor] = []
    task = running_task(stack.task)
    with evaluating(stack.first.model), torch.inference_mode():
        for batch in stack.batches(length, sequences, task=task, seed_shift=seed_shift):
            positions, states = labelled(batch, stack.task.state_answer or "", most, late)
            labels.append(states.flatten(1))
            read = partial(_read, subject=stack.first, places=positions.unique().tolist())
            for key, value in stack.each(read, batch.tokens, positions).items():
                found.setdefault(key, []).append(value.flatten(1, 2).float())
    return {key: torch.cat(parts, dim=1) for key, parts in found.items()}, torch.cat(labels, dim=1)


def _read(model: Any, tokens: Tensor, positions: Tensor, subject: Subject, places: list[int]) -> Features:
    """Return the features (B, A, F) of each recurrent layer; `places` are all positions of the stack, in order."""
    found: Features = {}
    outputs: dict[int, Tensor] = {}
    with ExitStack() as undo:
        for layer, module in enumerate(subject.mixers):
            body = module.body if subject.is_own else module

            def keep_states(body: Any, arguments: Any, layer: int = layer) -> None:
                # In a stack the layer has the parameters of all models only while the whole module is called.
                found["state", layer] = _states(body, arguments[0], positions, places)

            def keep_output(_: Any, arguments: Any, output: Any, layer: int = layer) -> None:
                outputs[layer] = output[0] if isinstance(output, tuple) else output

            if subject.is_own:
                undo.callback(body.register_forward_pre_hook(keep_states).remove)
            undo.callback(module.register_forward_hook(keep_output).remove)
        # With positions, a long sequence without attention would be computed in pieces.
        model(tokens, positions[:, -1:] if tokens.shape[1] <= PIECE else None)
    for layer in range(len(subject.mixers)):
        if outputs[layer].dim() == 3 and outputs[layer].shape[:2] == tokens.shape:  # not a convolution's (B, D, T)
            found["stream", layer] = rows_at(positions, outputs[layer])
    return found


def _states(body: Any, x: Tensor, positions: Tensor, places: list[int]) -> Tensor:
    """Return the state (B, A, F) of a recurrent layer after the tokens at positions (B, A), which are all in `places`.

    The layer is run from place to place, and each time continues from its state.
    """
    state, kept, begin = None, None, 0
    for place in places:
        _, state = body.forward(x[:, begin : place + 1], state)  # without the hook from which this is called
        flat = torch.cat([one.flatten(1) for one in tree_leaves(state) if isinstance(one, Tensor)], dim=1)
        kept = torch.where((positions == place)[:, :, None], flat[:, None], 0.0 if kept is None else kept)
        begin = place + 1
    assert kept is not None
    return kept
