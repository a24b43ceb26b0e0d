"""The attention of a model that is to be held back, and the reasons to refuse a model."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from latebloom.delay.example import Example, call_with, guess, wrapped
from latebloom.delay.kinds import KINDS, Kind
from latebloom.delay.libraries import libraries_of
from latebloom.delay.observe import Attention, Observation, is_block, observe
from latebloom.delay.record import is_inside
from latebloom.delay.undisturbed import undisturbed
from latebloom.errors import ConfigError, first_line, unknown, warn_user

Where = Callable[[str, nn.Module], bool] | Sequence[str]
"""The modules to hold back instead of those found: a predicate on (name, module), or the names themselves."""
ALLOW = ("only attention", "no gradient")
"""What can be allowed: to hold back all that mixes tokens; that a module outside attention gets no gradient."""


@dataclass(frozen=True)
class Found:
    """The attention of a model, and what else mixes tokens in it."""

    attention: tuple[Attention, ...]
    held: dict[str, tuple[str, ...]]
    """For each attention, by its path, the modules whose parameters are held back."""
    passed_over: dict[str, str]
    """Other modules that mix tokens, with what they are."""
    refusals: tuple[tuple[str, str], ...] = ()
    """Reasons why it cannot be held back, each with the word of `ALLOW` that allows it, or an empty string."""
    scales: tuple[str, ...] = ()
    """Parameters of other modules that act through attention alone, such as a layer scale; they are held back too."""
    shared: tuple[str, ...] = ()
    """Parameters of the held modules that other modules have too; they are not held back."""
    streams: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For a module, which of the tensors that it returns act on the model's output; for others, the first."""
    bare: bool = True
    """Whether attention that is left out may return None for its other tensors."""
    mixers: tuple[str, ...] = ()
    """The modules in `passed_over` that are not attention, such as recurrences and convolutions."""

    @property
    def matched(self) -> tuple[str, ...]:
        """The paths of the attention."""
        return tuple(one.path for one in self.attention)

    @property
    def held_paths(self) -> list[str]:
        """The paths of all modules whose parameters are held back."""
        return [path for paths in self.held.values() for path in paths]

    @property
    def besides(self) -> list[str]:
        """The paths of the modules around attention that are held back with it, such as the norm before it."""
        return [path for one in self.attention for path in self.held[one.path] if path not in (one.path, *one.modules)]

    def within(self, path: str) -> "Found":
        """Return the same with the paths in a model that has this one at `path`."""
        if not path:
            return self

        def full(inner: str) -> str:
            return f"{path}.{inner}" if inner else path

        def full_attention(one: Attention) -> Attention:
            modules, callers = tuple(map(full, one.modules)), tuple(map(full, one.callers))
            return replace(one, path=full(one.path), modules=modules, callers=callers)

        return replace(
            self,
            attention=tuple(map(full_attention, self.attention)),
            held={full(name): tuple(map(full, paths)) for name, paths in self.held.items()},
            passed_over={full(name): reason for name, reason in self.passed_over.items()},
            scales=tuple(map(full, self.scales)),
            shared=tuple(map(full, self.shared)),
            streams={full(name): numbers for name, numbers in self.streams.items()},
            mixers=tuple(map(full, self.mixers)),
        )

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return what is held back, by name; a parameter with several names has the first of them."""
        modules = dict(model.named_modules())
        shared = {id(model.get_parameter(name)) for name in self.shared}
        named = [
            (f"{path}.{name}", parameter)
            for path in self.held_paths
            for name, parameter in modules[path].named_parameters()
        ]
        named += [(name, model.get_parameter(name)) for name in self.scales]
        found = {id(parameter): (name, parameter) for name, parameter in reversed(named)}
        return {name: found[id(one)][1] for name, one in named if found[id(one)][0] == name and id(one) not in shared}

    def check(self, allow: Collection[str]) -> None:
        """Raise if the attention cannot be held back; warn if it is allowed nevertheless."""
        allow = _checked("allow", allow, ALLOW)
        for word, reason in self.refusals:
            if word not in allow:
                raise ConfigError(f"delay: {reason}")
            warn_user(f"delay: {reason}")


def find_attention(
    model: nn.Module,
    example: Example | None = None,
    *,
    where: Where | None = None,
    kinds: Collection[Kind] = KINDS,
    leaves_out: bool = True,
) -> Found | None:
    """Return the attention of a model, as a pass over an example shows it; None if no input for it can be guessed.

    `leaves_out` says whether attention will be left out; if it will only be frozen, less can go wrong.
    """
    check_weights(model)
    if example is not None:
        return examine(model, "", call_with(model, example), where, kinds, leaves_out)
    for path in wrapped(model):
        run = guess(model.get_submodule(path))
        if run is not None:
            return examine(model, path, run, where, kinds, leaves_out)
    return None


def check_weights(model: nn.Module) -> None:
    """Raise if a model is on the meta device, where nothing it does can be seen."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ConfigError(
            f"delay: this {type(model).__name__} is on the meta device; create the delay once it has weights"
        )


def examine(
    model: nn.Module,
    path: str,
    run: Callable[[], Any],
    where: Where | None = None,
    kinds: Collection[Kind] = KINDS,
    leaves_out: bool = True,
) -> Found:
    """Return the attention of a model, as a pass that `run` makes through the part at `path` shows it."""
    root = model.get_submodule(path)
    kinds = _checked("kinds", kinds, KINDS)
    if not kinds:
        raise ConfigError(f"kinds: the list is empty; choices: {', '.join(KINDS)}")
    if where is None:
        named = [name for name, module in root.named_modules() if has_gate(module)]
    else:
        named = [name.removeprefix(f"{path}.") if path else name for name in _chosen(model, where)]
    named = [f"{name}.body" if has_gate(root.get_submodule(name)) else name for name in named]
    try:
        seen = observe(root, run, kinds if where is None else (), named)
        if where is None and set(kinds) == set(KINDS) and (unseen := _unseen_kernels(root, seen)):
            seen = observe(root, run, kinds, [*named, *unseen])
    except Exception as error:  # models of other libraries raise anything
        raise _failure(root, run, error, "; name its attention with `where`" if where is None else "") from error
    found = _collect(root, seen)
    refusals = tuple(_refusals(root, seen, found, leaves_out, is_chosen=where is not None))
    return replace(found, refusals=refusals).within(path)


def _failure(root: nn.Module, run: Callable[[], Any], error: Exception, remedy: str) -> ConfigError:
    """Return the error for a forward pass that fails, or for one that cannot be followed, as inside `torch.vmap`."""
    kind, reason = type(root).__name__, first_line(error)
    try:
        with undisturbed(root), torch.no_grad():
            run()
    except Exception:  # as above
        return ConfigError(f"example: the forward pass of {kind} failed: {reason}")
    return ConfigError(f"delay: what {kind} does cannot be followed ({reason}){remedy}")


def _unseen_kernels(model: nn.Module, seen: Observation) -> list[str]:
    """Return modules that are attention by name and mix tokens in a kernel that torch does not see."""
    found = look_at_names(model).matched if seen.mixers else ()
    return [name for name in found if any(is_inside(mixer, name) for mixer in seen.mixers)]


def look_at_names(model: nn.Module) -> Found:
    """Return the attention of a model that cannot be called, by what is known of the names in its library."""
    attention, passed_over, libraries = list[str](), dict[str, str](), libraries_of(model)
    for name, module in model.named_modules():
        reasons = (library.classify(model, name, module) for library in libraries)
        reason = next((reason for reason in reasons if reason is not None), None)
        if reason == "" and not any(is_inside(name, one) for one in attention):
            attention.append(name)
        elif reason:
            passed_over[name] = reason
    found = Found(
        tuple(Attention(name, (name,)) for name in attention),
        {name: (name,) for name in attention},
        passed_over,
        mixers=tuple(passed_over),
    )
    seen = Observation(found.attention, {}, tuple(passed_over), (), ())
    return replace(found, refusals=tuple(_refusals(model, seen, found, leaves_out=False, is_chosen=False)))


def has_gate(module: nn.Module) -> bool:
    """Return whether a module is a residual part of this package's models with attention as its body."""
    return getattr(module, "role", None) == "attention" and hasattr(module, "gate")


def class_name(module: nn.Module) -> str:
    """Return the name of the class that a user knows: for a part with a role, that of its body."""
    body = getattr(module, "body", None)
    return type(body if hasattr(module, "role") and isinstance(body, nn.Module) else module).__name__


def _checked(field: str, words: Collection[str], choices: Collection[str]) -> list[Any]:
    """Return words as a list, also if only one was given; raise if one of them is no choice."""
    if not isinstance(words, Collection):
        raise ConfigError(f"{field}: {words!r} is not possible; it must be a list of words")
    listed = [words] if isinstance(words, str) else list(words)
    for word in listed:
        if word not in choices:
            raise unknown(field, word, choices)
    return listed


def _chosen(model: nn.Module, where: Where) -> list[str]:
    """Return the names that `where` stands for."""
    modules = dict(model.named_modules())
    if not callable(where):
        names = _checked("where", where, [known for known in modules if known])
        if not names:
            raise ConfigError("where: the list is empty; name the modules to hold back, or leave `where` out")
        return names
    names = [name for name, module in modules.items() if where(name, module)]
    if not names:
        raise ConfigError(f"where: the predicate matches no module of {type(model).__name__}")
    return names


def _collect(model: nn.Module, seen: Observation) -> Found:
    attention: list[Attention] = []
    held: dict[str, tuple[str, ...]] = {}
    belonging = [path for path in seen.starved if path not in seen.apart]
    for one in seen.attention:
        part = _part(model, one.path)
        if part != one.path:
            attention.append(Attention(part, (part,), one.functions, one.kind))
            held[part] = (part,)
            continue
        parent = one.path.rpartition(".")[0]
        parents = [one.path] if is_block(model, one) else [parent, *(caller for caller in one.callers if caller)]
        feeding = [path for path in belonging if any(is_inside(path, parent) for parent in parents)]
        if any(is_inside(one.path, path) for path in seen.severed):
            # Everything behind it reads attention alone, and everything before it acts through attention alone.
            one, feeding = replace(one, modules=() if one.inline else (one.path,)), []
        attention.append(one)
        held[one.path] = (*one.modules, *feeding)
    if held and not seen.severed:  # what the model has itself, such as a table of position biases for all its blocks
        known = [path for paths in held.values() for path in paths]
        first = next(iter(held))
        held[first] += tuple(path for path in belonging if not any(is_inside(path, one) for one in known))
    passed_over = {
        _part(model, path): f"{class_name(model.get_submodule(_part(model, path)))} mixes tokens without attention"
        for path in seen.mixers
    }
    mixers = tuple(path for path in passed_over if path not in seen.kept)
    words = {"self": "self-attention", "cross": "cross-attention", "sliding": "sliding-window attention"}
    passed_over |= {
        path: f"{class_name(model.get_submodule(path))} is {words[kind]}, which was not chosen"
        for path, kind in seen.kept.items()
    }
    scales = () if seen.severed else seen.scales  # as above
    return Found(tuple(attention), held, passed_over, (), scales, seen.shared, seen.streams, seen.bare, mixers)


def _part(model: nn.Module, path: str) -> str:
    """Return the residual part of this package's models that a module is in; otherwise the module."""
    names = path.split(".")
    around = (".".join(names[:depth]) for depth in range(len(names), 0, -1))
    return next((outer for outer in around if hasattr(model.get_submodule(outer), "role")), path)


def _called(model: nn.Module, path: str) -> str:
    """Return the name of a module or parameter for a message: its path and class; for the model, its class."""
    owner, _, name = path.rpartition(".")
    if name in model.get_submodule(owner)._parameters:
        return f"{path} (a parameter)"
    kind = class_name(model.get_submodule(path))
    return f"{path} ({kind})" if path else kind


def _written_inside(model: nn.Module, path: str) -> str:
    return f"attention is written inside the forward of {_called(model, path)}"


def _severing(seen: Observation, attention: Collection[Attention]) -> list[Attention]:
    """Return the attention without a path around it: none of the modules between it and the severed one has one."""
    inside = [one for one in attention if any(is_inside(one.path, path) for path in seen.severed)]
    nearest = [one for one in inside if {one.path, one.path.rpartition(".")[0], *one.callers} & set(seen.severed)]
    return nearest or inside


def _refusals(
    model: nn.Module, seen: Observation, found: Found, leaves_out: bool, is_chosen: bool
) -> list[tuple[str, str]]:
    """Return the reasons to refuse a model, for `Found.refusals`."""
    kind = type(model).__name__
    if seen.is_one_token and not seen.mixers and not is_chosen:
        reason = f"the example or first batch of {kind} has sequences of one token, so nothing mixes tokens in it"
        return [("", f"{reason}; give an `example` with more tokens")]
    if not found.attention:
        others = [f"{name}: {reason}" for name, reason in found.passed_over.items()][:4] or ["nothing mixes tokens"]
        return [("", f"no softmax attention was found in {kind} ({'; '.join(others)}); name it with `where`")]
    refusals: list[tuple[str, str]] = []
    if not seen.mixers and not is_chosen:
        names = ", ".join(found.matched[:4]) + ", ..." * (len(found.matched) > 4)
        reason = (
            f"everything that mixes tokens in {kind} is attention ({names}), so nothing would be left to learn while "
            "it is held back; if this is intended, name the modules to hold back with `where`"
        )
        refusals.append(("only attention", reason))
    if not leaves_out:
        lost = [one.path for one in found.attention if not found.held[one.path]]
        words = "and which modules belong to it is not seen; name them with `where`"
        return refusals + [("", f"{_written_inside(model, path)}, {words}") for path in lost]
    words = 'so it cannot be left out; give it a module of its own, or use hold="freeze"'
    reasons = [
        f"{_written_inside(model, one.path)}, and no module reads its result alone, {words}"
        for one in found.attention
        if not one.modules
    ]
    for one in _severing(seen, found.attention):
        block = max((path for path in seen.severed if is_inside(one.path, path)), key=len)
        inside = "" if block == one.path else f" in {_called(model, block)}"
        reasons.append(
            f"{_called(model, one.path)} has no residual path{inside}: without attention its output does not depend on "
            'its input; use hold="freeze", or hold back something else with `where`'
        )
    refusals += [("", reason) for reason in reasons]
    starved = [path for path in seen.starved if not any(is_inside(path, one) for one in found.held_paths)]
    starved = [_called(model, path) for path in (*starved, *seen.gating)]
    if starved and not reasons:
        reason = (
            f"{', '.join(starved[:3])}{' and others' * (len(starved) > 3)} would get no gradient while attention is "
            f"left out, because {'they act' if len(starved) > 1 else 'it acts'} through attention alone; "
            'use hold="freeze", or hold back less with `where` or `kinds`'
        )
        refusals.append(("no gradient", reason))
    return refusals
