"""Write the tables of docs/performance.md from the benchmarks in results/.

python docs/performance_tables.py            write them
python docs/performance_tables.py --check    fail if the page does not agree with results/ (a test does this)
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"
TARGETS = {  # label, target, stretch target
    "seed_steps_per_second": ("steps per second, summed over stacked runs", 10_000, 20_000),
    "ratio_to_eager": ("ratio to an eager single run", 30, 50),
    "ratio_to_captured": ("ratio to a captured single run", 8, 15),
    "price_of_64_seeds": ("time of a step of 64 runs, in steps of a captured single run (at most)", 6, 3),
    "fused_lstm_ratio": ("fused LSTM, ratio to 64 captured cuDNN calls, width 64", 8, 20),
    "fused_lstm_ratio_128": ("the same, width 128", 8, 20),
    "hundred_seed_minutes": ("minutes for 100 seeds x 10,000 steps, joint and delayed, tested to 16x (at most)", 5, 2),
}
CPU_TARGETS = {  # label, target
    "processes_over_threads": ("one process per core, ratio to one process with all threads", 1.3),
    "64": ("share of the machine's own sgemm peak, width 64", 0.50),
    "128": ("the same, width 128", 0.70),
}


def read(name: str) -> dict[str, Any]:
    """Return a benchmark, with the fields of its environment beside its figures."""
    report = json.loads((ROOT / "results" / name).read_text())
    here = report.get("environment", {"commit": "", "command": []})
    command = " ".join(["latebloom", *here["command"][1:]])
    return report | here | {"commit": here["commit"][:12], "command": command}


GPU, BF16, CPU, CPU_BEFORE = map(
    read, ("bench-h200.json", "bench-h200-bf16.json", "bench-cpu.json", "bench-cpu-before.json")
)


def table(headings: str, rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table; the headings are separated by `|`."""
    lines = [headings, re.sub(r"[^|]+", "---", headings), *("|".join(map(str, row)) for row in rows)]
    return "\n".join(f"| {line.replace('|', ' | ')} |" for line in lines)


def filled_table(headings: str, template: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table whose cells are a template filled in with each row's values."""
    return table(headings, ([template.format(**row)] for row in rows))


def headline() -> str:
    rows = []
    for name, (label, target, stretch) in TARGETS.items():
        value, sign = GPU[name], -1 if "at most" in label else 1
        goals = {"stretch target reached": stretch, "target reached": target}
        verdict = next((words for words, goal in goals.items() if sign * value >= sign * goal), "**not reached**")
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
        rows.append((label, f"{shown} ({verdict})", f"{target:,}", f"{stretch:,}"))
    for runs, ratio in GPU.get("ratio_to_jax", {}).items():
        rows.append((f"ratio to the same hybrid in JAX, runs at once: {runs}", f"{ratio:.1f}", "", ""))
    about = (
        "\n\n{accelerator}, torch {torch}, Triton {triton}, Python {python}, matrix products in {precision}, "
        "commit {commit}; `{command}`."
    )
    return table("figure|measured|target|stretch target", rows) + about.format(**GPU)


def arms() -> str:
    rows = (
        arm
        | {
            "name": name,
            "share": f"{arm['share_of_peak']:.1%}" if "share_of_peak" in arm else "",
            "memory": f"{arm['peak_memory_mb']:,.0f}" if arm["peak_memory_mb"] else "",
        }
        for name, arm in _all_arms(GPU).items()
    )
    text = filled_table(
        "arm|step, ms: minimum (median)|steps per second, all runs|of the product peak|cold start, s|memory, MB",
        "{name}|{step_ms[minimum]:.3f} ({step_ms[median]:.3f})|{seed_steps_per_second:,.0f}|{share}|"
        "{cold_seconds:.1f}|{memory}",
        rows,
    )
    text += "\n\nThe product peak is {product_peak_tflops:.0f} TFLOP/s, measured in the same run.".format(**GPU)
    if "jax" in GPU:
        times = ", ".join(f"{seconds:.0f} s for {runs}" for runs, seconds in GPU["jax"]["compile_seconds"].items())
        text += f" JAX {GPU['jax']['version']} compiles its step in {times}; the cold start includes this."
    return text


def _all_arms(report: dict[str, Any]) -> dict[str, Any]:
    return {name: arm for group in (report, *report["fused_lstm"].values()) for name, arm in group["arms"].items()}


def growth() -> str:
    return filled_table(
        "runs|width|tokens|step, ms|steps per second, all runs|of the product peak|peak memory, MB",
        "{runs}|{width}|{tokens}|{step_ms[minimum]:.2f}|{seed_steps_per_second:,.0f}|{share_of_peak:.1%}|"
        "{peak_memory_mb:,.0f}",
        GPU["growth"],
    )


def study() -> str:
    found = GPU["hundred_seed_study"]
    accuracy = found["mean_accuracy"]
    headings = [f"{found['seeds']} seeds x {found['steps']:,} steps", "seconds", *accuracy["demo-dat"]]
    rows = ((n, f"{found['seconds'][n]:.0f}", *(f"{x:.3f}" for x in row.values())) for n, row in accuracy.items())
    return table("|".join(headings), rows)


def precision() -> str:
    """Return the accuracy at each length in every precision, and the paired differences to float32."""
    runs = {mode: read(f"precision-{mode}.json")["runs"] for mode in ("float32", "tf32", "bf16")}
    seeds, *others = ([run["seed"] for run in each] for each in runs.values())
    assert others == [seeds, seeds], "the precisions were tried on different seeds"
    tested = [[run["evaluation"]["lengths"] for run in each] for each in runs.values()]
    start = runs["tf32"][0]["evaluation"]["training_length"]
    rows = []
    for index, first in enumerate(tested[0][0]):
        exact, *rounded = (np.array([lengths[index]["accuracy"] for lengths in each]) for each in tested)
        means = (f"{one.mean():.3f}" for one in (exact, *rounded))
        rows.append((f"{first['length'] / start:g}x", *means, *(_difference(one - exact) for one in rounded)))
    held = ", ".join(f"{sum(run['reach'] >= 3 for run in each)} in {mode}" for mode, each in runs.items())
    headings = "length|float32|tf32|bf16|paired difference tf32 - float32 [95%]|bf16 - float32 [95%]"
    return f"{table(headings, rows)}\n\nSeeds with a reach of 3 or more, of {len(seeds)}: {held}."


def _difference(values: np.ndarray) -> str:
    interval = bootstrap((values,), np.mean, rng=np.random.default_rng(0)).confidence_interval
    return f"{values.mean():+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def bf16() -> str:
    labels = {
        "64 stacked runs": "step of 64 stacked runs",
        "256 stacked runs": "step of 256 stacked runs",
        "the fused LSTM, captured, width 64": "the fused LSTM, 64 models, width 64",
        "the fused LSTM, captured, width 128": "the same, width 128",
    }
    both = [_all_arms(report) for report in (GPU, BF16)]
    rows = ((label, *(f"{arms[arm]['step_ms']['minimum']:.2f}" for arms in both)) for arm, label in labels.items())
    ratios = (
        "\n\nCaptured cuDNN calls (tf32) take {fused_lstm_ratio:.1f} times as long as the fused LSTM in bf16 at width "
        "64, and {fused_lstm_ratio_128:.1f} times at width 128."
    )
    return table("milliseconds|tf32|bf16", rows) + ratios.format(**BF16)


def cpu() -> str:
    rows: list[tuple[object, ...]] = []
    for name, (label, target) in CPU_TARGETS.items():
        value = CPU.get(name) or CPU["share_of_peak"][name]
        middle, best, goal = (f"{x:.0%}" if target < 1 else f"{x:.2f}" for x in (*_turns(value), target))
        rows.append(
            (label, f"{middle} ({best}), {'reached' if value['median'] >= target else '**not reached**'}", goal)
        )
    rows.append(("step of a run, ratio to one with a textbook LSTM", f"{CPU['ratio_to_textbook']:.2f}", ""))
    for name, ratio in CPU["ratio_to_peers"].items():
        rows.append((f"LSTM layer, forward and backward, ratio to that of {name}", f"{ratio:.2f}", ""))
    old, template = CPU_BEFORE["steps_per_second"], "{:.1f} ({:.1f})"
    rates = (
        (name, template.format(*_turns(rate)), template.format(*_turns(old[name])) if name in old else "")
        for name, rate in CPU["steps_per_second"].items()
    )
    shares = "Before memory was kept (commit {commit}) the shares were {narrow:.0%} and {wide:.0%}."
    narrow, wide = (CPU_BEFORE["share_of_peak"][width]["median"] for width in ("64", "128"))
    return "\n\n".join(
        (
            table("figure|median (best turn)|target", rows),
            table("steps per second|median (best turn)|before memory was kept", rates),
            shares.format(narrow=narrow, wide=wide, **CPU_BEFORE),
            "{processor}, {cores} cores, torch {torch}, commit {commit}; `{command}`.".format(**CPU),
        )
    )


def _turns(value: dict[str, float]) -> tuple[float, float]:
    return value["median"], value["maximum"]


def main() -> None:
    text = PAGE.read_text()
    tables = {function.__name__: function for function in (headline, arms, growth, study, precision, bf16, cpu)}
    mark = re.compile(r"(<!-- (\w+) -->\n).*?(\n<!-- /\2 -->)", re.DOTALL)
    assert {found[2] for found in mark.finditer(text)} == tables.keys()
    filled = mark.sub(lambda found: found[1] + tables[found[2]]() + found[3], text)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(filled)
    elif filled != text:
        sys.exit(f"{PAGE.name} does not agree with the benchmarks in results/; run python docs/performance_tables.py")


if __name__ == "__main__":
    main()
