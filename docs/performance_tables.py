"""Compute the tables of docs/performance.md and docs/guarantees.md from results/; docs/fill.py writes them."""

import json
from statistics import fmean
from typing import Any

from values import ROOT, by_seed, compare, table

from latebloom.bench.report import kernel_rows

TARGETS = {  # label, target, stretch target
    "seed_steps_per_second": ("steps per second, summed over 256 stacked runs", 10_000, 20_000),
    "ratio_to_eager": ("the same, ratio to an eager single run", 30, 50),
    "ratio_to_captured": ("the same, ratio to a captured single run", 8, 15),
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
BF16_ARMS = ("64 stacked runs", "256 stacked runs", *(f"the fused LSTM, captured, width {n}" for n in (64, 128)))


def read(name: str) -> dict[str, Any]:
    """Return a benchmark, with the fields of its environment beside its figures."""
    report = json.loads((ROOT / "results" / f"{name}.json").read_text())
    here = report.get("environment", {"commit": "", "command": []})
    command = " ".join(["latebloom", *here["command"][1:]])
    changed = " with uncommitted changes" * here["commit"].endswith("+")
    return report | here | {"commit": here["commit"][:12] + changed, "command": f"`{command}`"}


GPU, BF16, CPU, CPU_BEFORE = map(read, ("bench-h200", "bench-h200-bf16", "bench-cpu", "bench-cpu-before"))

PEERS = read("bench-h200-peers")
KERNELS = read("bench-kernels-h200")
EARLIER = read("bench-h200-earlier")
CAPABILITY: dict[str, float] = json.loads((ROOT / "results" / "capability-times.json").read_text())
"""The seconds of the study `capability` by part, of all 14 processes together."""
ROUNDS = read("tuning-rounds")
SCALE = read("scale")
TORTURE = json.loads((ROOT / "results" / "torture.json").read_text())


def rounds() -> str:
    """Return what tuning in rounds and the full grid chose for each arm, and how good it was on the reported seeds."""
    rows = []
    for arm, chosen in ROUNDS["rounds"]["arms"].items():
        grid = ROUNDS["full_grid"]["arms"][arm]
        both = "|".join(f"{one['reported_mean']:.1%}" for one in (grid, chosen))
        rows.append(f"{arm}|{both}|{chosen['rank_in_the_full_grid']} of {len(grid['scores_of_choices'])}")
    return table("arm|chosen by the full grid|chosen in rounds|rank of the second choice in the grid", rows)


STUDY = read("study-times")


def study_times() -> str:
    """Return the share of each part of a study's time."""
    total = sum(STUDY["seconds"].values())
    parts = sorted(STUDY["seconds"].items(), key=lambda part: -part[1])
    return table("part|share of the time", (f"{name}|{seconds / total:.1%}" for name, seconds in parts))


def gpu_targets() -> str:
    rows = []
    for name, (label, target, stretch) in TARGETS.items():
        value, sign = GPU[name], -1 if "at most" in label else 1
        goals = {"stretch target reached": stretch, "target reached": target}
        verdict = next((words for words, goal in goals.items() if sign * value >= sign * goal), "**not reached**")
        rows.append(f"{label}|{value:,.{0 if value >= 100 else 1}f} ({verdict})|{target:,}|{stretch:,}")
    return table("figure|measured|target|stretch target", rows)


def gpu_arms() -> str:
    rows = []
    for name, arm in _arms(GPU).items():
        time = "{minimum:.3f} ({median:.3f})".format(**arm["step_ms"])
        share = f"{arm['share_of_peak']:.1%}" if "share_of_peak" in arm else ""
        memory = f"{arm['peak_memory_mb']:,.0f}" if arm["peak_memory_mb"] else ""
        rows.append(f"{name}|{time}|{arm['seed_steps_per_second']:,.0f}|{share}|{arm['cold_seconds']:.1f}|{memory}")
    head = "arm|step, ms: minimum (median)|steps per second, all runs|share of the product peak"
    return table(f"{head}|cold start, s|memory, MB", rows)


def gpu_peers() -> str:
    """Return the step of the hybrid here and in JAX, by the number of runs trained at once."""
    rows = []
    for runs, ratio in PEERS["ratio_to_jax"].items():
        many = int(runs) > 1
        names = (f"{runs} stacked runs" if many else "captured single run", f"JAX, {runs} run{'s' * many}")
        cells = ("{step_ms[minimum]:.2f}|{seed_steps_per_second:,.0f}".format(**PEERS["arms"][name]) for name in names)
        rows.append("|".join([runs, *cells, f"{ratio:.1f}", f"{PEERS['jax']['compile_seconds'][runs]:.0f}"]))
    head = "runs at once|step, ms|steps per second, all runs|JAX: step, ms|JAX: steps per second"
    return table(f"{head}|ratio|JAX compiles, s", rows)


def kernels(most: int = 20) -> str:
    """Return the slowest kernels of a step of stacked runs."""
    rows = ("|".join((f"`{name}`" if name != "all" else name, *cells)) for name, *cells in kernel_rows(KERNELS, most))
    return table("kernel|launches|ms|MB|share of the bandwidth", rows)


def kernel_totals() -> str:
    """Say how much all kernels of a step move, in how long, and how many they are."""
    found = KERNELS["kernels"]
    moved, seconds = sum(one["read"] + one["written"] for one in found), sum(one["seconds"] for one in found)
    launches, copy = sum(one["launches"] for one in found), KERNELS["copy_bytes_per_second"]
    return (
        f"{launches} kernels move {moved / 1e9:.1f} GB in {1e3 * seconds:.1f} ms; a large copy would take "
        f"{1e3 * moved / copy:.1f} ms, at {copy / 1e12:.1f} TB/s"
    )


def _arms(report: dict[str, Any]) -> dict[str, Any]:
    return {name: arm for group in (report, *report["fused_lstm"].values()) for name, arm in group["arms"].items()}


def growth() -> str:
    row = (
        "{runs}|{width}|{tokens}|{step_ms[minimum]:.2f}|{seed_steps_per_second:,.0f}|{share_of_peak:.1%}|"
        "{peak_memory_mb:,.0f}"
    )
    head = "runs|width|tokens|step, ms|steps per second, all runs|share of the product peak|peak memory, MB"
    return table(head, (row.format(**one) for one in EARLIER["growth"]))


def hundred_seeds() -> str:
    found = GPU["hundred_seed_study"]
    rows = []
    for name, accuracy in found["mean_accuracy"].items():
        rows.append("|".join([name, f"{found['seconds'][name]:.0f}", *(f"{x:.3f}" for x in accuracy.values())]))
    lengths = "|".join(found["mean_accuracy"]["demo-dat"])
    return table(f"{found['seeds']} seeds x {found['steps']:,} steps|seconds|{lengths}", rows)


def precision() -> str:
    """Return the accuracy at each length in every precision, and the paired differences to float32."""
    arms = {mode: f"precision-{mode}/dat" for mode in ("float32", "tf32", "bf16")}
    rows = []
    for multiple in (1, 2, 3, 4, 8, 16):
        cells = [f"{multiple}x", *(f"{fmean(by_seed(arm, multiple).values()):.3f}" for arm in arms.values())]
        for mode in ("tf32", "bf16"):
            one = compare(arms[mode], arms["float32"], multiple).difference
            cells.append(f"{one.mean:+.3f} [{one.low:+.3f}, {one.high:+.3f}]")
        rows.append("|".join(cells))
    return table("length|float32|tf32|bf16|paired difference tf32 - float32 [95%]|bf16 - float32 [95%]", rows)


def bf16() -> str:
    each = [{name: arm["step_ms"]["minimum"] for name, arm in _arms(report).items()} for report in (EARLIER, BF16)]
    rows = (f"{arm}|{each[0][arm]:.2f}|{each[1][arm]:.2f}" for arm in BF16_ARMS)
    return table("milliseconds|tf32|bf16", rows)


def cpu_targets() -> str:
    rows = []
    for name, (label, target) in CPU_TARGETS.items():
        value = CPU.get(name) or CPU["share_of_peak"][name]
        form = "{median:.0%} ({maximum:.0%})" if target < 1 else "{median:.2f} ({maximum:.2f})"
        verdict = "reached" if value["median"] >= target else "**not reached**"
        rows.append(f"{label}|{form.format(**value)}, {verdict}|{target:{'.0%' if target < 1 else '.2f'}}")
    rows.append(f"step of a run, ratio to one with a textbook LSTM|{CPU['ratio_to_textbook']:.2f}|")
    for name, ratio in CPU["ratio_to_peers"].items():
        rows.append(f"LSTM layer, forward and backward, ratio to that of {name}|{ratio:.2f}|")
    return table("figure|median (best turn)|target", rows)


def cpu_rates() -> str:
    shown, old = "{median:.1f} ({maximum:.1f})", CPU_BEFORE["steps_per_second"]
    rows = (
        f"{name}|{shown.format(**rate)}|{shown.format(**old[name]) if name in old else ''}"
        for name, rate in CPU["steps_per_second"].items()
    )
    return table("steps per second|median (best turn)|before freed memory was kept", rows)


def report_sizes() -> str:
    """Return time, memory and size of reports of many runs."""
    rows = []
    for name, row in SCALE["rows"].items():
        if name.startswith("report of "):
            runs = int(name.rpartition(" ")[2])
            time = f"{row['cpu_seconds']:.0f} s|{row['seconds']:.0f} s"
            rows.append(
                f"{runs:,}|{time}|{row['bytes'] / 2**30:.1f} GiB|{row['page'] / 1e6:.1f} MB|{row['opens']:.1f} s"
            )
    return table("runs|CPU time|wall-clock time|memory|page|opens in Chromium", rows)


def study_sizes() -> str:
    """Return what a study of many runs takes beside training."""
    rows = []
    for name, row in SCALE["rows"]["study of 10000"].items():
        slowest = f"{1000 * row['slowest_update']:.0f} ms" if row["slowest_update"] else ""
        times = f"{row['until_first']:.0f} s|{slowest}|{row['collecting']:.0f} s|{row['seconds']:.0f} s"
        rows.append(f"{name}|{times}|{row['bytes'] / 2**30:.1f} GiB")
    return table("command|until the first run|slowest update of the progress|collecting|all, report too|memory", rows)


def attacks(*kinds: str) -> str:
    """Return how many attacks of these kinds the campaign made, and how many broke a promise."""
    found = [TORTURE["tests"][kind] for kind in kinds]
    return f"{sum(one['attacks'] for one in found):,} attacks, {sum(len(one['failures']) for one in found)} failures"


def campaign_table() -> str:
    """Return the attacks of the campaign and their failures, by kind."""
    rows = [f"{kind}|{one['attacks']:,}|{len(one['failures'])}" for kind, one in TORTURE["tests"].items()]
    return table("attack|number|failures", rows)


def campaign_about() -> str:
    """Return how long the campaign took, on what, and at which commits."""
    last = TORTURE["environments"][-1]
    names = list(dict.fromkeys(one["commit"][:12] for one in TORTURE["environments"]))
    commits = f"commit{'s' * (len(names) > 1)} {', then '.join(names)}"
    systems = ", ".join(dict.fromkeys(one["file_system"] for one in TORTURE["environments"]))
    machine = f"{last['processor']}, {last['cores']} cores, torch {last['torch']}, {systems}"
    return f"{TORTURE['minutes'] / 60:.1f} hours beside other work ({machine}; {commits})"
