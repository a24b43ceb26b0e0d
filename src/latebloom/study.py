"""Studies as commands: progress while the runs train, and a report at the end. `train --seeds N` is one too."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from latebloom.config import RunConfig
from latebloom.engine.environment import choose_device
from latebloom.engine.files import write_json
from latebloom.engine.folder import RunFolder, read_json
from latebloom.engine.loop import TrainedRun
from latebloom.engine.pause import paused_step
from latebloom.engine.times import TIMES_FILE, describe_times, read_times, write_times
from latebloom.errors import ConfigError, InterruptedRun, LatebloomError, ResultsError, require
from latebloom.progress import RunProgress
from latebloom.report.power import seeds_note
from latebloom.report.statistics import SETTLED_AT, seeds_to_settle, smallest_corrected
from latebloom.report.study import read_sections, write_report
from latebloom.report.tables import print_table, text_table
from latebloom.report.terminal import say, show_sections
from latebloom.results.file import TUNING_FILE, read_results
from latebloom.studies.beginnings import train_sharing
from latebloom.studies.claim import places
from latebloom.studies.execute import StudyOutcome, execute
from latebloom.studies.find import find_study, known_studies, plan_of, studies_in
from latebloom.studies.local import train_all, usable_cores
from latebloom.studies.plan import SCALES, Arm, Plan, Scale, Stage, describe_cost
from latebloom.studies.stacks import NO_STOPS, Configs, Stops
from latebloom.tasks.contract import check_own_task

TUNING_RUNS = "choice-*/seed-*/config.json"
"""The runs on tuning seeds in the folder of an arm."""
SEEDS = "seeds"
"""The title of the study that `train --seeds N` is."""


def read_plan(name: str, scale: Scale, seeds: int | None = None) -> tuple[str, Plan]:
    """Return the title of a study and its plan at a scale, with another number of seeds if one is given."""
    study = find_study(name)
    plan = plan_of(study, scale)
    if seeds is not None:
        require(1 <= seeds <= 100_000, "seeds", seeds, "from 1 to 100000")
        first = min(plan.seeds, default=0)  # those of a study on fresh seeds begin where nothing was chosen
        plan = replace(plan, seeds=range(first, first + seeds), arms=[replace(arm, seeds=()) for arm in plan.arms])
    return study.name, plan


def run_study(
    title: str,
    plan: Plan,
    out: Path,
    scale: Scale,
    *,
    workers: int | None = None,
    device: str | None = None,
    on: Literal["local", "ray"] = "local",
    address: str | None = None,
) -> StudyOutcome:
    """Run a study and write its results file and report into its folder."""
    if address is not None and on != "ray":
        raise ConfigError(f"--address {address} requires --on ray")
    console = Console()
    say(console, f"Study {title}, scale {scale}: {_size(plan)}. Everything goes to {out}")
    if cost := describe_cost(plan):
        say(console, f"Cost: {cost}.")
    if note := _too_few(plan):
        say(console, f"Note: {note}.")
    train, cluster, more = train_all, nullcontext(), dict[str, Any]()
    if on == "ray":
        from latebloom.studies.on_ray import kind_of_device, train_on_ray
        from latebloom.studies.ray_cluster import ray_cluster

        train, cluster, more = train_on_ray, ray_cluster(address, workers), {"kind_of": kind_of_device}
    before, began = _times_below(out), time.monotonic()
    with cluster:
        outcome = train_plan(title, plan, out, train, workers=workers, device=device, **more)
    trained = time.monotonic()
    if plan.probed:
        _probe(out, device)
    collected = time.monotonic()
    with console.status("Making the report"):
        sections = read_sections([out])
        page = write_report(sections, out / "report")
    show_sections(console, sections)
    times = {part: seconds - before[part] for part, seconds in _times_below(out).items()}
    on_gpu = on == "ray" or choose_device(device).type == "cuda"
    at_once = 1 if on_gpu else min(workers or usable_cores(), plan.run_count + plan.tuning_count)
    busy = sum(times.values())
    if on == "local":
        # Processes that start or wait for the last runs of a stage.
        times["waiting"] = max(0.0, at_once * (trained - began - outcome.collecting) - busy)
    times["collecting"] = at_once * (outcome.collecting + time.monotonic() - collected)
    if busy > 0:
        write_times(out, times)
        say(console, f"Time: {describe_times(times)}")
    for run, reason in outcome.failures.items():
        say(console, f"failed: {out / run}: {reason}")
    say(console, f"Page: {page}   Results: {outcome.results}")
    return outcome


def _probe(out: Path, device: str | None) -> None:
    """Probe the runs of a study with every probe of this package; what was measured before is kept."""
    from latebloom.probes import NAMES, load_probes
    from latebloom.probes.probe import Probe
    from latebloom.progress import probe_with_bar
    from latebloom.results.find_runs import find_runs
    from latebloom.results.probes import FOLDER

    load_probes()
    try:
        runs = find_runs([out])
    except ResultsError:  # no run finished; the report says why
        return
    probe_with_bar(runs, [Probe.named(name) for name in NAMES], out / FOLDER, device=device)


def _times_below(out: Path) -> dict[str, float]:
    """Return how long the parts of the runs in the folder of a study took, all together."""
    return read_times(file.parent for file in out.glob(f"*/**/{TIMES_FILE}"))


def train_plan(
    title: str,
    plan: Plan,
    out: Path,
    train: Callable[..., dict[str, str]] = train_all,
    *,
    workers: int | None = None,
    device: str | None = None,
    kind_of: Callable[[str | None], str] = lambda device: str(choose_device(device)),
) -> StudyOutcome:
    """Train the runs of a plan that are not finished, with `train_all` or the same on a cluster; show the progress.

    `kind_of` returns the kind of device that runs are trained on, from the one that the user has named.
    """
    check_arms(plan, out)
    with RunProgress() as bar:
        begun = describe_begun(plan, out)

        def announce(stage: Stage) -> None:
            nonlocal begun
            if begun:
                say(bar.console, f"{begun}.")
                begun = ""
            bar.stage = stage if plan.tuning_count else Stage("")
            if stage.note:
                say(bar.console, f"Note: {stage.note}.")
            if plan.tuning_count and not stage.later and (note := needed_seeds(plan, out)):
                say(bar.console, f"Note: {note}.")

        def runner(configs: Configs, folder: Path, stops: Stops = NO_STOPS) -> dict[str, str]:
            bar.expect(configs, folder, stops)
            kind = kind_of(device)
            return train_sharing(configs, folder, stops, train_to, kind, in_step=kind.startswith("cuda"))

        def train_to(configs: Configs, folder: Path, stops: Stops) -> dict[str, str]:
            more: dict[str, Any] = {"stops": stops} if stops else {}
            return train(configs, folder, workers=workers, device=device, observe=bar.show, **more)

        try:
            return execute(title, plan, out, runner, announce)
        except InterruptedRun as stop:
            raise InterruptedRun(f"{stop}; continue with: latebloom {shlex.join(sys.argv[1:])}") from None


def check_arms(plan: Plan, out: Path) -> None:
    """Raise if a task is not what it declares, or if a new study has a setting without effect."""
    for arm in plan.arms:
        if not isinstance(arm.config, RunConfig):
            continue
        check_own_task(arm.config.task, arm.config.training.length)
        for config in () if (out / "study.json").exists() else (arm.config, *arm.choices):
            try:
                config.check_effects()
            except ConfigError as error:
                raise ConfigError(f"{f'arm {arm.name}: ' * (len(plan.arms) > 1)}{error}") from None


def train_seeds(config: RunConfig, count: int, out: Path, *, device: str | None = None) -> None:
    """Train `count` runs with consecutive seeds from the configuration's on, each in `out/seed-N`."""
    require(1 <= count <= 100_000, "seeds", count, "from 1 to 100000")
    trained = train_arms(SEEDS, {"": config}, range(config.seed, config.seed + count), out, device=device)
    console = Console()
    (section,) = read_sections([out])
    print_table(console, section.every_length)
    print_table(console, section.tables["reach"])
    say(console, f"{section.headline} {section.caveats}")
    runs = []
    for name, folder in trained.items():
        run = TrainedRun.load(folder)  # one model at a time: there may be thousands
        runs.append(run.result | {"name": name, "evaluation": run.evaluation.to_json()})
    write_json(out / "summary.json", {"config": config.to_json(), "runs": runs})
    say(console, f"A folder for each run: {out}   Numbers: {out / 'summary.json'}")


def begun_seeds(out: Path) -> tuple[RunConfig, int] | None:
    """Return the configuration and the number of seeds of the `train --seeds` that has begun in a folder, or None."""
    runs, file = RunFolder(out).runs_below(), out / "study.json"
    about = read_json(file, "study", "seeds") if runs and file.exists() else {}
    if about.get("study") != SEEDS:
        return None
    return replace(RunFolder(runs[0]).read_config(), seed=min(about["seeds"])), len(about["seeds"])


def train_arms(
    title: str, configs: dict[str, RunConfig], seeds: Sequence[int], out: Path, *, device: str | None = None
) -> dict[str, Path]:
    """Train a few arms as a study whose runs are in `out/ARM/seed-N`; return their folders by name. A failure is an
    error."""
    arms = [Arm(arm or "run", replace(config, seed=0), folder=arm) for arm, config in configs.items()]
    runs = {Path(arm, f"seed-{seed}"): replace(config, seed=seed) for arm, config in configs.items() for seed in seeds}
    for name, config in runs.items():
        RunFolder(out / name).require_same_settings(config)
    outcome = train_plan(title, Plan(arms, seeds), out, device=device)
    if outcome.failures:
        raise LatebloomError("; ".join(f"run {name} failed: {reason}" for name, reason in outcome.failures.items()))
    return {name.as_posix(): out / name for name in runs}


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
        plans = (plan_of(study, scale) if scale in study.scales else None for scale in SCALES)
        runs = (str(plan.run_count + plan.tuning_count) if plan else "-" for plan in plans)
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


def describe_begun(plan: Plan, out: Path) -> str:
    """Say how many runs of a study are finished and how many are left; empty if none has begun."""
    reported = [RunFolder(place / f"seed-{seed}") for arm, place in places(plan, out) for seed in plan.seeds_of(arm)]
    tuned = [RunFolder(file.parent) for _, place in places(plan, out / "tuning") for file in place.glob(TUNING_RUNS)]
    begun = [run for run in reported if run.config_file.exists()] + tuned
    finished = sum(run.is_finished for run in begun)
    if not begun:
        return ""
    if all(run.is_finished for run in reported):
        return f"All {len(reported)} runs in {out} are finished already"
    paused = sum(not run.is_finished and paused_step(run) is not None for run in tuned)
    total = len(reported) + max(plan.tuning_count, len(tuned))
    rest = {
        "paused in tuning": paused,
        "interrupted or failed": len(begun) - finished - paused,
        "not begun": total - len(begun),
    }
    counts = [f"{finished} of {total} runs are finished", *(f"{count} {what}" for what, count in rest.items() if count)]
    return f"Continues in {out}: {', '.join(counts)}"


def needed_seeds(plan: Plan, out: Path) -> str:
    """Say how many seeds the reported runs need, from those of the tuning; empty if that has not ended."""
    chosen = {(one["task"], one["arm"]): one["chosen"] for one in _read_choices(out / "choices.json")}
    planned = {(arm.task, arm.name): len(plan.seeds_of(arm)) for arm in plan.arms}
    return seeds_note(read_results([out / TUNING_FILE]), chosen, planned) if chosen else ""


def _read_choices(file: Path) -> list[dict[str, Any]]:
    """Return the chosen settings of a study; empty if it has chosen none."""
    return json.loads(file.read_text()) if file.exists() else []


def _size(plan: Plan) -> str:
    counts = sorted({len(plan.seeds_of(arm)) for arm in plan.arms})
    seeds = f"{' or '.join(map(str, counts))} seed{'s' * (counts != [1])}"
    text = f"{len(plan.arms)} arm{'s' * (len(plan.arms) > 1)} x {seeds}"
    return f"{text}, and {plan.tuning_count} runs on tuning seeds to choose settings" if plan.tuning_count else text
