"""The folder of a study: the folders of its arms, its lock and its description."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from latebloom.config import RunConfig
from latebloom.engine.files import write_json
from latebloom.engine.folder import RunFolder, read_json
from latebloom.engine.lock import Lock, locked
from latebloom.errors import CheckpointError, LatebloomError
from latebloom.reading import find_link
from latebloom.results.settings import changes
from latebloom.studies.plan import Arm, Plan, Round

MAX_LISTED = 3
"""The number of differences between two studies that an error lists."""


def places(plan: Plan, out: Path) -> Iterator[tuple[Arm, Path]]:
    """Yield each arm and its folder, whose name has only characters that every file system allows."""
    taken: set[str] = set()
    for arm in plan.arms:
        words = [re.sub(r"[^\w.+-]+", "-", word).strip("-.") or "arm" for word in (arm.task, arm.name)]
        place = "/".join(words) if arm.folder is None else arm.folder
        while place.lower() in taken:
            place += "-"
        taken.add(place.lower())
        yield arm, out / place


@contextmanager
def claimed(out: Path, name: str, plan: Plan) -> Iterator[Lock]:
    """Lock the folder for this study and this process while the context lasts."""
    if link := find_link(out, levels=4):
        raise CheckpointError(f"out: {link}; a study is not written through links, choose another folder")
    with locked(out, f"out: {out} is in use: another process runs a study there") as lock:
        check_claim(out, name, plan)
        write_json(out / "study.json", _describe(name, plan))
        yield lock


def check_claim(out: Path, name: str, plan: Plan) -> None:
    """Raise if the folder holds another study, or this one with other settings."""
    if RunFolder(out).config_file.exists():
        raise CheckpointError(f"out: {out} is the folder of one run; choose another folder for several")
    file, about = out / "study.json", _describe(name, plan)
    if file.exists() and _without_seeds(before := _current_hashes(file, plan)) != _without_seeds(about):
        raise CheckpointError(f"out: {out} holds {_describe_conflict(before, about, plan, out)}; choose another folder")
    for arm, place in places(plan, out):
        begun = (file.parent.name.removeprefix("seed-") for file in place.glob("seed-*/config.json"))
        if missing := sorted({int(seed) for seed in begun if seed.isdigit()} - set(plan.seeds_of(arm))):
            numbers = ", ".join(map(str, missing))
            raise CheckpointError(
                f"out: {out} has runs of the arm {arm.name} with seeds that this study does not have ({numbers}); "
                "seeds can be added but not removed, so add these or choose another folder"
            )


def _describe(name: str, plan: Plan) -> dict[str, Any]:
    """Return the contents of study.json."""
    return {
        "study": name,
        "seeds": list(plan.seeds),
        "tuning_seeds": list(plan.tuning_seeds),
        **({"second_round": list(plan.second_round), "finalists": plan.finalists} if plan.second_round else {}),
        **({"rounds": [_describe_round(one) for one in plan.rounds]} if plan.rounds else {}),
        # As it will be read again, with lists for tuples.
        **({"hypotheses": json.loads(json.dumps([asdict(h) for h in plan.hypotheses]))} if plan.hypotheses else {}),
        "arms": [
            {"task": arm.task, "arm": arm.name, "config": arm.config.hash, "choices": [c.hash for c in arm.choices]}
            | ({"seeds": list(arm.seeds)} if arm.seeds else {})
            # As it will be read again, with lists for tuples.
            | ({"axis": json.loads(json.dumps(asdict(arm.axis)))} if arm.axis else {})
            for arm in plan.arms
        ],
    }


def _describe_round(one: Round) -> dict[str, Any]:
    return {"tuning_seeds": list(one.seeds), "share": one.share, "keep": one.keep}


def _current_hashes(file: Path, plan: Plan) -> Any:
    """Return the contents of study.json, with the hashes of earlier versions replaced by those of this version."""
    configs = [config for arm in plan.arms for config in (arm.config, *arm.choices)]
    current = {older: config.hash for config in configs for older in config.hashes}

    text = json.dumps(read_json(file))
    return json.loads(re.sub(r'"(\w+)"', lambda word: f'"{current.get(word[1], word[1])}"', text))


def _without_seeds(about: Any) -> Any:
    """Return the description of a study without its seeds, because seeds can be added."""
    if isinstance(about, dict):
        return {name: _without_seeds(value) for name, value in about.items() if name != "seeds"}
    return [_without_seeds(item) for item in about] if isinstance(about, list) else about


def _describe_conflict(before: Any, about: dict[str, Any], plan: Plan, out: Path) -> str:
    """Return how the study in the folder differs from the given one."""
    try:
        if before["study"] != about["study"]:
            return f"the study {before['study']}"
        then, now = (
            {(arm["task"], arm["arm"]): _without_seeds(arm) for arm in study["arms"]} for study in (before, about)
        )
    except (AttributeError, KeyError, TypeError):
        return "another study"
    many_tasks = len({arm.task for arm in plan.arms}) > 1
    label = {(task, arm): f"{arm} on {task}" if many_tasks else arm for task, arm in then | now}
    found = [f"there is no arm {label[key]}" for key in now if key not in then]
    found += [f"there is an arm {label[key]}" for key in then if key not in now]
    for arm, place in places(plan, out):
        key = arm.task, arm.name
        if key in then and then[key] != now[key]:
            settings = "" if arm.choices else _changed_settings(place, arm.config)
            found.append(f"arm {label[key]} has {settings or 'other settings or choices'}")
    choosing = ("tuning_seeds", "second_round", "finalists", "rounds", "hypotheses")
    found += [f"its {name} differ" for name in choosing if before.get(name) != about.get(name)]
    return f"this study with differences, perhaps at another scale: {_abbreviate(found or ['the order of its arms'])}"


def _changed_settings(place: Path, config: RunConfig) -> str:
    """Return the settings in which the runs in an arm's folder differ from a configuration."""
    for file in sorted(place.glob("seed-*/config.json")):
        with suppress(LatebloomError):  # a folder that cannot be read raises its own error later
            found = changes(config, RunFolder(file.parent).read_config())
            return _abbreviate([f"{name}={value}" for name, value in found.items() if name != "seed"])
    return ""


def _abbreviate(items: list[str]) -> str:
    rest = [f"{len(items) - MAX_LISTED} more"] if len(items) > MAX_LISTED else []
    return ", ".join([*items[:MAX_LISTED], *rest])
