"""Studies as a command: progress while the runs train, and a report at the end."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.console import Console

from latebloom.config import RunConfig
from latebloom.errors import ConfigError, InterruptedRun, require
from latebloom.progress import RunProgress
from latebloom.report.statistics import SETTLED_AT, seeds_to_settle, smallest_corrected
from latebloom.report.study import read_sections, write_report
from latebloom.report.tables import print_table, text_table
from latebloom.report.terminal import say, show_sections
from latebloom.studies.execute import StudyOutcome, execute
from latebloom.studies.find import find_study, known_studies, plan_of, studies_in
from latebloom.studies.local import train_all
from latebloom.studies.plan import SCALES, Plan, Scale, Stage
from latebloom.tasks.contract import check_own_task

Trainer = Callable[..., dict[str, str]]
"""`train_all`, or the same on a cluster."""


def read_plan(name: str, scale: Scale, seeds: int | None = None) -> tuple[str, Plan]:
    """Return the title of a study and its plan at a scale, with another number of seeds if one is given."""
    study = find_study(name)
    plan = plan_of(study, scale)
    if seeds is not None:
        require(1 <= seeds <= 100_000, "seeds", seeds, "from 1 to 100000")
        plan = replace(plan, seeds=range(seeds), arms=[replace(arm, seeds=()) for arm in plan.arms])
    return study.name, plan


def run_study(
    name: str,
    scale: Scale,
    *,
    seeds: int | None = None,
    out: Path | None = None,
    workers: int | None = None,
    device: str | None = None,
    on: Literal["local", "ray"] = "local",
    address: str | None = None,
) -> StudyOutcome:
    """Run a study and write its results file and report into its folder."""
    if address is not None and on != "ray":
        raise ConfigError(f"--address {address} takes --on ray")
    title, plan = read_plan(name, scale, seeds)
    if workers is not None:
        require(workers >= 1, "workers", workers, "1 or more")
    out = out or Path("studies") / f"{title}-{scale}"
    console = Console()
    say(console, f"Study {title}, scale {scale}: {_size(plan)}. Everything goes to {out}")
    if note := _too_few(plan):
        say(console, f"Note: {note}.")
    with _trainer(on, address, workers) as train:
        outcome = train_plan(title, plan, out, train, workers=workers, device=device)
    with console.status("Making the report"):
        sections = read_sections([out])
        page = write_report(sections, out / "report")
    show_sections(console, sections)
    for run, reason in outcome.failures.items():
        say(console, f"failed: {out / run}: {reason}")
    say(console, f"Page: {page}   Results: {outcome.results}")
    return outcome


def train_plan(
    title: str,
    plan: Plan,
    out: Path,
    train: Trainer = train_all,
    *,
    workers: int | None = None,
    device: str | None = None,
) -> StudyOutcome:
    """Train the runs of a plan that are not finished, and show their progress."""
    for arm in plan.arms:
        check_own_task(arm.config.task, arm.config.training.length)
    with RunProgress() as bar:

        def announce(stage: Stage) -> None:
            bar.stage = stage if plan.tuning_count else Stage("")

        def runner(configs: dict[str, RunConfig], folder: Path) -> dict[str, str]:
            bar.expect(configs, folder)
            return train(configs, folder, workers=workers, device=device, observe=bar.show)

        try:
            return execute(title, plan, out, runner, announce)
        except InterruptedRun as stop:
            raise InterruptedRun(f"{stop}; go on with: latebloom {shlex.join(sys.argv[1:])}") from None


@contextmanager
def _trainer(on: str, address: str | None, workers: int | None) -> Iterator[Trainer]:
    """Yield the function that trains sets of runs: on this machine, or on a Ray cluster while the context lasts."""
    if on == "local":
        yield train_all
        return
    from latebloom.studies.on_ray import train_on_ray
    from latebloom.studies.ray_cluster import ray_cluster

    with ray_cluster(address, workers):
        yield train_on_ray


def list_all(console: Console, name: str | None = None) -> None:
    """Print the named studies, or one of them, or those of a file, with their number of runs at each scale."""
    file, _, one = (name or "").partition(":")
    if name is None:
        studies = known_studies()
    elif file.endswith(".py") and not one:
        studies = studies_in(Path(file))
    else:
        chosen = find_study(name)
        studies = {chosen.name: chosen}
    rows = []
    for title, study in studies.items():
        plans = [plan_of(study, scale) for scale in SCALES]
        runs = (str(plan.run_count + plan.tuning_count) for plan in plans)
        rows.append((title, (study.__doc__ or "").strip().partition("\n")[0], *runs))
    head = ("study", "question", *(f"runs, {scale}" for scale in SCALES))
    print_table(console, text_table("", head, rows, names=2))


def _too_few(plan: Plan) -> str:
    """Say that no difference can be significant with so few seeds; nothing if no two arms share two seeds, because
    the report has no error bars then."""
    shared = plan.shared_seeds
    if not shared or min(smallest_corrected(shared)) < SETTLED_AT:
        return ""
    return (
        f"with {max(shared)} shared seeds no difference between arms can be significant (p < {SETTLED_AT:g}, corrected "
        f"for {len(shared)} comparison{'s' * (len(shared) > 1)}); {seeds_to_settle(len(shared))} could suffice"
    )


def _size(plan: Plan) -> str:
    counts = sorted({len(plan.seeds_of(arm)) for arm in plan.arms})
    seeds = f"{' or '.join(map(str, counts))} seed{'s' * (counts != [1])}"
    text = f"{len(plan.arms)} arm{'s' * (len(plan.arms) > 1)} x {seeds}"
    return f"{text}, and {plan.tuning_count} runs on tuning seeds to choose settings" if plan.tuning_count else text
