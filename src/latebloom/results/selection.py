"""Selections as arms: of every few seeds of an arm, the best one on held-out sequences."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from latebloom.results.record import RunRecord
from latebloom.results.stated import BestOf, Stated


def with_selections(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the records, and for each arm that is selected from, the selected runs as an arm of its own."""
    arms: dict[tuple[str, str, int, str], list[RunRecord]] = {}
    for record in records:
        arms.setdefault(record.key[:-1], []).append(record)
    added = []
    for runs in arms.values():
        best_of = Stated.from_text(runs[0].stated).best_of
        if best_of is not None:
            added += _selected(sorted(runs, key=lambda run: run.seed), best_of)
    return [*records, *added]


def _selected(runs: Sequence[RunRecord], best_of: BestOf) -> Iterator[RunRecord]:
    """Yield the selected run of each whole group. The i-th has the i-th seed, so that it is paired with other arms."""
    for number in range(len(runs) // best_of.runs):
        group = runs[number * best_of.runs : (number + 1) * best_of.runs]
        scored = {run.seed: score for run in group if (score := _held_out(run, best_of.at)) is not None}
        first = replace(group[0], evaluation=None, failure="no run of its group was measured at that length")
        best = max((run for run in group if run.seed in scored), key=lambda run: scored[run.seed], default=first)
        yield replace(
            best, arm=best_of.name(best.arm), seed=runs[number].seed, against=best_of.against,
            stated=Stated(Stated.from_text(best.stated).hypotheses).to_text(), curve=(), is_selected=True,
        )  # fmt: skip


def _held_out(run: RunRecord, multiple: float) -> float | None:
    """Return the last held-out accuracy of a finished run at a multiple of its training length."""
    if run.evaluation is None:
        return None
    length = round(multiple * run.training_length)
    found = [point for point in run.curve if point.measure == "accuracy" and point.length == length]
    return max(found, key=lambda point: point.step).value if found else None
