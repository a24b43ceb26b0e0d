"""Watch or change what attention computes: queries, keys, values, scores, weights and outputs of every head.

In a model of this package every score function is computed from its specification, tile by tile, so that memory does
not grow with the square of the length. In other models the calls of `scaled_dot_product_attention` are computed here
instead; where attention is written with a softmax, scores and weights can be changed, and the rest is not seen.

Shapes: B sequences, H heads, T tokens, E features per head, R queries and K keys of a tile.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from latebloom.delay.bypass import attach
from latebloom.delay.gate import Gate
from latebloom.errors import ConfigError
from latebloom.evaluation.accuracy import evaluating
from latebloom.layers.attention.layer import SelfAttention
from latebloom.layers.attention.operation import split_heads
from latebloom.layers.attention.tiles import NUMBERS_AT_ONCE, scores_of, tiles
from latebloom.probes.stack import Stack
from latebloom.probes.subject import Subject
from latebloom.tasks.task import Batch


@dataclass(frozen=True)
class Place:
    """Where a tile of scores stands."""

    layer: int
    queries: Tensor
    """(R,) token positions."""
    keys: Tensor
    """(K,) token positions."""

    @property
    def distance(self) -> Tensor:
        """How far each key is behind each query, (R, K)."""
        return self.queries[:, None] - self.keys


class Edit:
    """Sees and may change what attention computes; this one changes nothing."""

    def inputs(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values to use, each (B, H, T, E)."""
        return q, k, v

    def scores(self, scores: Tensor, place: Place) -> Tensor:
        """Return the scores (B, H, R, K) to use; they are -inf for keys that a query does not attend to."""
        return scores

    def weights(self, weights: Tensor, visible: Tensor, place: Place) -> Tensor:
        """Return the weights (B, H, R, K) to use; `visible` says which keys a query attends to."""
        return weights

    def outputs(self, layer: int, mixed: Tensor) -> Tensor:
        """Return the weighted values (B, H, T, E) to use."""
        return mixed

    @property
    def is_scores_only(self) -> bool:
        """Whether it leaves queries, keys, values and outputs alone, so that a softmax is enough to apply it."""
        kind = type(self)
        return kind.inputs is Edit.inputs and kind.outputs is Edit.outputs


class Sums(Edit):
    """An edit that changes nothing, and sums what it sees."""

    def __init__(self) -> None:
        self.sums: dict[Any, Tensor] = {}

    def add(self, name: Any, seen: Tensor) -> None:
        """Add what was seen in a tile to a sum."""
        self.sums[name] = self.sums.get(name, 0) + seen


def summed(
    stack: Stack,
    length: int,
    sequences: int,
    watch: Callable[..., Sums],
    given: Callable[[Batch], tuple[Tensor, ...]] = lambda batch: (),
) -> dict[Any, Tensor]:
    """Return the sums over all test sequences of a length, with a leading axis S of models.

    `watch(*arguments)` makes the edit for a batch of one model; `given` returns the arguments with an axis S.
    """

    def watched(model: Any, batch: Batch, *arguments: Tensor) -> dict[Any, Tensor]:
        sums = watch(*arguments)
        with edited(stack.first, sums):
            model(batch.tokens, batch.positions[:, -1:])
        return sums.sums

    found: dict[Any, Tensor] = {}
    with evaluating(stack.first.model), torch.inference_mode():
        for batch in stack.batches(length, sequences):
            part = stack.each_batch(watched, batch, *given(batch))
            found = {name: found.get(name, 0) + seen for name, seen in part.items()}
    return found


@contextmanager
def edited(subject: Subject, edit: Edit) -> Iterator[None]:
    """Apply an edit to all attention of a model while the context lasts."""
    modules: list[Any] = [subject.model.get_submodule(path) for path in subject.attention]
    with ExitStack() as undo:
        if subject.is_own:
            for layer, module in enumerate(modules):
                undo.enter_context(_forward(module.body, layer, edit))
            yield
            return
        mode = _Functions(edit)
        for layer, module in enumerate(modules):
            mode.watch(module, layer, undo)
        with mode:
            yield
    if not mode.seen:
        raise ConfigError(
            f"probe: the attention of {type(subject.model).__name__} is neither scaled_dot_product_attention nor a "
            "softmax over (sequences, heads, queries, keys), so it cannot be changed; build a model of Transformers "
            "with attn_implementation='sdpa' or 'eager'"
        )


@contextmanager
def without_attention(subject: Subject, layers: Iterable[int] | None = None) -> Iterator[None]:
    """Leave attention out of a model while the context lasts, in all layers or in some."""
    chosen = range(len(subject.attention)) if layers is None else layers
    paths = [subject.attention[layer] for layer in chosen]
    if subject.is_own:
        parts: list[Any] = [subject.model.get_submodule(path) for path in paths]
        before = [part.gate for part in parts]
        try:
            for part in parts:
                part.gate = 0.0
            yield
        finally:
            for part, gate in zip(parts, before, strict=True):
                part.gate = gate
        return
    some = tuple(one for one in subject.found.attention if one.path in paths)
    attached = attach(subject.model, replace(subject.found, attention=some, refusals=()), Gate(0.0))
    try:
        yield
    finally:
        for one in reversed(attached):
            one.remove()


@contextmanager
def _forward(body: Any, layer: int, edit: Edit) -> Iterator[None]:
    """Replace what a `SelfAttention` computes before its output gate by the same through an edit."""
    if not isinstance(body, SelfAttention):
        raise ConfigError(f"probe: {type(body).__name__} is not the attention of this package")

    def mixed_through_edit(x: Tensor, times: Tensor | None, window: Tensor | None) -> Tensor:
        given = {} if times is None else {"times": times}
        visibility, x = body._visibility(window, x), body.positions.inputs(x, **given)
        q, k, v = split_heads(*body._project(x, visibility), body.heads)
        q, k, v = edit.inputs(layer, *body.positions.queries_keys(q, k, **given), v)
        mixed = []
        for tile in tiles(q, visibility):
            place = Place(layer, *tile.places())
            scores = edit.scores(scores_of(q, k, tile, visibility), place)
            weights = edit.weights(body.scores.weights(scores, tile, x), scores > -torch.inf, place)
            mixed.append(weights @ v[..., tile.keys, :])
        return body.output(edit.outputs(layer, torch.cat(mixed, dim=-2)).transpose(1, 2).flatten(2))

    replaced: Any = body
    replaced._mixed = mixed_through_edit
    try:
        yield
    finally:
        del replaced._mixed


class _Functions(TorchFunctionMode):
    """Applies an edit to the attention functions that modules of other libraries call."""

    def __init__(self, edit: Edit) -> None:
        super().__init__()
        self.edit, self.seen = edit, False
        self._layers: list[int] = []

    def watch(self, module: nn.Module, layer: int, undo: ExitStack) -> None:
        """Count the calls inside a module as those of a layer."""

        def enter(*_: Any) -> None:
            self._layers.append(layer)

        def leave(*_: Any) -> None:
            self._layers.pop()

        undo.callback(module.register_forward_pre_hook(enter).remove)
        undo.callback(module.register_forward_hook(leave, always_call=True).remove)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        name = getattr(func, "__name__", "")
        if not self._layers:
            return func(*args, **named)
        if name == "multi_head_attention_forward":
            return self._multi_head(func, args, named)
        if name == "scaled_dot_product_attention":
            self.seen = True
            return self._attend(*args, **named)
        if name == "softmax":
            return self._softmax(func, args, named)
        return func(*args, **named)

    def _multi_head(self, function: Callable[..., Any], args: Any, named: dict[str, Any]) -> tuple[Tensor, Any]:
        """Compute the function behind `nn.MultiheadAttention` through the edit; the weights it returns are not edited.

        It would hand every call to an active mode again. So the mode stays off, and the function that it calls is
        exchanged.
        """
        weights = function(*args, **named)[1]
        given = signature(function).bind(*args, **named)
        given.arguments["need_weights"] = False  # otherwise it writes the softmax out
        whole = F.scaled_dot_product_attention
        F.scaled_dot_product_attention = self._attend
        self.seen = True
        try:
            return function(*given.args, **given.kwargs)[0], weights
        finally:
            F.scaled_dot_product_attention = whole

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Compute `scaled_dot_product_attention` through the edit, some queries at a time."""
        layer = self._layers[-1]
        if enable_gqa or k.shape[-3] != q.shape[-3]:
            k, v = (part.repeat_interleave(q.shape[-3] // part.shape[-3], dim=-3) for part in (k, v))
        q, k, v = self.edit.inputs(layer, q, k, v)
        tokens, keys = q.shape[-2], k.shape[-2]
        budget = NUMBERS_AT_ONCE.get(q.device.type, 1 << 22)
        rows = max(1, budget // max(1, q[..., :1].numel() // tokens * keys))
        places, mixed = torch.arange(keys, device=q.device), []
        for queries in torch.arange(tokens, device=q.device).split(rows):
            scores = q[..., queries, :] @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
            if is_causal:
                scores = scores.masked_fill(places > queries[:, None], -torch.inf)
            if attn_mask is not None:
                part = attn_mask[..., queries, :] if attn_mask.shape[-2] > 1 else attn_mask
                is_bool = part.dtype == torch.bool
                scores = scores.masked_fill(~part, -torch.inf) if is_bool else scores + part
            mixed.append(self._weigh(scores, Place(layer, queries + keys - tokens, places)) @ v)
        return self.edit.outputs(layer, torch.cat(mixed, dim=-2))

    def _weigh(self, scores: Tensor, place: Place) -> Tensor:
        # Libraries write the smallest number of a type where torch writes -inf.
        scores = scores.masked_fill(scores <= torch.finfo(scores.dtype).min / 2, -torch.inf)
        scores = self.edit.scores(scores, place)
        return self.edit.weights(F.softmax(scores, dim=-1).nan_to_num(0.0), scores > -torch.inf, place)

    def _softmax(self, function: Callable[..., Any], args: Any, named: dict[str, Any]) -> Tensor:
        """Apply the edit to a softmax over (B, H, T, T) scores; others, such as that of a router, stay as they are."""
        scores = args[0] if args else named["input"]
        dim = named.get("dim", args[1] if len(args) > 1 else -1)
        if scores.dim() != 4 or dim not in (-1, 3) or scores.shape[-1] != scores.shape[-2]:
            return function(*args, **named)
        if not self.edit.is_scores_only:
            raise ConfigError(
                "probe: this attention is written with a softmax, which shows neither its values nor its output; build "
                "the model with attn_implementation='sdpa'"
            )
        self.seen = True
        places = torch.arange(scores.shape[-1], device=scores.device)
        weights = self._weigh(scores.float(), Place(self._layers[-1], places, places))
        return weights.to(named.get("dtype") or scores.dtype)
