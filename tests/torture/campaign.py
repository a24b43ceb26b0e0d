"""`make torture`: random cases for some minutes, and a table of how many broke a promise.

    python tests/torture/campaign.py --minutes 60 --seed 7 --out results/torture.json

Every case is a function of the seed, its name and its number, so that a failure can be repeated: --only NAME --first N.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
for place in ("", "report", "torture"):
    sys.path.insert(0, str(Path(__file__).parent.parent / place))

import torch  # noqa: E402
from cases import CASES, Shared, prepare  # noqa: E402

from latebloom import Composite, Delay, Evaluating, Phase, RunConfig, Training, at_step, hybrid  # noqa: E402


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


def campaign(seconds: float, seed: int, shared: Shared, only: Sequence[str] = (), first: int = 0) -> dict[str, Any]:
    """Give each kind of case an equal share of the time; return the number of cases and the failures of each."""
    chosen = {name: case for name, case in CASES.items() if not only or name in only}
    found: dict[str, Any] = {}
    for name, case in chosen.items():
        end, number, failures = time.monotonic() + seconds / len(chosen), first, []
        while number == first or time.monotonic() < end:
            folder = Path(tempfile.mkdtemp(prefix="torture-"))
            try:
                case(random.Random(f"{seed} {name} {number}"), folder, shared)
            except Exception:
                failures.append({"number": number, "error": traceback.format_exc(limit=-3)})
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            number += 1
        found[name] = {"cases": number - first, "failures": failures}
    return found


def table(found: dict[str, Any]) -> str:
    width = max(map(len, found))
    lines = [f"{'test':{width}}  {'cases':>7}  failures"]
    lines += [f"{name:{width}}  {one['cases']:>7,}  {len(one['failures']):>8,}" for name, one in found.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], choices=list(CASES))
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--out", type=Path, help="where to write the table as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix="torture-shared-"))
    shared = prepare(tiny(), place, with_browser=True)
    try:
        found = campaign(60 * options.minutes, options.seed, shared, options.only, options.first)
    finally:
        if shared.browser is not None:
            shared.browser.__exit__()
        shutil.rmtree(place, ignore_errors=True)
    print(table(found))
    for name, one in found.items():
        for failure in one["failures"][:3]:
            print(f"\n{name}, case {failure['number']}:\n{failure['error']}")
    if options.out is not None:
        about = {"seed": options.seed, "minutes": round((time.monotonic() - began) / 60, 1), "tests": found}
        options.out.write_text(json.dumps(about, indent=2) + "\n")
    sys.exit(any(one["failures"] for one in found.values()))


if __name__ == "__main__":
    main()
