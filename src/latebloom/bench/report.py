"""The benchmark as a command: runs it, prints it, writes it."""

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from latebloom.bench.cpu import bench_cpu
from latebloom.bench.gpu import bench_gpu
from latebloom.bench.study import hundred_seeds
from latebloom.engine.checkpoint import write_json
from latebloom.engine.environment import choose_device, describe_environment
from latebloom.layers.precision import Precision
from latebloom.studies.local import usable_cores


def run_bench(
    out: Path,
    *,
    device: str | None,
    mode: Precision,
    seconds: float,
    growth: bool,
    hundred: bool,
    steps: int,
    peers: bool = False,
) -> dict[str, Any]:
    """Every figure there is for this machine, on the terminal and in a file; the file is written as it goes."""
    chosen = choose_device(device)
    console = Console(stderr=True)
    report: dict[str, Any] = {"environment": describe_environment(0, str(chosen))}
    with console.status("starting") as status:

        def tell(what: str) -> None:
            status.update(what)

        if chosen.type == "cuda":
            report["environment"]["triton"] = __import__("triton").__version__
            report |= bench_gpu(chosen, mode=mode, seconds=seconds, growth=growth, tell=tell)
            write_json(out, report)
            if hundred:
                torch.cuda.empty_cache()
                report |= hundred_seeds(chosen, seeds=100, steps=steps, tell=tell)
        else:
            report |= bench_cpu(usable_cores(), seconds=seconds, peers=peers, tell=tell)
    write_json(out, report)
    Console().print(gpu_table(report) if chosen.type == "cuda" else cpu_table(report))
    return report


def gpu_table(report: dict[str, Any]) -> Table:
    table = Table(title=f"{report['environment']['accelerator']}, {report['precision']}", title_justify="left")
    for heading in ("", "step, ms", "median", "seed-steps/s", "of peak", "cold, s", "MB"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=bool(heading))
    lstm_arms = {name: arm for figures in report["fused_lstm"].values() for name, arm in figures["arms"].items()}
    for name, arm in {**report["arms"], **lstm_arms}.items():
        share = f"{arm['share_of_peak']:.1%}" if "share_of_peak" in arm else ""
        times = (f"{arm['step_ms']['minimum']:.3f}", f"{arm['step_ms']['median']:.3f}")
        memory = f"{arm['peak_memory_mb']:,.0f}" if arm["peak_memory_mb"] else ""
        rate = f"{arm['seed_steps_per_second']:,.0f}"
        table.add_row(name, *times, rate, share, f"{arm['cold_seconds']:.1f}", memory)
    ratios = ("ratio_to_eager", "ratio_to_captured", "ratio_to_textbook", "price_of_64_seeds")
    for name in (*ratios, "fused_lstm_ratio", "fused_lstm_ratio_128"):
        table.add_row(name.replace("_", " "), "", "", f"{report[name]:.1f}")
    if "hundred_seed_minutes" in report:
        table.add_row("100 seeds, both ways, minutes", "", "", f"{report['hundred_seed_minutes']:.1f}")
    return table


def cpu_table(report: dict[str, Any]) -> Table:
    table = Table(title=f"{report['environment']['processor']}, {report['cores']} cores", title_justify="left")
    for heading in ("", "best turn", "median"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, rate in report["steps_per_second"].items():
        table.add_row(f"{name}: steps/s", f"{rate['maximum']:.1f}", f"{rate['median']:.1f}")
    ratio = report["processes_over_threads"]
    table.add_row("a process a core / all threads in one", f"{ratio['maximum']:.2f}", f"{ratio['median']:.2f}")
    for width, share in report["share_of_peak"].items():
        table.add_row(f"share of the product peak, width {width}", f"{share['maximum']:.0%}", f"{share['median']:.0%}")
    table.add_row("ratio to a textbook LSTM", "", f"{report['ratio_to_textbook']:.2f}")
    for name, ratio in report["ratio_to_peers"].items():
        table.add_row(f"an LSTM layer, ratio to {name}", "", f"{ratio:.2f}")
    return table
