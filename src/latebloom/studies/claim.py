"""The folder of a study: where its arms are in it, and which study and process it belongs to."""

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from latebloom.config import RunConfig
from latebloom.engine.checkpoint import write_json
from latebloom.engine.folder import RunFolder
from latebloom.errors import CheckpointError, ConfigError, LatebloomError
from latebloom.results.settings import changes
from latebloom.studies.plan import Arm, Plan

MOST_TOLD = 3
"""How many differences between two studies a message names."""


def places(plan: Plan, out: Path) -> Iterator[tuple[Arm, Path]]:
    """Yield a folder for every arm, named after it with the characters that file systems allow."""
    taken: set[str] = set()
    for arm in plan.arms:
        words = [re.sub(r"[^\w.+-]+", "-", word).strip("-.") or "arm" for word in (arm.task, arm.name)]
        place = "/".join(words) if arm.folder is None else arm.folder
        while place.lower() in taken:
            place += "-"
        taken.add(place.lower())
        yield arm, out / place


@contextmanager
def claimed(out: Path, name: str, plan: Plan) -> Iterator[None]:
    """Reserve the folder for this study and this process within the context."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = open(out / ".lock", "w")  # noqa: SIM115 (held until the context ends)
    except OSError as error:
        raise ConfigError(f"out: {out} cannot be written ({error.strerror}); choose a folder that can") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"out: {out} is in use: another process runs a study there") from None
        about = {
            "study": name,
            "seeds": list(plan.seeds),
            "tuning_seeds": list(plan.tuning_seeds),
            **({"second_round": list(plan.second_round), "finalists": plan.finalists} if plan.second_round else {}),
            "arms": [
                {"task": arm.task, "arm": arm.name, "config": arm.config.hash, "choices": [c.hash for c in arm.choices]}
                | ({"seeds": list(arm.seeds)} if arm.seeds else {})
                for arm in plan.arms
            ],
        }
        file = out / "study.json"
        if file.exists() and _without_seeds(before := _todays_hashes(file, plan)) != _without_seeds(about):
            raise CheckpointError(f"out: {out} holds {_what_it_holds(before, about, plan, out)}; choose another folder")
        for arm, place in places(plan, out):
            if lacking := sorted(_begun_seeds(place) - set(plan.seeds_of(arm))):
                numbers = ", ".join(map(str, lacking))
                raise CheckpointError(
                    f"out: {out} has runs of {arm.name} with seeds that this study lacks ({numbers}); seeds can be "
                    "added but not taken away, so give these too or choose another folder"
                )
        write_json(file, about)
        yield


def _todays_hashes(file: Path, plan: Plan) -> Any:
    """Return what study.json says, with today's hashes where an older version has written its own."""
    configs = [config for arm in plan.arms for config in (arm.config, *arm.choices)]
    todays = {older: config.hash for config in configs for older in config.hashes}

    def translate(data: Any) -> Any:
        if isinstance(data, dict):
            return {name: translate(value) for name, value in data.items()}
        if isinstance(data, list):
            return [translate(item) for item in data]
        return todays.get(data, data) if isinstance(data, str) else data

    return translate(RunFolder(file.parent).read_json(file))


def _without_seeds(about: Any) -> Any:
    """Return the description of a study without the seeds of its runs, to which more can be added."""
    if isinstance(about, dict):
        return {name: _without_seeds(value) for name, value in about.items() if name != "seeds"}
    return [_without_seeds(one) for one in about] if isinstance(about, list) else about


def _what_it_holds(before: Any, about: dict[str, Any], plan: Plan, out: Path) -> str:
    """Describe the study in a folder by how it differs from the requested one."""
    try:
        if before["study"] != about["study"]:
            return f"the study {before['study']}"
        then, now = ({(arm["task"], arm["arm"]): _without_seeds(arm) for arm in one["arms"]} for one in (before, about))
    except (AttributeError, KeyError, TypeError):
        return "another study"
    many_tasks = len({arm.task for arm in plan.arms}) > 1
    told = [f"there is no arm {_called(*one, many_tasks)}" for one in now if one not in then]
    told += [f"there is an arm {_called(*one, many_tasks)}" for one in then if one not in now]
    for arm, place in places(plan, out):
        one = arm.task, arm.name
        if one in then and then[one] != now[one]:
            settings = "" if arm.choices else _settings_of(place, arm.config)
            told.append(f"arm {_called(*one, many_tasks)} has {settings or 'other settings or choices'}")
    choosing = ("tuning_seeds", "second_round", "finalists")
    told += [f"its {name} are others" for name in choosing if before.get(name) != about.get(name)]
    return f"this study otherwise, perhaps at another scale: {_few(told or ['the order of its arms is another'])}"


def _called(task: str, arm: str, many_tasks: bool) -> str:
    return f"{arm} on {task}" if many_tasks else arm


def _settings_of(place: Path, config: RunConfig) -> str:
    """Return the settings in which the runs in an arm's folder differ from a configuration."""
    for file in sorted(place.glob("seed-*/config.json")):
        with suppress(LatebloomError):  # a folder that cannot be read has an error of its own later
            found = changes(config, RunFolder(file.parent).read_config())
            return _few([f"{name}={value}" for name, value in found.items() if name != "seed"])
    return ""


def _few(words: list[str]) -> str:
    rest = [f"{len(words) - MOST_TOLD} more"] if len(words) > MOST_TOLD else []
    return ", ".join([*words[:MOST_TOLD], *rest])


def _begun_seeds(place: Path) -> set[int]:
    """Return the seeds of an arm whose runs have started."""
    folders = (file.parent.name.removeprefix("seed-") for file in place.glob("seed-*/config.json"))
    return {int(seed) for seed in folders if seed.isdigit()}
