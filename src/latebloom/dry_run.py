"""Dry runs: what a run or a study would train, and an estimate of its time. Nothing is trained or written."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from latebloom.config import RunConfig
from latebloom.delay.triggers import AtFraction, AtStep
from latebloom.engine.backend import parameters_by_role
from latebloom.engine.environment import choose_device
from latebloom.engine.folder import RunFolder
from latebloom.engine.pause import step_reached
from latebloom.engine.process_state import preserve_torch_state
from latebloom.engine.settings import Phase
from latebloom.engine.stacks import check_not_in_stack
from latebloom.errors import require
from latebloom.estimate import START_FIRST_WORKER, Estimator, format_duration, switch_step
from latebloom.models.layout import describe_layout
from latebloom.models.sequence_model import SequenceModel
from latebloom.report.tables import print_table, text_table
from latebloom.report.terminal import say
from latebloom.studies.beginnings import saved_by_sharing
from latebloom.studies.claim import check_claim
from latebloom.studies.local import usable_cores
from latebloom.studies.plan import Plan, describe_cost
from latebloom.studies.rounds import planned_stages
from latebloom.studies.stacks import Stops, unfinished
from latebloom.study import check_arms, needed_seeds
from latebloom.tasks.contract import check_own_task

EXAMPLE_LENGTH = 6


def describe_run(config: RunConfig) -> Iterator[str]:
    """Yield lines on the model, the task, the phases of training and the tests of a run."""
    with preserve_torch_state(torch.device("cpu")):
        model = SequenceModel(config.model, config.task.vocabulary_size)
    counts = {
        role: sum(parameter.numel() for parameter in parameters.values())
        for role, parameters in parameters_by_role(model).items()
    }
    parts = describe_layout(config.model.layout)
    yield f"Model: {config.model.blocks} blocks of {parts}, width {config.model.width}; " + (
        f"{sum(counts.values()):,} parameters ({', '.join(f'{role} {count:,}' for role, count in counts.items())})"
    )
    shortest = max(2, config.task.shortest)
    yield (
        f"Task: {config.task.name}, lengths {shortest} to {config.training.length}, "
        f"{config.task.vocabulary_size} tokens; for example, at length {max(shortest, EXAMPLE_LENGTH)}:"
    )
    yield from _example(config, max(shortest, EXAMPLE_LENGTH))
    yield from _phases(config)
    multiples = (f"{length} ({length / config.training.length:g}x)" for length in config.test_lengths)
    yield f"Test: lengths {', '.join(multiples)}; {config.evaluation.sequences} sequences each"


def _example(config: RunConfig, length: int) -> Iterator[str]:
    """Yield a training sequence, and below it each answer at the token where it is predicted."""
    task = config.task
    batch = task.batch(config.seed, "train", 0, length=length, size=1)
    rows = {"tokens": [task.spell(token) for token in batch.tokens[0].tolist()]}
    for name, columns in batch.columns.items():
        rows[name] = [""] * len(rows["tokens"])
        answers = zip(batch.positions[0, columns].tolist(), batch.targets[0, columns].tolist(), strict=True)
        for position, target in answers:
            rows[name][position] = task.spell(target)
    widths = [max(map(len, column)) for column in zip(*rows.values(), strict=True)]
    title = max(map(len, rows))
    for name, row in rows.items():
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"    {name:<{title}}  {' '.join(cells)}".rstrip()


def _phases(config: RunConfig) -> Iterator[str]:
    training, delay, switch = config.training, config.delay, switch_step(config)
    if delay is not None:
        latest = "" if isinstance(delay.until, AtStep | AtFraction) else " at the latest"
        without = f", without {' and '.join(delay.withhold)} in the loss" if delay.withhold else ""
        held = f"attention: {delay.hold}{without}"
        yield f"Delay: steps 1 to {switch}{latest} ({held}); {_describe_phase(training.delayed)}"
    yield f"Training: steps {switch + 1} to {training.steps}; {_describe_phase(training.full)}"


def _describe_phase(phase: Phase) -> str:
    return (
        f"{phase.batch_size} sequences per step, learning rate {phase.learning_rate:g} after {phase.warmup} "
        f"warm-up steps, {phase.schedule} schedule"
    )


def describe_folder(folder: Path, config: RunConfig) -> str:
    """Return what training would do with the folder of a run; raise if it would refuse the folder."""
    place = RunFolder(folder)
    step = step_reached(place)
    if not place.config_file.exists():
        config.check_effects()
        return _describe_new(folder)
    check_not_in_stack(place)
    if place.can_extend(config):
        return f"Folder: {folder} holds this run with other settings; it would be extended from step {step}"
    place.require_same_settings(config)
    if place.is_finished:
        return f"Folder: {folder} holds this run, finished; nothing would be trained"
    return f"Folder: {folder} holds this run, interrupted; it would continue from step {step}"


def describe_folders(folder: Path, runs: Collection[str]) -> str:
    """Return how many of the runs in `folder/NAME` there are already."""
    places = [RunFolder(folder / name) for name in runs]
    finished = sum(place.is_finished for place in places)
    begun = sum(place.config_file.exists() and not place.is_finished for place in places)
    if not finished and not begun:
        return _describe_new(folder)
    return f"Folder: {folder} holds {finished} finished and {begun} interrupted of the {len(runs)} runs"


def _describe_new(folder: Path) -> str:
    return f"Folder: {folder} would be {'used' if folder.exists() else 'created'}"


def show_run(config: RunConfig, folder: Path, *, device: str | None, seeds: int | None) -> None:
    """Print the configuration as JSON to standard output, and what would be trained to standard error."""
    chosen, notes = choose_device(device), Console(stderr=True)
    check_own_task(config.task, config.training.length)
    if seeds is None:
        runs, workers, state = {"": config}, None, describe_folder(folder, config)
    else:
        require(1 <= seeds <= 100_000, "seeds", seeds, "from 1 to 100000")
        runs = {f"seed-{seed}": replace(config, seed=seed) for seed in range(config.seed, config.seed + seeds)}
        for name, one in runs.items():
            RunFolder(folder / name).require_same_settings(one)
        if not (folder / "study.json").exists():
            config.check_effects()
        workers, state = min(usable_cores(), seeds), describe_folders(folder, runs)
    print(json.dumps(config.to_json(), indent=2), flush=True)
    for line in describe_run(config):
        say(notes, line)
    if seeds is not None:
        say(notes, f"Runs: {seeds}, with seeds {config.seed} to {config.seed + seeds - 1}")
    say(notes, state)
    left = {
        name: one
        for name, one in runs.items()
        if not (place := RunFolder(folder / name)).is_finished or place.read_config().hash != one.hash
    }
    _show_time(notes, Estimator(chosen, workers), [(left, {})], folder)


def show_study(title: str, plan: Plan, folder: Path, *, device: str | None, workers: int | None) -> None:
    """Print the arms of a study, how many runs and steps they are, and about how long they take."""
    console, chosen = Console(), choose_device(device)
    check_claim(folder, title, plan)
    rows = []
    check_arms(plan, folder)
    for arm in plan.arms:
        runs, tuning = len(plan.seeds_of(arm)), plan.tuning_count_of(arm)
        rows.append((arm.name, arm.task, str(runs), f"{arm.config.training.steps:,}", str(tuning or "-")))
    print_table(console, text_table("", ("arm", "task", "runs", "steps each", "tuning runs"), rows, names=2))
    stages = planned_stages(plan)
    runs = {name: config for stage, _ in stages for name, config in stage.items()}
    tuned = plan.total_tuning_steps
    steps = sum(plan.reported_steps) + tuned
    say(console, f"Together: {len(runs)} runs, {steps:,} steps")
    if plan.saved_by_rounds:
        grid = f"{tuned + plan.saved_by_rounds:,} for all choices on all tuning seeds"
        say(console, f"Tuning: {tuned:,} of these steps, instead of {grid}")
    if plan.most_tuning_steps > tuned:
        say(
            console,
            f"Tuning: at most {plan.most_tuning_steps:,} steps, if no setting is above chance before the last round "
            "and every range is extended as far as it can be",
        )
    if shared := saved_by_sharing(plan):
        say(console, f"Shared beginnings: {shared:,} of these steps are trained only once, for several runs")
    if cost := describe_cost(plan):
        say(console, f"Cost: {cost}")
    if note := needed_seeds(plan, folder):
        say(console, f"Seeds: {note}")
    say(console, describe_folders(folder, runs))
    if not all(isinstance(arm.config, RunConfig) for arm in plan.arms):
        say(
            console,
            "Time: not estimated, because steps of language models are not measured in a dry run; `latebloom lm bench` "
            "measures them. Nothing was trained or written.",
        )
        return
    left = [(unfinished(stage, folder, stops), stops) for stage, stops in stages]
    several_at_once = chosen.type == "cuda" and workers != 1
    _show_time(console, Estimator(chosen, workers or usable_cores()), left, folder, several_at_once)


def _show_time(
    console: Console,
    estimator: Estimator,
    stages: Sequence[tuple[Mapping[str, RunConfig], Stops]],
    folder: Path,
    several_at_once: bool = False,
) -> None:
    with console.status("Measuring"):
        seconds = sum(estimator.seconds(stage, folder, stops) for stage, stops in stages if stage)
    where = f"on {estimator.device}"
    if estimator.device.type == "cpu" and estimator.workers is not None:
        where = f"in {estimator.workers} processes"
        seconds += START_FIRST_WORKER if seconds else 0.0
    elif several_at_once:
        where += ", one stack after the other (several are trained at once, which is faster)"
    time = f"about {format_duration(seconds)} {where}, estimated from a few steps" if seconds else "none"
    say(console, f"Time: {time}. Nothing was trained or written.")
