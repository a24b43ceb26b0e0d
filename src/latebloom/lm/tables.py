"""Tables and sentences about the evaluation of one language model."""

from collections.abc import Iterator
from typing import Any

from latebloom.lm.evaluate import HOLDS_AT, WORSE
from latebloom.lm.traces import TITLES
from latebloom.report.tables import EMPTY, Cell, Table


def context_heads(found: dict[str, Any]) -> tuple[str, ...]:
    """Return the heading of each length of context."""
    return tuple(f"{context} ({context / found['training_context']:g}x)" for context in found["contexts"])


def loss_table(found: dict[str, Any]) -> Table:
    """Return the loss by context, of all scored tokens and of each kind."""
    rows = [("all tokens", *(_loss(found["loss"][str(context)]) for context in found["contexts"]))]
    kinds: dict[str, list[Cell]] = {}
    for row in found["kinds"]:
        kinds.setdefault(f"{row['kind']} ({row['tokens']:,})", []).append(_loss(row))
    rows += [(name, *cells) for name, cells in kinds.items()]
    note = (
        f"Mean over {found['documents']} documents with a 95% bootstrap interval; the same {found['scored_tokens']} "
        "tokens of each are scored at every context. In parentheses: tokens of the kind."
    )
    cells = tuple((Cell(name), *rest) for name, *rest in rows)
    return Table("Loss in nats by tokens of context", ("tokens", *context_heads(found)), cells, note)


def _loss(one: dict[str, Any]) -> Cell:
    interval = "" if one["low"] is None else f"{one['low']:.3f}, {one['high']:.3f}"
    return Cell(f"{one['mean']:.3f}", interval)


def probe_table(found: dict[str, Any]) -> Table:
    """Return the accuracy of each probe by context."""
    rows = []
    for kind, title in TITLES.items():
        mine = {one["context"]: one for one in found["probes"] if one["kind"] == kind}
        if mine:
            guessing = next(iter(mine.values()))["guessing"]
            cells = (_share(mine[context]) if context in mine else EMPTY for context in found["contexts"])
            rows.append((Cell(f"{title} (guessing: {guessing:.0%})"), *cells))
    note = "Share of right answers, with an exact 95% interval."
    return Table("Probes by tokens of context", ("probe", *context_heads(found)), tuple(rows), note)


def _share(one: dict[str, Any]) -> Cell:
    low, high = one["interval"]
    return Cell(f"{one['accuracy']:.0%}", f"{100 * low:.0f}, {100 * high:.0f}")


def sentences(found: dict[str, Any]) -> Iterator[str]:
    """Yield what the numbers say: reach, horizon, and what limits them."""
    far = found["contexts"][-1] / found["training_context"]
    yield (
        f"Reach: {found['reach']:g}x of {far:g}x tested; up to there the loss on the same tokens is nowhere more than "
        f"{WORSE:g} nats above that at 1x."
    )
    held = [f"{kind} {reached:g}x" for kind, reached in found["probe_reach"].items() if reached]
    if found["probes"]:
        yield f"Probes at {HOLDS_AT:.0%} or more: {', '.join(held) or 'none at any length'}."
    yield found["horizon"]["about"]
    if found["left_out"]:
        yield f"Contexts that the model cannot take, and are left out: {', '.join(map(str, found['left_out']))}."
    if (across := found["documents"] - found["documents_inside"]) > 0:
        yield f"In {across} of {found['documents']} documents the longest contexts reach into the documents before."
