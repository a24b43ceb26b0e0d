"""Try `DelayedAttention` on every hybrid of the installed Transformers, on hybrids of flash-linear-attention, and on
the models of tests/delay/foreign.py and tests/delay/foreign_forms.py.

    python tests/integrations/survey.py               # every model: results/models.json, in minutes
    python tests/integrations/survey.py jamba zamba   # these again, the other rows stay
    python tests/integrations/survey.py --continue    # those that have no row yet, after an interruption

The file is written after each model. `python docs/fill.py` makes the tables of docs/models.md from it. Each check is a
function that returns "yes", or in words what is wrong. Its oracle is a model that no delay has touched.

Models of flash-linear-attention are tried in a process of their own, see fla_hybrids.py.
"""

import copy
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

sys.path += [str(Path(__file__).parents[1] / name) for name in ("", "delay", "integrations")]
import discover
import fla_hybrids
import foreign
import foreign_forms
from switching import moved, same, weights
from test_transformers import trainer_for

from latebloom import DelayedAttention, at_step, inspect
from latebloom.delay.find import look_at_names
from latebloom.delay.record import is_inside
from latebloom.engine.files import write_json
from latebloom.errors import ConfigError, first_line
from latebloom.integrations.transformers import DelayedAttentionCallback

TESTS = Path(__file__).parents[1]
RESULTS = TESTS.parent / "results" / "models.json"
FLA = "flash-linear-attention: "
"""How the names of its models begin."""
SWITCH, STEPS = 3, 5
Row = dict[str, Any]


class SoftmaxCalls(TorchFunctionMode):
    """Counts the calls of attention functions, of softmax and of the operations it is written out with."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        self.count += "attention" in name or name in ("softmax", "log_softmax", "exp")
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Subject:
    """A model to be tried."""

    name: str
    make: Callable[[int], Any]
    """Builds it from a seed."""
    is_family: bool
    """Whether it is a language model with the interface of Transformers."""

    @property
    def columns(self) -> list[str]:
        """The checks that the model can have."""
        without = ()
        if not self.is_family:
            without = FOR_FAMILIES
        elif self.name.startswith(FLA):
            without = NOT_FOR_FLA
        return [column for column in CHECKS if column not in without]

    def build(self, state: Mapping[str, Tensor] | None = None, seed: int = 0) -> Any:
        """Return the model, with other weights if a state is given."""
        model = self.make(seed)
        if state is not None:
            model.load_state_dict(state)
        return model

    def logits(self, model: Any) -> Tensor:
        model.eval()
        with torch.no_grad():
            if self.is_family:
                return model(input_ids=discover.TOKENS, use_cache=False).logits
            return model(*foreign.inputs_of(model))

    def train(self, model: Any, optimizer: torch.optim.Optimizer | None, steps: int) -> None:
        """Train for some steps; without an optimizer, add up the gradients."""
        model.train()
        for step in range(steps):
            generator = torch.Generator().manual_seed(step)
            if self.is_family:
                tokens = torch.randint(3, 64, (4, 12), generator=generator)
                model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
            else:
                inputs = foreign.inputs_of(model)
                inputs = tuple(torch.randint(foreign.VOCABULARY, one.shape, generator=generator) for one in inputs)
                nn.functional.cross_entropy(model(*inputs).flatten(0, 1), inputs[-1].flatten()).backward()
            if optimizer is not None:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()


def subjects() -> dict[str, Subject]:
    """Return what is to be tried, by name."""

    def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    families = {name: Subject(name, partial(discover.build, name), True) for name in discover.candidates()}
    families |= {
        FLA + name: Subject(FLA + name, partial(fla_hybrids.build, name), True) for name in fla_hybrids.FAMILIES
    }
    models = foreign.MODELS | foreign_forms.FORMS
    return families | {name: Subject(name, partial(seeded, make), False) for name, make in models.items()}


def delayed(model: Any, optimizer: torch.optim.Optimizer | None = None) -> DelayedAttention:
    optimizer = adamw(model) if optimizer is None else optimizer
    return DelayedAttention(model, optimizer, until=at_step(SWITCH))


def adamw(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)


def yes_unless(wrong: Iterable[str], what: str) -> str:
    """Return "yes", or what is wrong with the first of some names."""
    names = sorted(wrong)
    return f"no: {', '.join(names[:3])}{', ...' * (len(names) > 3)} {what}" if names else "yes"


def is_matched(subject: Subject) -> str:
    """Everything that Transformers names softmax attention is held back, and nothing that it names otherwise."""
    model = subject.build()
    named, found = look_at_names(model), delayed(model).found
    held = [path for paths in found.held.values() for path in paths]
    missed = [path for path in named.matched if not any(is_inside(path, one) for one in held)]
    wrong = [path for path in named.passed_over if any(is_inside(path, one) for one in held)]
    return yes_unless(missed, "not held back") if missed else yes_unless(wrong, "held back")


def gradient_reaches_the_rest(subject: Subject) -> str:
    """With attention left out, each other parameter that has a gradient without a delay has one."""

    def with_gradient(model: Any) -> set[str]:
        subject.train(model, None, 6)
        return {name for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}

    model = subject.build()
    held = set(delayed(model).parameters())
    return yes_unless(with_gradient(subject.build()) - with_gradient(model) - held, "without a gradient")


def stays_during_the_delay(subject: Subject) -> str:
    """Attention's parameters stay the same, the others move, and the output does not depend on attention's."""
    model = subject.build()
    optimizer = adamw(model)
    delay = delayed(model, optimizer)
    before = weights(model)
    subject.train(model, optimizer, SWITCH - 1)
    after, held = weights(model), set(delay.parameters())
    changed = moved(before, before, after)
    if changed & held or not changed:
        return yes_unless(changed & held or {"nothing"}, "changed")
    logits = subject.logits(model)
    with torch.no_grad():
        for parameter in delay.parameters().values():
            parameter.normal_()
    return "yes" if torch.equal(subject.logits(model), logits) else "no: the output depends on what is held back"


def is_not_computed(subject: Subject) -> str:
    """While attention is left out, fewer softmaxes run, by at least one for each attention."""
    model, counts = subject.build(), []
    delay = delayed(model)
    subject.logits(model)  # the first call shows the form of the output
    for one in (subject.build(), model):
        with SoftmaxCalls() as calls:
            subject.logits(one)
        counts.append(calls.count)
    left_out = counts[0] - counts[1] >= len(delay.found.attention)
    return "yes" if left_out else "no: attention runs, and its result is left out"


def trains_after(subject: Subject) -> str:
    """After the switch all of attention's parameters change that change without a delay."""
    model, plain = subject.build(), subject.build()
    optimizer = adamw(model)
    delay = delayed(model, optimizer)
    before = weights(model)
    subject.train(model, optimizer, STEPS)
    subject.train(plain, adamw(plain), STEPS)
    after, reference = weights(model), weights(plain)
    moving = moved(delay.parameters(), before, reference)
    return yes_unless(moving - moved(moving, before, after), "did not change")


def equal_after_remove(subject: Subject) -> str:
    """Removed during the delay, at the switch and after it, the model computes what a plain one does."""
    for steps in (0, SWITCH, STEPS):
        model = subject.build()
        optimizer = adamw(model)
        delay = delayed(model, optimizer)
        subject.train(model, optimizer, steps)
        plain = subject.logits(subject.build(model.state_dict()))
        if delay.holding == torch.equal(subject.logits(model), plain):
            return f"no: attention is {'not left out' if delay.holding else 'left out'} after {steps} steps"
        delay.remove()
        if not torch.equal(subject.logits(model), plain):
            return f"no: removed after {steps} steps, the logits differ"
        if any("forward" in module.__dict__ for module in model.modules()):
            return "no: a forward method is still replaced"
    return "yes"


def copies_follow(subject: Subject) -> str:
    """A deep copy made during the delay computes what the model does, and after the switch what a plain one does."""
    for steps in (0, SWITCH - 1):
        model, plain = subject.build(), subject.build()
        optimizer = adamw(model)
        delayed(model, optimizer)
        subject.train(model, optimizer, steps)
        subject.train(plain, adamw(plain), steps)
        if wrong := copy_error(model):
            return f"as without Latebloom: {wrong}" if copy_error(plain) else f"no: {wrong}"
        twin = copy.deepcopy(model)
        if not torch.equal(subject.logits(twin), subject.logits(model)):
            return "no: it differs during the delay"
        subject.train(model, optimizer, STEPS - steps)
        if not torch.equal(subject.logits(twin), subject.logits(subject.build(twin.state_dict()))):
            return "no: it differs after the switch"
    return "yes"


def copy_error(model: nn.Module) -> str:
    """Return why a model cannot be copied; empty if it can."""
    try:
        copy.deepcopy(model)
    except Exception as error:
        return first_line(error).partition(". ")[0]
    return ""


def generates_with_a_cache(subject: Subject) -> str:
    """Generation with a cache equals generation without, during the delay and after it."""
    model = subject.build()
    optimizer = adamw(model)
    delay = delayed(model, optimizer)
    for moment, steps in (("during the delay", SWITCH - 1), ("after it", STEPS)):
        subject.train(model, optimizer, steps)
        wrong = cache_difference(model)
        if wrong and cache_difference(subject.build(model.state_dict())):
            return f"as without Latebloom: {wrong}"
        if wrong:
            return f"no: {moment} {wrong}"
    return "yes" if not delay.holding else "no: the switch did not come"


def cache_difference(model: Any) -> str:
    """Return how generation with a cache differs from generation without; empty if it does not."""
    model.eval()
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    options |= {"output_logits": True, "return_dict_in_generate": True}
    found: list[Any] = []
    for cached in (True, False):
        try:
            found.append(model.generate(discover.TOKENS[:, :5], use_cache=cached, **options))
        except Exception as error:  # any error of the library is a finding
            return f"generation {'with' if cached else 'without'} a cache fails: {first_line(error)}"
    with_cache, without = (torch.stack(one.logits) for one in found)
    apart = float((with_cache - without).abs().max() / without.std())
    if apart < 1e-3 and torch.equal(found[0].sequences, found[1].sequences):
        return ""
    return f"logits differ by {apart:.1e} of their standard deviation"


def resumes(subject: Subject) -> str:
    """A run that Trainer resumes on either side of the switch ends bit for bit as one that was not interrupted."""
    with TemporaryDirectory() as folder:

        def run(seed: int, checkpoint: str | None, **arguments: Any) -> Any:
            callback = DelayedAttentionCallback(until=at_step(SWITCH))
            trainer = trainer_for(Path(folder), callback, model=subject.build(seed=seed), max_steps=STEPS, **arguments)
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train(resume_from_checkpoint=checkpoint)
            return trainer.model

        whole, restored = run(0, None, save_strategy="steps", save_steps=1), 0
        for step in (SWITCH - 1, SWITCH, SWITCH + 1):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                resumed = run(1, f"{folder}/checkpoint-{step}")
            if not same(weights(whole), weights(resumed)):
                return f"no: the weights differ after a resume at step {step}"
            texts = [str(one.message).partition("Trainer left ")[2] for one in caught]
            restored = max([restored, *(int(text.split()[0]) for text in texts if text)])
    return f"yes; Trainer leaves out {restored}" if restored else "yes"


CHECKS: dict[str, Callable[[Subject], str]] = {
    "matched": is_matched,
    "gradient reaches the rest": gradient_reaches_the_rest,
    "bit-identical": stays_during_the_delay,
    "not computed": is_not_computed,
    "trains after": trains_after,
    "equal after remove()": equal_after_remove,
    "deep copy": copies_follow,
    "cached generation": generates_with_a_cache,
    "resumed": resumes,
}
FOR_FAMILIES = ("matched", "cached generation", "resumed")
"""The checks that only Transformers' models have."""
NOT_FOR_FLA = ("not computed", "cached generation", "resumed")
"""Its kernels run in Triton's interpreter: what they compute is not seen, and they take long."""


def row_of(subject: Subject) -> Row:
    """Return what is held back in a model with the outcome of each check, or why it is refused."""
    row: Row = {"name": subject.name, "family": subject.is_family}
    seen = inspect(subject.build(), horizon=False)
    row["model"] = seen.model
    try:
        delay = delayed(subject.build())
    except ConfigError as error:
        return row | {"refused": str(error).removeprefix("delay: ")}
    row["held"] = [one.path for one in seen.grouped() if one.held and (one.parameters or "gated" in one.note)]
    row["parameters"] = sum(parameter.numel() for parameter in delay.parameters().values())
    row["cells"] = {}
    for column in subject.columns:
        try:
            row["cells"][column] = CHECKS[column](subject)
        except Exception as error:  # any error is a finding
            row["cells"][column] = f"no: {type(error).__name__}: {first_line(error)}"
    return row


def fla_row(name: str) -> Row:
    """Return the row of a model of flash-linear-attention."""
    family = name.removeprefix(FLA)
    seen = fla_hybrids.in_own_process(family)[family]
    held, (first, second, _, last) = set(seen["held"]), map(set, seen["still"])
    cells = {
        "matched": seen["attention"] == seen["by_names"],
        "gradient reaches the rest": second <= held,
        "bit-identical": held <= first & second,
        "trains after": not last & held,
        "equal after remove()": seen["removed"],
        "deep copy": seen["copy"],
    }
    row = {"name": name, "family": True, "model": seen["model"], "held": seen["paths"]}
    return row | {
        "parameters": seen["parameters"],
        "cells": {one: "yes" if is_so else "no" for one, is_so in cells.items()},
    }


def main(words: list[str]) -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    known = subjects()
    if wrong := [name for name in words if name not in known and name != "--continue"]:
        sys.exit(f"{wrong[0]!r} is not known; choices: {', '.join(known)}")
    kept = json.loads(RESULTS.read_text())["rows"] if words and RESULTS.exists() else []
    rows: dict[str, Row] = {row["name"]: row for row in kept if row["name"] in known}
    chosen = [name for name in known if name in words or not words or ("--continue" in words and name not in rows)]
    for number, name in enumerate(chosen, 1):
        started = time.monotonic()
        rows[name] = fla_row(name) if name.startswith(FLA) else row_of(known[name])
        report = {
            "command": "python tests/integrations/survey.py",
            "versions": {library: version(library) for library in ("torch", "transformers", "accelerate")},
            "rows": [rows[name] for name in known if name in rows],
        }
        write_json(RESULTS, report)
        cells = rows[name].get("cells") or {"refused": rows[name]["refused"]}
        others = "; ".join(f"{column}: {cell}" for column, cell in cells.items() if cell != "yes")
        seconds = time.monotonic() - started
        print(f"{number}/{len(chosen)} {name}, {seconds:.0f} s: {others or 'yes in every column'}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
