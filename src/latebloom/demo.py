"""The paper's headline in minutes: joint training and delayed attention side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from latebloom.config import RunConfig
from latebloom.engine.checkpoint import write_file, write_json
from latebloom.engine.folder import RunFolder
from latebloom.engine.schedule import unfinished_warmups
from latebloom.errors import CheckpointError, ConfigError
from latebloom.evaluation.result import CLAIM
from latebloom.progress import RunBars
from latebloom.report.charts import plot
from latebloom.report.page import comparison_page
from latebloom.report.tables import length_table
from latebloom.report.terminal import print_chart, say, show_table
from latebloom.report.words import compare
from latebloom.studies.demo import demo_configs, summarize
from latebloom.studies.local import run_all, usable_cores
from latebloom.tasks import Composite

TITLE = "Trained short, tested long: joint training and delayed attention"


def run_demo(out: Path, *, seed: int = 0, device: str | None = None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Train both, show what came out, and leave pictures and numbers in the folder; returns the summary."""
    configs = demo_configs(seed, overrides)
    check_demo(configs, out)
    console = Console()
    say(console, setting(configs["dat"]))
    if configs["dat"].delay and configs["dat"].delay.withhold:
        say(console, "Until then dat's accuracy is that of what is asked: it falls at the switch and rises again.")
    short = [sentence for config in configs.values() for sentence in unfinished_warmups(config.training, config.delay)]
    for sentence in dict.fromkeys(short):
        say(console, f"Note: {sentence}.")
    with RunBars(list(configs), configs["dat"].training.length, CLAIM, console) as bars:
        runs = run_all(configs, out, workers=min(2, usable_cores()), device=device, observe=bars.show)
    evaluations = {name: trained.evaluation for name, trained in runs.items()}
    seen = compare(evaluations["joint"], evaluations["dat"], runs["dat"].switch_step)
    summary = {"runs": [summarize(name, trained) for name, trained in runs.items()], "seen": seen}
    write_json(out / "summary.json", summary)
    for form in ("png", "svg"):
        plot(evaluations, out / f"accuracy.{form}")
    page = comparison_page(
        evaluations,
        title=TITLE,
        seen=seen,
        notes=setting(configs["dat"]),
        settings={name: config.to_json() for name, config in configs.items()},
    )
    write_file(out / "index.html", page.encode())
    print_chart(console, evaluations)
    show_table(console, length_table(evaluations))
    say(console, f"\n{seen}\n")
    say(console, f"Page: {out / 'index.html'}   Picture: {out / 'accuracy.png'}   Numbers: {out / 'summary.json'}")
    return summary


def check_demo(configs: dict[str, RunConfig], out: Path) -> None:
    """Refuse, before anything is trained, what the demo could not show in the end."""
    config = configs["dat"]
    if config.delay is None:
        raise ConfigError("delay: the demo compares joint training with a delay, so it cannot be null")
    if not isinstance(config.task, Composite):
        raise ConfigError(f"task.name: the demo is about the composite task, not {config.task.name}")
    length = config.training.length
    if not {length, CLAIM * length} <= set(config.test_lengths):
        multiples = list(config.evaluation.multiples)
        raise ConfigError(f"evaluation.multiples: {multiples} leave out 1 or {CLAIM}, which the demo compares")
    if out.is_file() or RunFolder(out).config_file.exists():
        raise ConfigError(
            f"out: {out} is {'a file' if out.is_file() else 'the folder of a run'}; choose another with --out"
        )
    for name, chosen in configs.items():
        folder = RunFolder(out / name)
        if folder.config_file.exists() and folder.read_config().hash != chosen.hash:
            raise CheckpointError(
                f"out: {out} holds a demo of another seed or other settings; choose another with --out"
            )


def setting(config: RunConfig) -> str:
    """What is trained, in a sentence: the demo is smaller than the paper's experiment and says so."""
    model, task, delay = config.model, config.task, config.delay
    assert isinstance(task, Composite)
    text = (
        f"Setting: composite task (digits summed modulo {task.modulus}, then one of {task.keys} keys asked for its "
        f"value), a hybrid of {model.blocks} blocks of LSTM, attention and MLP, width {model.width}, "
        f"{config.training.steps} steps, trained on lengths 2 to {config.training.length}; smaller than the paper's."
    )
    if model.attention.look_back:
        text += " Attention's keys look back one token."
    if delay is not None and delay.withhold:
        text += f" With the delay, {' and '.join(delay.withhold)} is not asked until the switch."
    return text
