"""What the modules of a model do: which are attention, and which mix tokens in another way.

The decision goes by behaviour, not by the names of classes. Three passes over one example are recorded:

1. The model as it is. Functions such as `scaled_dot_product_attention` are attention. So is a softmax if two of its
   inputs depend on different tokens; the softmax of a router or of the logits is not.
2. The same with the results of attention replaced by zeros. A module whose output no longer depends on its input has no
   path around attention, and belongs to it. A module whose output at one token still depends on its input at another
   mixes tokens without attention.
3. The same with the modules that belong to attention replaced by zeros, as a delay does it: their biases are out too. A
   module on which the model's output no longer depends would not be trained.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from latebloom.delay.record import ROUNDING, Call, Event, Recording, depends, is_inside, random_sum, tokens_behind
from latebloom.delay.visible import attention_kernels, eager

Kind = Literal["self", "cross", "sliding"]
KINDS: tuple[Kind, ...] = ("self", "cross", "sliding")
POINTWISE = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity, nn.GELU, nn.SiLU, nn.ReLU)
"""Modules that never mix tokens and are called most often; leaving them out saves time."""


@dataclass(frozen=True)
class Attention:
    """One attention of a model."""

    path: str
    """The outermost module without a path around attention; the block, if attention is written inside its forward."""
    modules: tuple[str, ...]
    """The modules that act through attention alone, in the order of their calls; the gate is at the last one."""
    functions: tuple[str, ...] = ()
    """The attention functions that it calls; none for a module that was named."""
    kind: Kind = "self"
    """`cross` if the keys come from another input than the queries, `sliding` if only near tokens are attended to."""

    @property
    def inline(self) -> bool:
        """Whether the module does more than attention: it is a block, or has the residual path inside."""
        return self.path not in self.modules


@dataclass(frozen=True)
class Observation:
    """What the modules of a model do."""

    attention: tuple[Attention, ...]
    """The attention that is left out."""
    kept: dict[str, Kind]
    """Modules that call other attention."""
    mixers: tuple[str, ...]
    """The innermost modules outside attention that mix tokens."""
    severed: tuple[str, ...]
    """Modules with a mixer inside whose output depends on their input through attention alone."""
    starved: tuple[str, ...]
    """The outermost modules outside attention that get a gradient through attention alone."""


def observe(
    model: nn.Module, run: Callable[[], Any], kinds: Collection[Kind] = KINDS, named: Collection[str] = ()
) -> Observation:
    """Return what the modules of a model do when `run` calls it; the model is left as it was.

    Attention of these `kinds` is left out, and the modules that are `named`, whatever they do.
    """
    with undisturbed(model):
        known = attention_kernels()
        whole = Recording(model, run)
        if attention_kernels() != known:  # the first call has imported kernels, which were not seen
            whole = Recording(model, run)
        found: dict[int, Kind] = {}
        for index, event in enumerate(whole.events):
            is_named = any(is_inside(event.stack[-1].path, path) for path in named)
            if not is_named and (event.dim is None or _is_over_tokens(event)):
                found[index] = _kind(model, event)
        left_out = [found.get(index) in kinds for index in range(len(whole.events))]
        cut = Recording(model, run, left_out, named)
        if [event.function for event in cut.events] != [event.function for event in whole.events]:
            raise RuntimeError("without attention it calls other attention functions than with it")
        compared = _Comparison(model, whole, cut)
        attention = compared.find_attention(found, [index for index in found if left_out[index]], named)
        kept: dict[str, Kind] = {
            whole.events[index].stack[-1].path: kind for index, kind in found.items() if not left_out[index]
        }
        inside = [path for one in attention for path in one.modules]
        mixers = [
            path
            for path in compared.mixers
            if not any(is_inside(path, one) for one in inside) and not any(is_inside(one, path) for one in kept)
        ]
        held = _Comparison(model, whole, Recording(model, run, left_out, [*named, *inside]))
        severed = [path for path in cut.first if compared.has_lasting(path) and not held.is_connected(path)]
        return Observation(tuple(attention), kept, tuple(mixers), tuple(severed), tuple(held.starved(inside)))


class _Comparison:
    """A pass with attention beside one without it."""

    def __init__(self, model: nn.Module, whole: Recording, cut: Recording) -> None:
        self.modules, self.whole, self.cut = dict(model.named_modules()), whole, cut
        self._connected: dict[str, bool] = {}
        self._reaches: dict[str, Fraction] = {}

    def starved(self, inside: list[str]) -> list[str]:
        """Return the outermost modules with parameters, not `inside` attention, that are reached in the first alone."""
        found: list[str] = []
        before, after = self.whole.reached(), self.cut.reached()
        for path in sorted(path for path, size in before.items() if after.get(path, 0.0) <= ROUNDING * size):
            has_parameters = next(self.modules[path].parameters(), None) is not None
            if has_parameters and not any(is_inside(path, one) for one in [*inside, *found]):
                found.append(path)
        return found

    def find_attention(self, found: dict[int, Kind], left_out: list[int], named: Collection[str]) -> list[Attention]:
        events: dict[str, list[int]] = {path: [] for path in named if path in self.cut.first}
        for index in left_out:
            path = self.whole.events[index].stack[-1].path
            while path and not self._does_more(path) and not self._does_more(self.cut.parent(path)):
                path = self.cut.parent(path)
            events.setdefault(path, []).append(index)
        chains: dict[str, list[str]] = {}
        for path in events:
            chains[path] = [path] if path in named or not self._does_more(path) else []
        for path in reversed(events):  # a module that follows two of them belongs to the last
            self._extend(chains, path, [self.whole.events[index].output for index in events[path]])
        functions: dict[str, dict[str, Kind]] = {
            path: {self.whole.events[index].function: found[index] for index in events[path]} for path in events
        }
        return [
            Attention(path, tuple(chains[path]), tuple(calls), *list(calls.values())[:1])
            for path, calls in functions.items()
        ]

    def _extend(self, chains: dict[str, list[str]], path: str, results: list[Tensor]) -> None:
        """Add the modules of the block that read attention's result alone, such as a projection or a norm."""
        parent = self.cut.parent(path) if chains[path] else path
        results = results or self.whole.first[path].outputs[:1]
        for name, call in self.cut.first.items():
            if name == parent or not is_inside(name, parent) or self.has_lasting(name):
                continue
            if any(is_inside(name, one) for chain in chains.values() for one in chain):
                continue
            if depends(self.whole.first[name].inputs, results) and not depends(call.inputs, self._sources(parent)):
                chains[path].append(name)

    def _does_more(self, path: str) -> bool:
        """Return whether a module does more than attention."""
        return self.has_lasting(path) or self.is_connected(path)

    def is_connected(self, path: str) -> bool:
        """Return whether the first output of a module depends on its inputs without attention."""
        if path not in self._connected:
            self._connected[path] = depends(self.cut.first[path].outputs[:1], self._sources(path))
        return self._connected[path]

    def _sources(self, path: str) -> list[Tensor]:
        """Return the inputs of a module; for one that takes token ids, also what the embeddings inside it return."""
        call = self.cut.first[path]
        if self.whole.first[path].inputs and not call.takes_ids:
            return call.inputs
        embeddings = {name for name, one in self.whole.first.items() if not one.inputs} - {path}
        return [*call.inputs, *(tensor for one in call.inner if one.path in embeddings for tensor in one.outputs)]

    @cached_property
    def lasting(self) -> list[str]:
        """Mixers that reach over the whole example. Others, such as short convolutions, may be part of attention."""
        return [path for path in self.mixers if self._reach(path) == 1]

    def has_lasting(self, path: str) -> bool:
        return any(is_inside(mixer, path) for mixer in self.lasting)

    def _reach(self, path: str) -> Fraction:
        """Return over how much of the example a module mixes tokens, from 0 to 1."""
        if path not in self._reaches:
            module, call = self.modules[path], self.cut.first[path]
            reach = (
                _convolution_reach(module, call) if isinstance(module, nn.Conv1d) else _reach(call, self._sources(""))
            )
            self._reaches[path] = min(Fraction(1), reach)
        return self._reaches[path]

    @cached_property
    def mixers(self) -> list[str]:
        """The innermost modules that mix tokens without attention."""
        mixing, still = list[str](), list[str]()
        for path, call in self.cut.first.items():
            module = self.modules[path]
            if isinstance(module, POINTWISE) or any(is_inside(path, one) for one in still):
                continue
            if max(module.kernel_size) > 1 if isinstance(module, nn.Conv1d) else _mixes(call, self._sources("")):
                mixing.append(path)
            elif _keeps_tokens(call) and not _mixes(self.whole.first[path], []):
                still.append(path)  # nothing inside it mixes tokens either
        found = list[str]()
        for path in reversed(mixing):  # the innermost first
            inner = [one for one in found if is_inside(one, path)]
            reached = sum(self._reach(call.path) for call in self.cut.calls if call.path in inner)
            if not inner or self._reach(path) == 1 > reached:  # it mixes tokens itself
                found = [one for one in found if one not in inner] + [path]
        return found[::-1]


def _is_over_tokens(event: Event) -> bool:
    """Return whether two inputs of a softmax depend on different tokens that some module around it is given.

    Behind a recurrence in the same forward, a query depends on all of these. So what the modules inside the caller
    return counts too, such as the projection to queries and keys.
    """
    around = [tensor for call in event.stack for tensor in call.inputs]
    scores = _scores(event, around + [tensor for call in event.stack[-1].inner for tensor in call.outputs])
    pairs = [pair for two in pairwise(scores) for pair in zip(*two, strict=True)]
    return any(a is not None and b is not None and not torch.equal(a, b) for a, b in pairs)


def _scores(event: Event, inputs: list[Tensor]) -> list[list[Tensor | None]]:
    """Return on which tokens some inputs of a softmax with the same query depend, without those that are masked."""
    scores, dim = event.inputs[0], event.dim
    assert dim is not None
    index, size = [size - 1 for size in scores.shape], scores.shape[dim]  # the last query may attend to all keys
    found = []
    for key in sorted({0, size // 2, size - 2, size - 1}):
        index[dim] = key
        tokens = tokens_behind(scores[tuple(index)], inputs)
        if any(support is not None and support.any() for support in tokens):
            found.append(tokens)
    return found


def _kind(model: nn.Module, event: Event) -> Kind:
    """Return `cross` if the keys come from an input of the caller that the queries do not come from."""
    call = next((call for call in reversed(event.stack) if call.inputs), None)
    if call is not None and event.dim is None:
        behind = [tokens_behind(tensor.sum(), call.inputs) for tensor in event.inputs[:2]]
        if any(q is None and k is not None for q, k in zip(behind[0], behind[-1], strict=True)):
            return "cross"
    elif call is not None:
        scores = _scores(event, call.inputs)[:2]
        pairs = list(zip(*scores, strict=True)) if len(scores) == 2 else []
        are_equal = [torch.equal(a, b) for a, b in pairs if a is not None and b is not None]
        if any(are_equal) and not all(are_equal):  # the queries come from one input, the keys from another
            return "cross"
    return "sliding" if _is_sliding(model, event) else "self"


def _is_sliding(model: nn.Module, event: Event) -> bool:
    """Return whether the last query may not attend to the first key, or the module has a window."""
    weights = event.mask if event.dim is None else event.output
    if weights is not None and weights.shape[-1] > 1:
        weights = weights.detach()  # a learned bias may be part of a mask
        first = weights[(-1,) * weights.ndim if weights.ndim < 2 else (*(0,) * (weights.ndim - 2), -1, 0)]
        if not bool(first) if event.dim is not None or weights.dtype == torch.bool else float(first) < -1e4:
            return True
    owner = model.get_submodule(event.stack[-1].path)
    windows = (getattr(owner, name, None) for name in ("sliding_window", "window_size"))
    return event.has_window or any(isinstance(window, int) and window > 0 for window in windows)


def _keeps_tokens(call: Call) -> bool:
    """Return whether an output of a module has the tokens of an input; a decoder may have those of other inputs."""
    return any(output.shape[:-1] == tensor.shape[:-1] for output in call.outputs for tensor in call.inputs)


def _mixes(call: Call, sources: list[Tensor]) -> bool:
    """Return whether an output of a module at one token depends on an input at another."""
    return any(support.any() for support in _other_tokens(call, sources, lambda size: size // 2))


def _reach(call: Call, sources: list[Tensor]) -> Fraction:
    """Return how far from a token at an end of the example those are on which its output depends, from 0 to 1."""
    reach = Fraction(0)
    for last in (False, True):
        for support in _other_tokens(call, sources, lambda size, last=last: last * (size - 1)):
            for axis, size in enumerate(support.shape):
                places = support.nonzero()[:, axis].tolist()
                distances = [size - 1 - place if last else place for place in places]
                reach = max(reach, Fraction(max(distances, default=0), max(size - 1, 1)))
    return reach


def _convolution_reach(module: nn.Conv1d, call: Call) -> Fraction:
    size = max(tensor.shape[-1] for tensor in call.inputs)  # tokens are its last axis
    return Fraction((module.kernel_size[0] - 1) * module.dilation[0], max(size - 1, 1))


def _other_tokens(call: Call, sources: list[Tensor], at: Callable[[int], int]) -> Iterator[Tensor]:
    """Yield on which other tokens of an input an output at one token depends; True over all axes but the last."""
    for output in call.outputs:
        leading = output.shape[:-1]
        inputs = [tensor for tensor in call.inputs if tensor.shape[:-1] == leading]
        if leading and inputs:
            index = tuple(at(size) for size in leading)
            weights = torch.randn(output.shape[-1], generator=torch.Generator().manual_seed(0)).to(output)
            supports = tokens_behind((output[index] * weights).sum(), inputs)
            for tensor, support in zip(inputs, supports, strict=True):
                if support is not None:
                    support[index] = False
                    for axis in range(len(index)):
                        line = (*index[:axis], slice(None), *index[axis + 1 :])
                        if support[line].any() and _is_one_token(sources, tensor[line]):
                            support[line] = False
                    yield support


def _is_one_token(sources: list[Tensor], line: Tensor) -> bool:
    """Return whether the rows of a line depend on the same tokens, as parallel residual streams do."""
    if not sources or any(len(line) in source.shape[:-1] for source in sources):
        return False  # it may be the tokens, which all depend on each other in a model that is not causal
    rows = (tokens_behind(random_sum([line[row]]), sources) for row in (0, -1))
    pairs = zip(*rows, strict=True)
    return all(one is two or (one is not None and two is not None and torch.equal(one, two)) for one, two in pairs)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run in evaluation mode; restore modes, weights, buffers, other state and random numbers afterwards."""
    attributes = {module: dict(vars(module)) for module in model.modules()}
    frozen = [p for p in model.parameters() if p.is_floating_point() and not p.requires_grad]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.random.fork_rng(), torch.inference_mode(False), torch.enable_grad(), _unsharded(model), eager():
            model.eval()
            for parameter in frozen:
                parameter.requires_grad_()
            with _without_zeros(model):
                yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        for module, kept in attributes.items():  # its mode, and a state that it keeps beside its buffers
            for name in [name for name, value in vars(module).items() if isinstance(value, Tensor)]:
                del module.__dict__[name]
            module.__dict__.update(kept)
        for name, buffer in model.named_buffers():
            if name in buffers:
                buffer.data.copy_(buffers[name])


@contextmanager
def _without_zeros(model: nn.Module) -> Iterator[None]:
    """Draw weights that are zero at random; a projection that begins at zero would hide what depends on it."""
    weights = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    zeros = [(weight, weight.detach().clone()) for weight in weights if not weight.any()]
    try:
        for weight, _ in zeros:
            nn.init.normal_(weight, std=0.02)
        yield
    finally:
        for weight, value in zeros:
            weight.data.copy_(value)


@contextmanager
def _unsharded(model: nn.Module) -> Iterator[None]:
    """Keep the parameters of a model that FSDP2 has sharded whole, so that gradients can be asked for at any point."""
    sharded: list[Any] = [module for module in model.modules() if hasattr(module, "set_reshard_after_backward")]
    groups = [group for module in sharded if (group := module._get_fsdp_state()._fsdp_param_group) is not None]
    kept = [(group.post_forward_mesh_info, group.reshard_after_backward) for group in groups]
    for module in sharded:
        module.set_reshard_after_forward(False, recurse=False)
        module.set_reshard_after_backward(False, recurse=False)
    try:
        yield
    finally:
        for group, (forward, backward) in zip(groups, kept, strict=True):
            group.post_forward_mesh_info, group.reshard_after_backward = forward, backward
        for module in sharded:
            module.reshard()
