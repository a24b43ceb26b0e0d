"""List the tasks, models, triggers, recipes and trackers."""

from argparse import Namespace

from latebloom.arguments import Parser


def add_arguments(parser: Parser) -> None:
    """Take no arguments."""


def run(options: Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    from latebloom.delay.policy import HOLDS
    from latebloom.delay.triggers import IN_YOUR_OWN_LOOP, Trigger
    from latebloom.models.recurrent import RECURRENCES
    from latebloom.models.settings import MODELS
    from latebloom.recipes import RECIPES
    from latebloom.tasks import Task
    from latebloom.trackers import TRACKERS

    table = Table(box=None, show_header=False, pad_edge=False)
    models = {name: f"{_first_line(model)} (model.layout={model().layout})" for name, model in MODELS.items()}
    families = {
        "tasks": Task.choices,
        "models": models,
        "recurrences": RECURRENCES,
        "ways to disable attention (delay.hold)": HOLDS,
        "triggers": Trigger.choices,
        "triggers for your own training loop": IN_YOUR_OWN_LOOP,
        "recipes": RECIPES,
        "trackers (train --track)": TRACKERS,
    }
    for family, members in families.items():
        table.add_row(f"[bold]{family}")
        for name, member in members.items():
            table.add_row(f"  {name}", member if isinstance(member, str) else _first_line(member))
    Console().print(table)


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]
