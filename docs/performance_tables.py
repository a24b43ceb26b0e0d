"""The tables of docs/performance.md, from the benchmarks in results/.

python docs/performance_tables.py            write them
python docs/performance_tables.py --check    fail if the page says something else (a test does this)
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from scipy.stats import bootstrap

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"
WANTED = {  # what the figure is, what it must be, what we aim at
    "seed_steps_per_second": ("seed-steps a second, stacked", 10_000, 20_000),
    "ratio_to_eager": ("ratio to an eager single run", 30, 50),
    "ratio_to_captured": ("ratio to a captured single run", 8, 15),
    "price_of_64_seeds": ("64 seeds cost, in single captured steps", 6, 3),
    "fused_lstm_ratio": ("fused LSTM against 64 captured cuDNN calls, width 64", 8, 20),
    "fused_lstm_ratio_128": ("the same, width 128", 8, 20),
    "hundred_seed_minutes": ("100 seeds x 10,000 steps, both ways, tested to 16x, in minutes", 5, 2),
}
LESS_IS_BETTER = {"price_of_64_seeds", "hundred_seed_minutes"}


def read(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / name).read_text())


def headline() -> str:
    report = read("bench-h200.json")
    lines = ["| figure | seen | must | aim |", "|---|---|---|---|"]
    for name, (label, must, aim) in WANTED.items():
        value = report[name]
        better = (lambda a, b: a <= b) if name in LESS_IS_BETTER else (lambda a, b: a >= b)
        reached = "aim reached" if better(value, aim) else "reached" if better(value, must) else "**not reached**"
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
        lines.append(f"| {label} | {shown} ({reached}) | {must:,} | {aim:,} |")
    where = report["environment"]
    command = " ".join(["latebloom", *where["command"][1:]])
    lines += [
        "",
        f"{where['accelerator']}, torch {where['torch']}, Triton {where['triton']}, Python {where['python']}, "
        f"products in {report['precision']}, commit {where['commit'][:12]}; `{command}`.",
    ]
    return "\n".join(lines)


def arms() -> str:
    report = read("bench-h200.json")
    lines = [
        "| arm | step, ms: least (median) | seed-steps a second | of the product peak | cold start, s | memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    lstms = {name: arm for figures in report["fused_lstm"].values() for name, arm in figures["arms"].items()}
    for name, arm in {**report["arms"], **lstms}.items():
        share = f"{arm['share_of_peak']:.1%}" if "share_of_peak" in arm else ""
        times = f"{arm['step_ms']['minimum']:.3f} ({arm['step_ms']['median']:.3f})"
        lines.append(
            f"| {name} | {times} | {arm['seed_steps_per_second']:,.0f} | {share} | {arm['cold_seconds']:.1f} | "
            f"{arm['peak_memory_mb']:,.0f} |"
        )
    lines += ["", f"The product peak is {report['product_peak_tflops']:.0f} TFLOP/s, measured in the same run."]
    return "\n".join(lines)


def growth() -> str:
    lines = [
        "| runs | width | tokens | step, ms | seed-steps a second | of the product peak | peak memory, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in read("bench-h200.json")["growth"]:
        lines.append(
            f"| {row['runs']} | {row['width']} | {row['tokens']} | {row['step_ms']['minimum']:.2f} | "
            f"{row['seed_steps_per_second']:,.0f} | {row['share_of_peak']:.1%} | {row['peak_memory_mb']:,.0f} |"
        )
    return "\n".join(lines)


def study() -> str:
    found = read("bench-h200.json")["hundred_seed_study"]
    multiples = list(next(iter(found["mean_accuracy"].values())))
    lines = [
        f"| {found['seeds']} seeds x {found['steps']:,} steps | seconds | " + " | ".join(multiples) + " |",
        "|---|---|" + "---|" * len(multiples),
    ]
    for name, row in found["mean_accuracy"].items():
        cells = " | ".join(f"{row[multiple]:.3f}" for multiple in multiples)
        lines.append(f"| {name} | {found['seconds'][name]:.0f} | {cells} |")
    return "\n".join(lines)


def precisions() -> str:
    """Accuracy at each length in every precision, over the same seeds, and how far each is from float32's."""
    runs = {mode: read(f"precision-{mode}.json")["runs"] for mode in ("float32", "tf32", "bf16")}
    by_seed = {
        mode: {run["seed"]: {row["length"]: row["accuracy"] for row in run["evaluation"]["lengths"]} for run in rows}
        for mode, rows in runs.items()
    }
    seeds = sorted(by_seed["float32"])
    assert all(sorted(each) == seeds for each in by_seed.values())
    start = runs["tf32"][0]["evaluation"]["training_length"]
    lines = [
        "| length | float32 | tf32 | bf16 | tf32 - float32, seed by seed [95%] | bf16 - float32 [95%] |",
        "|---|---|---|---|---|---|",
    ]
    for length in by_seed["tf32"][seeds[0]]:
        exact, *rounded = (np.array([each[seed][length] for seed in seeds]) for each in by_seed.values())
        means = " | ".join(f"{mean(one):.3f}" for one in (exact, *rounded))
        gaps = " | ".join(_interval(one - exact) for one in rounded)
        lines.append(f"| {length / start:g}x | {means} | {gaps} |")
    held = ", ".join(f"{sum(run['reach'] >= 3 for run in rows)} in {mode}" for mode, rows in runs.items())
    lines += ["", f"Seeds with a reach of 3 or more, of {len(seeds)}: {held}."]
    return "\n".join(lines)


def bf16() -> str:
    """What bf16 gains, in steps and in the LSTM alone."""
    two, one = read("bench-h200.json"), read("bench-h200-bf16.json")

    def milliseconds(report: dict[str, Any], group: str, arm: str) -> float:
        arms = report["arms"] if group == "" else report["fused_lstm"][group]["arms"]
        return arms[arm]["step_ms"]["minimum"]

    lines = ["| milliseconds | tf32 | bf16 |", "|---|---|---|"]
    for label, group, arm in (
        ("step of 64 stacked runs", "", "64 stacked runs"),
        ("step of 256 stacked runs", "", "256 stacked runs"),
        ("the fused LSTM, 64 models, width 64", "64", "the fused LSTM, captured, width 64"),
        ("the same, width 128", "128", "the fused LSTM, captured, width 128"),
    ):
        lines.append(f"| {label} | {milliseconds(two, group, arm):.2f} | {milliseconds(one, group, arm):.2f} |")
    narrow, wide = (one[name] for name in ("fused_lstm_ratio", "fused_lstm_ratio_128"))
    lines += ["", f"Captured cuDNN calls (tf32) take {narrow:.1f} times as long as that, at width 128 {wide:.1f}."]
    return "\n".join(lines)


def _interval(gaps: np.ndarray) -> str:
    if not gaps.any():
        return "+0.000"
    interval = bootstrap((gaps,), np.mean, rng=np.random.default_rng(0)).confidence_interval
    return f"{gaps.mean():+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


CPU_WANTED = {  # what is told, the smallest that will do
    "processes_over_threads": ("a process a core, against one process with all threads", 1.3),
    "64": ("share of the machine's own sgemm peak, width 64", 0.50),
    "128": ("the same, width 128", 0.70),
}


def cpu() -> str:
    """The figures of a CPU, the median of five turns and the best."""
    report = read("bench-cpu.json")
    lines = ["| figure | median (best turn) | must |", "|---|---|---|"]
    for name, (label, must) in CPU_WANTED.items():
        seen = report.get(name) or report["share_of_peak"][name]
        shown = "{:.0%}" if must < 1 else "{:.2f}"
        told = f"{shown.format(seen['median'])} ({shown.format(seen['maximum'])})"
        verdict = "reached" if seen["median"] >= must else "**not reached**"
        lines.append(f"| {label} | {told}, {verdict} | {shown.format(must)} |")
    lines.append(f"| a run's step, against one with a textbook LSTM | {report['ratio_to_textbook']:.2f} | |")
    for name, ratio in report["ratio_to_peers"].items():
        lines.append(f"| an LSTM layer, forward and back, against that of {name} | {ratio:.2f} | |")
    before = read("bench-cpu-before.json")
    lines += ["", "| steps a second | median (best turn) | before memory was kept |", "|---|---|---|"]
    for name, rate in report["steps_per_second"].items():
        then = before["steps_per_second"].get(name)
        cells = [f"{one['median']:.1f} ({one['maximum']:.1f})" if one else "" for one in (rate, then)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    narrow, wide = (f"{before['share_of_peak'][width]['median']:.0%}" for width in ("64", "128"))
    where = report["environment"]
    lines += [
        "",
        f"Before memory was kept (commit {before['environment']['commit'][:12]}) the shares were {narrow} and {wide}.",
        "",
        f"{where['processor']}, {report['cores']} cores, torch {where['torch']}, commit {where['commit'][:12]}; "
        f"`{' '.join(where['command'])}`.",
    ]
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "headline": headline,
    "arms": arms,
    "growth": growth,
    "study": study,
    "precision": precisions,
    "bf16": bf16,
    "cpu": cpu,
}


def filled(text: str, tables: dict[str, Callable[[], str]]) -> str:
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n{table()}\n{end}{after}"
    return text


def main() -> None:
    text = PAGE.read_text()
    wanted = filled(text, TABLES)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted)
    elif wanted != text:
        sys.exit(f"{PAGE.name} is not what the benchmarks in results/ say")


if __name__ == "__main__":
    main()
