"""How much fits into the minutes of a trial: measured costs in; seeds, steps and tests out."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from latebloom.errors import LatebloomError
from latebloom.lm.bench import on_device, step_seconds
from latebloom.lm.corpus import Corpus
from latebloom.lm.evaluate import Evaluating, evaluate
from latebloom.lm.sizes import build_model
from latebloom.lm.traces import KINDS
from latebloom.lm.train import HeldOutLoss, Training, train
from latebloom.lm.until import held_out_multiple
from latebloom.lm.work import Work

RESERVE = 0.15
"""The share of the time left after measuring that is not planned, for steps that turn out slower."""
PAGE_SHARE, START = 0.03, 5.0
"""The share of the minutes that is kept for the page, and seconds for the start of the command; runs are stopped
before."""
EVALUATION_SHARE = 0.25
"""The share of a run's time that its evaluation takes, unless the fewest tests take more."""
FEWEST_STEPS = 40
MOST_DOCUMENTS, MOST_PROBES, FEWEST = 64, 48, 12
ENTRIES = 40
"""The most entries of a run's log; a trigger measures held-out loss at each."""
SHORT, FEW = 3, 4
"""Steps of the run that is measured, and documents and probes that the second evaluation has more than the first."""


class OutOfTime(LatebloomError):  # noqa: N818 (the end of the time is no error)
    """A run of a trial was stopped because the minutes were over; its checkpoints stay."""


class TimedWork(Work):
    """Stops what it is told the progress of when the time of day `deadline` has come."""

    def __init__(self, deadline: float) -> None:
        super().__init__()
        self.deadline = deadline

    def advance(self, amount: int = 1, note: str | None = None) -> None:
        if time.time() > self.deadline:
            raise OutOfTime("the minutes of the trial are over")


@dataclass(frozen=True)
class Cost:
    """Seconds on this machine, with as many processes at once as will train."""

    step: float
    run: float
    """The beginning and the end of a run, and the held-out losses of its trigger."""
    evaluation: float
    """An evaluation, beside its windows."""
    window: float
    """A test document, or a probe of one kind, at all contexts."""


@dataclass(frozen=True)
class Amount:
    """What a trial does."""

    seeds: int
    steps: int
    documents: int
    probes: int
    """Of each kind."""

    def seconds(self, cost: Cost, processes: int) -> float:
        """Return how long all runs take together."""
        windows = self.documents + len(KINDS) * self.probes
        run = cost.run + self.steps * cost.step + cost.evaluation + windows * cost.window
        return runs_in_a_row(self.seeds, processes) * run


def runs_in_a_row(seeds: int, processes: int) -> int:
    """Return how many runs follow each other; both arms of a seed are trained at once if there are processes."""
    return 2 * seeds if processes < 2 else -(-seeds // (processes // 2))


def fit(seconds: float, seeds: int, processes: int, cost: Cost) -> Amount:
    """Return what fits into some seconds, less the reserve: fewer seeds, but two, if the steps would be too few."""
    found = [_fit(seconds, count, processes, cost) for count in range(seeds, min(seeds, 2) - 1, -1)]
    return next((one for one in found if one.steps >= FEWEST_STEPS), found[-1])


def _fit(seconds: float, seeds: int, processes: int, cost: Cost) -> Amount:
    each = max(0.0, seconds) * (1 - RESERVE) / runs_in_a_row(seeds, processes)
    windows = (EVALUATION_SHARE * each - cost.evaluation) / cost.window
    share = windows / (MOST_DOCUMENTS + len(KINDS) * MOST_PROBES)
    documents, probes = (int(min(most, max(FEWEST, share * most))) for most in (MOST_DOCUMENTS, MOST_PROBES))
    left = each - Amount(1, 0, documents, probes).seconds(cost, processes=2)
    return Amount(seeds, max(0, int(left / cost.step)), documents, probes)


def measure(training: Training, until: str, multiples: tuple[int, ...]) -> Cost:
    """Return what runs cost here, by a short run and two small evaluations."""
    corpus = Corpus.load(Path(training.corpus))
    with tempfile.TemporaryDirectory() as folder:
        short = replace(training, steps=SHORT, until="2")
        run = _seconds(lambda: train(short, Path(folder) / "run"))
    model = on_device(build_model(training.model, 0, corpus.vocabulary, training.context)[0])
    step = step_seconds(model, training, corpus)
    held_out = 0.0
    trigger = replace(training, until=until, steps=10**9).trigger()
    multiple = held_out_multiple(trigger) or getattr(trigger, "multiple", None)
    if multiple is not None:
        held_out = ENTRIES * _seconds(lambda: HeldOutLoss(model, corpus, training.context)(multiple))
    tests = Evaluating(context=training.context, multiples=multiples, documents=1, probes=1)
    first = _seconds(lambda: evaluate(model, corpus, tests))
    more = _seconds(lambda: evaluate(model, corpus, replace(tests, documents=1 + FEW, probes=1 + FEW)))
    window = max(1e-6, more - first) / (FEW * (1 + len(KINDS)))
    return Cost(step, max(0.0, run - SHORT * step) + held_out, first, window)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
