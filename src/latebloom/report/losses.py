"""The losses of language models by length of context: tables and a figure, over seeds."""

import numpy as np

from latebloom.report.charts import Spec
from latebloom.report.context_charts import context_chart, context_point
from latebloom.report.panel import Panel
from latebloom.report.statistics import Estimate, student_interval
from latebloom.report.study_tables import estimate_cell, times
from latebloom.report.tables import EMPTY, Cell, Table
from latebloom.results.stated import LossChange

NOTE = "Means over seeds with Student's 95% intervals; all contexts are scored on the same tokens."


def loss_change(one: LossChange, panel: Panel) -> Estimate | None:
    """Return the paired change of loss that a prediction is about; None if no seed has it."""
    base = panel.training_length
    at = round(one.at * base)
    contexts = [length for length in panel.lengths if (length >= at if one.beyond else length == at)]
    arm = panel.losses(one.arm, contexts)
    if one.matched:
        changes = [_matched_change(one, panel, contexts, seed) for seed in arm]
    else:
        other = panel.losses(one.baseline, contexts)
        changes = [arm[seed] - other[seed] for seed in arm if seed in other]
    known = [change for change in changes if change is not None]
    return student_interval(known) if known else None


def _matched_change(one: LossChange, panel: Panel, contexts: list[int], seed: int) -> float | None:
    """Return arm - baseline at the arm's loss at 1x, interpolated between budgets; None if it is outside of them."""
    base = [panel.training_length]
    near, far = panel.losses(one.arm, base).get(seed), panel.losses(one.arm, contexts).get(seed)
    points = []
    for name in (one.baseline, *one.matched):
        pair = panel.losses(name, base).get(seed), panel.losses(name, contexts).get(seed)
        if pair[0] is None or pair[1] is None:
            return None
        points.append(pair)
    points.sort()
    if near is None or far is None or not points[0][0] <= near <= points[-1][0]:
        return None
    return far - float(np.interp(near, [x for x, _ in points], [y for _, y in points]))


def loss_table(panel: Panel) -> Table:
    """Return the loss of each arm by context."""
    rows = []
    for arm in panel.arms:
        cells = [_nats(panel, arm, length) for length in panel.lengths]
        rows.append((Cell(arm), Cell(str(len(panel.finished[arm]))), *cells))
    head = ("arm", "seeds", *(times(panel, length) for length in panel.lengths))
    return Table(f"Loss by context, in nats: {panel.title}", head, tuple(rows), NOTE)


def _nats(panel: Panel, arm: str, length: int) -> Cell:
    values = panel.losses(arm, [length])
    return estimate_cell(student_interval(values.values()), ".3f") if values else EMPTY


def loss_changes_table(panel: Panel) -> Table | None:
    """Return the paired change of loss from each baseline, by context; None if no two arms are compared."""
    rows = []
    for arm, others in panel.against.items():
        for other in others:
            cells = []
            for length in panel.lengths:
                change = LossChange(task=panel.task, arm=arm, baseline=other, at=length / panel.training_length)
                found = loss_change(change, panel)
                cells.append(EMPTY if found is None else estimate_cell(found, "+.3f"))
            rows.append((Cell(arm), Cell(other), *cells))
    if not rows:
        return None
    head = ("arm", "baseline", *(times(panel, length) for length in panel.lengths))
    return Table(f"Change of loss, in nats: {panel.title}", head, tuple(rows), f"Arm - baseline. {NOTE}", names=2)


def loss_headline(panel: Panel) -> str:
    """Say which arm has the lowest loss at the training context and at the longest one, and what the baseline has."""
    parts = []
    for length in dict.fromkeys((panel.training_length, panel.lengths[-1])):
        losses = {arm: panel.losses(arm, [length]) for arm in panel.shown}
        means = {arm: float(np.mean(list(values.values()))) for arm, values in losses.items() if values}
        told = [min(means, key=lambda arm: means[arm])]
        told += [arm for arm in means if arm == panel.reference and arm not in told]
        parts.append(f"at {times(panel, length)} {', '.join(f'{arm} {means[arm]:.3f} nats' for arm in told)}")
    which = " and of the main baseline" if panel.reference else ""
    return f"Lowest loss of {len(panel.shown)} arms{which}: {'; '.join(parts)}."


def loss_chart(panel: Panel) -> Spec:
    """Draw the loss of each arm by context."""
    points = []
    for arm in panel.shown:
        for length in panel.lengths:
            if values := panel.losses(arm, [length]):
                found = student_interval(values.values())
                points.append(context_point(arm, length, found.mean, found.low, found.high))
    return context_chart(
        points, panel.training_length, f"{panel.study}: {panel.title}", "loss on the same tokens, nats"
    )
