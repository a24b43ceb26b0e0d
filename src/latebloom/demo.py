"""The paper's headline in minutes: joint training and delayed attention side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from latebloom.config import RunConfig
from latebloom.progress import RunBars
from latebloom.report.charts import plot
from latebloom.report.page import comparison_page
from latebloom.report.terminal import accuracy_table, print_chart, say
from latebloom.report.words import compare
from latebloom.studies.demo import demo_configs, summarize
from latebloom.studies.local import run_all, usable_cores
from latebloom.training.checkpoint import write_file, write_json
from latebloom.training.loop import BEYOND

TITLE = "Trained short, tested long: joint training and delayed attention"


def run_demo(out: Path, *, seed: int = 0, device: str | None = None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Train both, show what came out, and leave pictures and numbers in the folder; returns the summary."""
    configs = demo_configs(seed, overrides)
    console = Console()
    say(console, setting(configs["dat"]))
    with RunBars(list(configs), configs["dat"].training.length, BEYOND, console) as bars:
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
    console.print(accuracy_table(evaluations))
    say(console, f"\n{seen}\n")
    say(console, f"Page: {out / 'index.html'}   Picture: {out / 'accuracy.png'}   Numbers: {out / 'summary.json'}")
    return summary


def setting(config: RunConfig) -> str:
    """What is trained, in a sentence: the demo is smaller than the paper's experiment and says so."""
    model, task = config.model, config.task
    return (
        f"Setting: {task.name} task (digits summed modulo {getattr(task, 'modulus', '-')}, then one of "
        f"{getattr(task, 'keys', '-')} keys asked for its value), a hybrid of {model.blocks} blocks of LSTM, "
        f"attention and MLP, width {model.width}, {config.training.steps} steps, trained on lengths 2 to "
        f"{config.training.length}. "
        "Smaller than the paper's; attention's keys look back one token, and recall is not asked until the switch."
    )
