"""What the modules of a model do: which are attention, and which mix tokens in another way.

The decision goes by behaviour, not by the names of classes. Three passes over one example are recorded, after one in
training mode that shows whether attention is called only there:

1. The model as it is. Functions such as `scaled_dot_product_attention` are attention. So is a softmax if two of its
   inputs depend on different tokens; the softmax of a router or of the logits is not.
2. The same with the results of attention replaced by zeros. A module whose output no longer depends on its input has no
   path around attention, and belongs to it. A module whose output at one token still depends on its input at another
   mixes tokens without attention.
3. The same with the modules that belong to attention replaced by zeros, as a delay does it: their biases are out too. A
   module, or a parameter of a module around attention, on which the model's output no longer depends would not be
   trained.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.delay.kinds import KINDS, Kind, attention_events
from latebloom.delay.mixing import Convolution, convolution_mixes, convolution_reach, keeps_tokens, mixes, reach_of
from latebloom.delay.record import ROUNDING, Recording, depends, gradients, is_inside, random_sum
from latebloom.delay.undisturbed import train_except_torch, undisturbed
from latebloom.delay.visible import attention_kernels

POINTWISE = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity, nn.GELU, nn.SiLU, nn.ReLU)
"""Modules that never mix tokens and are called most often; leaving them out saves time."""
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


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
    callers: tuple[str, ...] = ()
    """The modules that call it; several if it is shared."""

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
    apart: tuple[str, ...] = ()
    """Those of them that do not belong to attention: they mix tokens, as an encoder does, or serve one that does."""
    streams: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For each module of attention, which of the tensors that it returns act on the model's output."""
    bare: bool = True
    """Whether these modules may return None for all other tensors."""
    scales: tuple[str, ...] = ()
    """Parameters of the modules around attention that get a gradient through attention alone, such as a layer scale."""
    shared: tuple[str, ...] = ()
    """Parameters of attention that get a gradient without it, because another module has them too."""
    gating: tuple[str, ...] = ()
    """Matrices of the modules around attention that act on its result alone."""
    is_one_token: bool = False
    """Whether the example has one token, or only one in each sequence, so that nothing can be mixed."""


def is_block(model: nn.Module, one: Attention) -> bool:
    """Return whether attention is written into a block, not into a module of its own that returns more too."""
    parent = one.path.rpartition(".")[0]
    return one.inline and (not parent or isinstance(model.get_submodule(parent), CONTAINERS))


def observe(
    model: nn.Module, run: Callable[[], Any], kinds: Collection[Kind] = KINDS, named: Collection[str] = ()
) -> Observation:
    """Return what the modules of a model do when `run` calls it; the model is left as it was.

    Attention of these `kinds` is left out, and the modules that are `named`, whatever they do.
    """
    with undisturbed(model):
        record = partial(_record, model, run)
        whole = _record_whole(model, record)
        found = attention_events(model, whole.events, named)
        left_out = [found.get(index) in kinds for index in range(len(whole.events))]
        cut = record(left_out, {path: whole.acting(path) or (0,) for path in named}, whole)
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
        streams, bare = {path: compared.stream(path) for path in [*named, *inside]}, True
        try:
            without = record(left_out, streams, whole, bare)
        except Exception:  # a caller reads what else attention returns
            bare = False
            without = record(left_out, streams, whole, bare)
        held = _Comparison(model, whole, without)
        severed = [path for path in held.common if compared.has_lasting(path) and not held.is_connected(path)]
        starved = held.starved(inside)
        # A block is more than its attention, a module of attention that returns its values too is not.
        around = [one.path if is_block(model, one) else cut.parent(one.path) for one in attention]
        apart = held.apart(starved, [*mixers, *kept, *around])
        scales, shared = _single_parameters(model, whole, without, [one.path for one in attention], [*inside, *starved])
        # A vector scales attention. A matrix that acts on the output beside attention may be a recurrence.
        matrices = {
            name: one for name in scales if (one := model.get_parameter(name)).numel() > max(one.shape, default=1)
        }
        gating = _acting(record(left_out, {}, whole, False, torch.rand_like), matrices) if matrices else []
        return Observation(
            tuple(attention),
            kept,
            tuple(mixers),
            tuple(severed),
            tuple(starved),
            tuple(apart),
            streams=streams,
            bare=bare,
            scales=tuple(name for name in scales if name not in gating),
            shared=shared,
            gating=tuple(gating),
            is_one_token=_is_one_token(whole),
        )


def _is_one_token(whole: Recording) -> bool:
    """Return whether all features that the model is given, or its embeddings return, are of one token (B, 1, D)."""
    calls = [call for call in whole.calls if not call.inputs]
    features = whole.first[""].inputs or [tensor for call in calls for tensor in call.outputs]
    return bool(features) and all(tensor.ndim == 3 and tensor.shape[1] == 1 for tensor in features)


def _record(model: nn.Module, run: Callable[[], Any], *settings: Any) -> Recording:
    torch.manual_seed(0)  # in training mode, each pass draws the same random numbers
    return Recording(model, run, *settings)


def _record_whole(model: nn.Module, record: Callable[[], Recording]) -> Recording:
    """Return a pass of the model as it is: in training mode if attention is called only there, else in evaluation mode.

    The mode stays for the passes to come.
    """
    known = attention_kernels()
    in_training: set[str] = set()
    train_except_torch(model)
    try:
        events = record().events
        if attention_kernels() != known:  # the first call has imported kernels, which were not seen
            events = record().events
        in_training = {events[index].stack[-1].path for index in attention_events(model, events)}
    except Exception:  # training mode may need a larger batch, or labels
        pass
    model.eval()
    known = attention_kernels()
    whole = record()
    if attention_kernels() != known:
        whole = record()
    if in_training - {event.stack[-1].path for event in whole.events}:
        train_except_torch(model)
        whole = record()
    return whole


class _Comparison:
    """A pass with attention beside one without it."""

    def __init__(self, model: nn.Module, whole: Recording, cut: Recording) -> None:
        self.modules, self.whole, self.cut = dict(model.named_modules()), whole, cut
        self.common = {path: call for path, call in cut.first.items() if path in whole.first}
        """The modules that both call: without attention a router may choose other experts."""
        self._connected: dict[str, bool] = {}
        self._reaches: dict[str, Fraction] = {}

    def starved(self, inside: list[str]) -> list[str]:
        """Return the outermost modules with parameters, not `inside` attention, that are reached in the first alone."""
        found: list[str] = []
        before, after = self.whole.reached(), self.cut.reached()
        lost = [path for path in self.common if after.get(path, 0.0) <= ROUNDING * before.get(path, 0.0)]
        for path in sorted(path for path in lost if path in before):
            has_parameters = next(self.modules[path].parameters(), None) is not None
            if has_parameters and not any(is_inside(path, one) for one in [*inside, *found]):
                found.append(path)
        return found

    def apart(self, starved: list[str], mixing: list[str]) -> list[str]:
        """Return which modules have one of `mixing` inside, act on such a module alone, or read it."""
        encoders = [path for path in starved if any(is_inside(one, path) for one in mixing)]

        def serves(path: str, encoder: str) -> bool:
            one, other = self.whole.first[path], self.whole.first[encoder]
            return depends(other.inputs, one.outputs) or depends(one.inputs, other.outputs)

        return [path for path in starved if path in encoders or any(serves(path, one) for one in encoders)]

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
        attention: list[Attention] = []
        for path, calls in functions.items():
            callers = dict.fromkeys(call.caller for call in self.whole.calls if call.path == path)
            kinds: list[Kind] = [*calls.values(), "self"]  # a module that was named calls none
            attention.append(Attention(path, tuple(chains[path]), tuple(calls), kinds[0], tuple(callers)))
        return attention

    def _extend(self, chains: dict[str, list[str]], path: str, results: list[Tensor]) -> None:
        """Add the modules of the block that read attention's result alone, such as a projection or a norm."""
        parent = self.cut.parent(path) if chains[path] else path
        results = results or self._stream(self.whole, path)
        for name, call in self.common.items():
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
        """Return whether what a module adds to the model's output depends on its inputs without attention."""
        if path not in self._connected:
            self._connected[path] = depends(self._stream(self.cut, path), self._sources(path))
        return self._connected[path]

    def stream(self, path: str) -> tuple[int, ...]:
        """Return which outputs of a module act on the model's output; values for other attention do so through it."""
        return self.cut.acting(path) or self.whole.acting(path) or (0,)

    def _stream(self, recording: Recording, path: str) -> list[Tensor]:
        """Return those outputs of a module."""
        if not path:
            return [] if recording.output is None else [recording.output]
        outputs = recording.first[path].outputs
        return [outputs[index] for index in self.stream(path) if index < len(outputs)]

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
                convolution_reach(module, call)
                if isinstance(module, Convolution)
                else reach_of(call, self._sources(""))
            )
            self._reaches[path] = min(Fraction(1), reach)
        return self._reaches[path]

    @cached_property
    def mixers(self) -> list[str]:
        """The innermost modules that mix tokens without attention."""
        mixing, still = list[str](), list[str]()
        for path, call in self.common.items():
            module = self.modules[path]
            if isinstance(module, POINTWISE) or any(is_inside(path, one) for one in still):
                continue
            if convolution_mixes(module) if isinstance(module, Convolution) else mixes(call, self._sources("")):
                mixing.append(path)
            elif keeps_tokens(call) and not mixes(self.whole.first[path], []):
                still.append(path)  # nothing inside it mixes tokens either
        found = list[str]()
        for path in reversed(mixing):  # the innermost first
            inner = [one for one in found if is_inside(one, path)]
            reached = sum(self._reach(call.path) for call in self.cut.calls if call.path in inner)
            if not inner or self._reach(path) == 1 > reached:  # it mixes tokens itself
                found = [one for one in found if one not in inner] + [path]
        return found[::-1]


def _single_parameters(
    model: nn.Module, whole: Recording, cut: Recording, attention: list[str], inside: list[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parameters around attention that act through it alone, and those inside that act without it too.

    Few are compared: those that the modules around attention have themselves, and those that several modules have.
    """
    owners: dict[int, list[str]] = {}
    names: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.requires_grad:
                if id(parameter) not in owners:
                    names[f"{path}.{name}" if path else name] = parameter
                owners.setdefault(id(parameter), []).append(path)

    def share_inside(parameter: Tensor) -> Fraction:
        paths = owners[id(parameter)]
        return Fraction(sum(any(is_inside(path, one) for one in inside) for path in paths), len(paths))

    def is_around(parameter: Tensor) -> bool:
        return any(is_inside(one, path) for path in owners[id(parameter)] for one in attention)

    around = {name: one for name, one in names.items() if share_inside(one) == 0 and is_around(one)}
    several = {name: one for name, one in names.items() if 0 < share_inside(one) < 1}
    acting = _acting(cut, around)
    return tuple(name for name in _acting(whole, around) if name not in acting), tuple(_acting(cut, several))


def _acting(recording: Recording, parameters: Mapping[str, Tensor]) -> list[str]:
    """Return the parameters on which the model's output depends."""
    grads = gradients(random_sum([] if recording.output is None else [recording.output]), list(parameters.values()))
    return [name for name, grad in zip(parameters, grads, strict=True) if grad is not None and bool(grad.any())]
