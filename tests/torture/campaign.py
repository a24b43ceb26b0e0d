"""`make torture`: random cases for some minutes, and a table of how many broke a promise.

    python tests/torture/campaign.py --minutes 60 --seed 7
    python tests/torture/campaign.py --minutes 300 --processes 2 --long --out results/torture.json

A case may make several attacks (a chain of kills); the table counts attacks. With --out the counts are written as the
campaign goes, and the same command continues it. Every case is a function of the seed, its name and its number, so that
a failure can be repeated: --only NAME --first N.
"""

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
for place in ("", "report", "torture"):
    sys.path.insert(0, str(Path(__file__).parent.parent / place))

import torch  # noqa: E402
from cases import CASES, LONG_CASES  # noqa: E402
from reference import Shared, end, prepare  # noqa: E402

from latebloom import Composite, Delay, Evaluating, Phase, RunConfig, Training, at_step, hybrid  # noqa: E402
from latebloom.engine.environment import describe_environment  # noqa: E402


def tiny() -> RunConfig:
    """A run of a tenth of a second with every part of a real one."""
    return RunConfig(
        task=Composite(modulus=3, keys=16, values=4),
        model=hybrid(width=8, blocks=2, heads=2),
        delay=Delay(until=at_step(12), withhold=("recall",)),
        training=Training(
            length=5, steps=24, log_every=3, check_every=8, checkpoint_every=5,
            delayed=Phase(learning_rate=5e-3, warmup=4, batch_size=8),
            full=Phase(learning_rate=3e-3, warmup=4, batch_size=16),
        ),
        evaluation=Evaluating(multiples=(1, 2, 3), sequences=32),
    )  # fmt: skip


# The long form of the campaign: how many attacks of each kind it makes.
LONG = {
    "a run killed at random moments": 10_000,
    "a stack killed at random moments": 1_000,
    "a fault at a call to the file system": 4_248,  # every call, with every error
    "a fault at a call to the file system, in a stack": 1_106,  # every call, with an error and with the process's end
    "a changed file of a finished run": 15_000,
    "a changed file of the newest checkpoint": 3_000,
    "a changed results file": 85_000,
    "a random configuration": 100_000,
    "NaN, infinity or 1e30 in weights, moments, gradient or loss": 500,
    "a learning rate of 1e20 to 1e30": 100,
    "two processes in one folder": 250,
    "random names in a report, in a browser": 250,
    "a study whose processes are killed": 30,
    "a Ray worker killed": 30,
    "a Ray node lost": 6,
}
KINDS = CASES | LONG_CASES

SECONDS_IN_A_TURN = 5

Found = dict[str, dict[str, Any]]
in_this_process: Shared


def attack(name: str, first: int, most: float, seconds: float, seed: int, shared: Shared) -> dict[str, Any]:
    """Run cases of one kind from number `first` on for some seconds; return how many attacks they made and what failed.

    A case may make several attacks; no case begins once there have been `most`.
    """
    began, cases, attacks, failures = time.monotonic(), 0, 0, []
    while attacks < most and (not cases or time.monotonic() - began < seconds):
        folder = Path(tempfile.mkdtemp(prefix="torture-"))
        shared.number = first + cases
        cases += 1
        try:
            made = KINDS[name](random.Random(f"{seed} {name} {shared.number}"), folder, shared)
            attacks += 1 if made is None else made
        except Exception:
            attacks += 1
            failures.append({"number": shared.number, "error": traceback.format_exc(limit=-3)})
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return {"cases": cases, "attacks": attacks, "seconds": time.monotonic() - began, "failures": failures}


def begin(with_browser: bool) -> None:
    """Prepare a process of the campaign; at its end, end the browser and the cluster that it started."""
    global in_this_process
    torch.set_num_threads(1)
    in_this_process = prepare(tiny(), Path(tempfile.mkdtemp(prefix="torture-shared-")), with_browser)
    Finalize(None, end, (in_this_process,), exitpriority=1)  # such processes run no functions of atexit


def attack_here(name: str, first: int, most: float, seed: int) -> dict[str, Any]:
    return attack(name, first, most, SECONDS_IN_A_TURN, seed, in_this_process)


def campaign(
    seconds: float,
    seed: int,
    targets: Mapping[str, float],
    found: Found,
    save: Callable[[Found], None],
    processes: int,
) -> Found:
    """Attack in turns of a few seconds until the time is over or every kind has reached its target.

    The kind that is furthest from its target is next, the long cases last; without targets (infinity) each kind gets an
    equal share of the time. A kind is attacked by one process at a time. `found` holds the counts so far: cases are
    numbered on from there, and `save` is called after each turn.
    """
    until = time.monotonic() + seconds
    for name in targets:
        found.setdefault(name, {"cases": 0, "attacks": 0, "seconds": 0.0, "failures": []})

    def share_done(name: str) -> tuple[bool, float]:
        one = found[name]
        share = one["seconds"] if math.isinf(targets[name]) else one["attacks"] / targets[name]
        return name in LONG_CASES, share  # those come last, because a Ray cluster takes time from other cases

    turns: dict[Future[dict[str, Any]], str] = {}
    with_browser = "random names in a report, in a browser" in targets
    with ProcessPoolExecutor(processes, get_context("spawn"), begin, (with_browser,)) as pool:
        while True:
            unfinished = (name for name in targets if found[name]["attacks"] < targets[name])
            waiting = [name for name in unfinished if name not in turns.values()]
            if time.monotonic() < until and waiting and len(turns) < processes:
                name = min(waiting, key=share_done)
                left = targets[name] - found[name]["attacks"]
                turns[pool.submit(attack_here, name, found[name]["cases"], left, seed)] = name
                continue
            if not turns:
                return found
            for turn in wait(turns, return_when=FIRST_COMPLETED).done:
                name = turns.pop(turn)
                for key, value in turn.result().items():
                    found[name][key] += value
                save(found)


def table(found: dict[str, Any]) -> str:
    width = max(map(len, found))
    lines = [f"{'test':{width}}  {'attacks':>8}  failures"]
    lines += [f"{name:{width}}  {one['attacks']:>8,}  {len(one['failures']):>8,}" for name, one in found.items()]
    return "\n".join(lines)


def read(file: Path | None, seed: int) -> tuple[Found, float, list[dict[str, Any]]]:
    """Return the counts, the minutes and the environments of earlier parts of this campaign, if there are any."""
    if file is None or not file.exists():
        return {}, 0.0, []
    about = json.loads(file.read_text())
    if about["seed"] != seed:
        sys.exit(f"{file} is of a campaign with seed {about['seed']}; give --seed {about['seed']} or another file")
    return about["tests"], about["minutes"], about["environments"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="the most minutes to spend (default 60)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], choices=list(KINDS), help="a kind of case; repeatable")
    parser.add_argument("--long", action="store_true", help="end when the counts of the long form are reached")
    parser.add_argument("--processes", type=int, default=1, help="how many attack at a time (default 1)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--out", type=Path, help="a JSON file for the table; a campaign that it holds is continued")
    options = parser.parse_args()
    chosen = options.only or list(KINDS if options.long else CASES)
    targets = {name: LONG[name] if options.long else math.inf for name in chosen}
    found, minutes, earlier = read(options.out, options.seed)
    named = subprocess.run(["stat", "-f", "-c", "%T", tempfile.gettempdir()], capture_output=True, text=True)
    here = {"file_system": named.stdout.strip(), **describe_environment(options.seed, "cpu")}
    for name in chosen:
        if options.first:
            found[name] = {"cases": options.first, "attacks": 0, "seconds": 0.0, "failures": []}
    began, shown = time.monotonic(), 0.0

    def save(found: Found) -> None:
        nonlocal shown
        spent = time.monotonic() - began
        if options.out is not None:
            minutes_now = round(minutes + spent / 60, 1)
            about = {"seed": options.seed, "minutes": minutes_now, "environments": [*earlier, here], "tests": found}
            partial = options.out.with_suffix(".partial")
            partial.write_text(json.dumps(about, indent=2) + "\n")
            partial.replace(options.out)
        if spent - shown > 30:
            shown = spent
            attacks = sum(one["attacks"] for one in found.values())
            failed = sum(len(one["failures"]) for one in found.values())
            print(f"{spent / 60:.1f} of {options.minutes:g} min: {attacks:,} attacks, {failed} failures", flush=True)

    campaign(60 * options.minutes, options.seed, targets, found, save, options.processes)
    print(table(found))
    for name, one in found.items():
        for failure in one["failures"][:3]:
            print(f"\n{name}, case {failure['number']}:\n{failure['error']}")
    sys.exit(any(one["failures"] for one in found.values()))


if __name__ == "__main__":
    main()
