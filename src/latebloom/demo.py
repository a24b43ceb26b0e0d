"""The demo: joint training and delayed attention side by side, a study of two arms with one seed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from latebloom.config import RunConfig, with_overrides
from latebloom.engine.files import write_file, write_json
from latebloom.engine.folder import RunFolder
from latebloom.engine.loop import TrainedRun
from latebloom.engine.schedule import unfinished_warmups
from latebloom.errors import ConfigError
from latebloom.evaluation.result import CLAIM
from latebloom.recipes import recipe
from latebloom.report.charts import plot
from latebloom.report.page import study_page
from latebloom.report.study import read_sections
from latebloom.report.tables import print_table
from latebloom.report.terminal import print_chart, say
from latebloom.report.words import compare, join_words
from latebloom.study import train_arms
from latebloom.tasks import Composite

TITLE = "Trained short, tested long: joint training and delayed attention"


def run_demo(out: Path, *, seed: int, device: str | None, overrides: Sequence[str]) -> None:
    """Train both arms, show the result, and write figures and numbers into the folder."""
    configs = demo_configs(seed, overrides)
    _check(configs, out)
    console = Console()
    about = setting(configs["dat"])
    say(console, about)
    notes = (note for config in configs.values() for note in unfinished_warmups(config.training, config.delay))
    for note in dict.fromkeys(notes):
        say(console, f"Note: {note}.")
    trained = train_arms("demo", configs, [configs["dat"].seed], out, device=device)
    runs = {name.partition("/")[0]: TrainedRun.load(folder) for name, folder in trained.items()}
    evaluations = {name: run.evaluation for name, run in runs.items()}
    seen = compare(evaluations["joint"], evaluations["dat"], runs["dat"].switch_step)
    write_json(out / "summary.json", {"runs": [summarize(name, run) for name, run in runs.items()], "seen": seen})
    for form in ("png", "svg"):
        plot(evaluations, out / f"accuracy.{form}")
    sections = read_sections([out])
    write_file(out / "index.html", study_page(sections, TITLE, intro=(seen, about)).encode())
    print_chart(console, evaluations)
    print_table(console, sections[0].every_length)
    say(console, f"\n{seen}\n")
    say(console, f"Page: {out / 'index.html'}   Picture: {out / 'accuracy.png'}   Numbers: {out / 'summary.json'}")


def demo_configs(seed: int, overrides: Sequence[str] = ()) -> dict[str, RunConfig]:
    """Return the configurations of joint training and delayed attention; overrides of the delay apply to the second."""
    joint, dat = (replace(recipe(name), seed=seed) for name in ("demo-joint", "demo-dat"))
    shared = [change for change in overrides if not change.startswith("delay")]
    return {"joint": with_overrides(joint, shared), "dat": with_overrides(dat, overrides)}


def summarize(name: str, trained: TrainedRun) -> dict[str, Any]:
    """Return the entry of a run in summary.json."""
    evaluation, result = trained.evaluation, trained.result
    answers = {"both": None} | {answer: answer for answer in evaluation.chance}
    return {
        "name": name,
        "training_length": evaluation.training_length,
        "accuracy": {
            label: {str(length): evaluation.accuracy(length, answer) for length in evaluation.lengths}
            for label, answer in answers.items()
        },
        "reach": evaluation.reach,
        "cliff": evaluation.cliff,
        **{field: result[field] for field in ("parameters", "steps", "switch_step", "seconds", "seed")},
    }


def _check(configs: dict[str, RunConfig], out: Path) -> None:
    """Refuse, before training, what the demo could not show in the end."""
    config = configs["dat"]
    if config.delay is None:
        raise ConfigError("delay: the demo compares joint training with a delay, so it cannot be null")
    if not isinstance(config.task, Composite):
        raise ConfigError(f"task.name: the demo needs the composite task, not {config.task.name}")
    length = config.training.length
    if not {length, CLAIM * length} <= set(config.test_lengths):
        multiples = list(config.evaluation.multiples)
        raise ConfigError(f"evaluation.multiples: {multiples} leave out 1 or {CLAIM}, which the demo compares")
    if out.is_file() or RunFolder(out).config_file.exists():
        kind = "a file" if out.is_file() else "the folder of a run"
        raise ConfigError(f"out: {out} is {kind}; choose another with --out")
    if any(RunFolder(out / name).config_file.exists() for name in configs):
        raise ConfigError(f"out: {out} holds a demo of an earlier version of latebloom; choose another with --out")


def setting(config: RunConfig) -> str:
    """Describe what is trained; the demo is smaller than the experiment of the paper."""
    model, task, delay = config.model, config.task, config.delay
    assert isinstance(task, Composite)
    text = (
        f"Setting: composite task (sum of digits modulo {task.modulus}, and recall of the value of one of {task.keys} "
        f"keys), a hybrid of {model.blocks} blocks of LSTM, attention and MLP, width {model.width}, "
        f"{config.training.steps} steps, trained on lengths 2 to {config.training.length}; smaller than the paper's."
    )
    if model.attention.look_back:
        text += " Token shift: the keys of attention see one token back."
    if delay is not None and delay.withhold:
        text += f" With the delay, the {join_words(delay.withhold)} loss starts at the switch."
    return text
