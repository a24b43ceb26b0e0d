"""The benchmark as a command: run it, write the figures to a file and print them."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from latebloom.bench.arms import check_peers
from latebloom.bench.cpu import bench_cpu
from latebloom.bench.gpu import bench_gpu, hundred_seeds
from latebloom.bench.kernels import measure_kernels
from latebloom.bench.measure import bench_config
from latebloom.bench.processes import bench_processes
from latebloom.bench.recurrences import RUNS, bench_recurrences
from latebloom.engine.environment import choose_device, describe_environment
from latebloom.engine.files import write_json
from latebloom.errors import ConfigError
from latebloom.layers.precision import Precision
from latebloom.layers.recurrence import Recurrence
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
    peers: bool,
) -> None:
    """Run the benchmark of a device. The file is written before the long study too."""
    if peers:
        check_peers()
    chosen = choose_device(device)
    report: dict[str, Any] = {"environment": _environment(chosen)}
    with Console(stderr=True).status("starting") as status:
        if chosen.type == "cuda":
            settings: dict[str, Any] = {"mode": mode, "seconds": seconds, "growth": growth, "peers": peers}
            report |= bench_gpu(chosen, **settings, tell=status.update)
            write_json(out, report)
            if hundred:
                torch.cuda.empty_cache()
                report |= hundred_seeds(chosen, seeds=100, steps=steps, tell=status.update)
        else:
            report |= bench_cpu(usable_cores(), seconds=seconds, peers=peers, tell=status.update)
    write_json(out, report)
    Console().print(gpu_table(report) if chosen.type == "cuda" else cpu_table(report))


def _environment(device: torch.device) -> dict[str, Any]:
    found = describe_environment(0, str(device))
    return found | {"triton": import_module("triton").__version__} if device.type == "cuda" else found


def run_recurrences(out: Path, *, device: str | None, mode: Precision, seconds: float) -> None:
    """Run the benchmark of recurrences."""
    chosen = choose_device(device)
    report: dict[str, Any] = {"environment": _environment(chosen), "precision": mode}
    with Console(stderr=True).status("starting") as status:
        report |= bench_recurrences(bench_config(precision=mode), chosen, seconds=seconds, tell=status.update)
    write_json(out, report)
    Console().print(recurrences_table(report))


def run_processes(out: Path, *, device: str | None, steps: int = 300) -> None:
    """Measure small stacks in several processes."""
    chosen = choose_device(device)
    if chosen.type != "cuda":
        raise ConfigError("processes: --processes needs a GPU, and the device is cpu")
    report: dict[str, Any] = {"environment": _environment(chosen)}
    with Console(stderr=True).status("starting") as status:
        report |= bench_processes(chosen, steps=steps, tell=status.update)
    write_json(out, report)
    Console().print(processes_table(report))


def processes_table(report: dict[str, Any]) -> Table:
    mps = "with" if report["mps"] else "without"
    title = f"{report['environment']['accelerator']}, {report['stacks']} stacks of {report['runs']} runs, {mps} MPS"
    table = _table(title, "seconds", "times as fast as one")
    for count, seconds in report["seconds"].items():
        table.add_row(f"{count} processes", f"{seconds:.1f}", f"{report['seconds']['1'] / seconds:.1f}")
    return table


def run_kernels(out: Path, recurrence: str, *, device: str | None, mode: Precision) -> None:
    """Measure the kernels of a step of stacked runs."""
    Recurrence.find(recurrence, "kernels")
    chosen = choose_device(device)
    if chosen.type != "cuda":
        raise ConfigError("kernels: --kernels needs a GPU, and the device is cpu")
    report: dict[str, Any] = {"environment": _environment(chosen), "precision": mode}
    with Console(stderr=True).status("profiling a step, kernel by kernel"):
        report |= measure_kernels(RUNS, recurrence, mode)
    write_json(out, report)
    Console().print(kernels_table(report))


def kernels_table(report: dict[str, Any], most: int = 30) -> Table:
    title = f"{report['environment']['accelerator']}, {report['runs']} stacked runs, {report['recurrence']}"
    table = _table(title, "launches", "ms", "MB", "of bandwidth")
    rows = kernel_rows(report, most)
    for name, *cells in rows:
        table.add_row(name, *cells)
    return table


def kernel_rows(report: dict[str, Any], most: int) -> list[tuple[str, str, str, str, str]]:
    """Return a row for each of the slowest kernels, one for the others together, and one for all."""
    kernels = report["kernels"]
    groups = {one["name"]: [one] for one in kernels[:most]}
    if kernels[most:]:
        groups[f"{len(kernels) - most} others"] = kernels[most:]
    rows = []
    for name, group in {**groups, "all": kernels}.items():
        seconds = sum(one["seconds"] for one in group)
        moved = sum(one["read"] + one["written"] for one in group)
        share = moved / seconds / report["copy_bytes_per_second"]
        launches = sum(one["launches"] for one in group)
        rows.append((name, f"{launches:,}", f"{1e3 * seconds:.3f}", f"{moved / 1e6:,.0f}", f"{share:.0%}"))
    return rows


def recurrences_table(report: dict[str, Any]) -> Table:
    environment, recurrences = report["environment"], report["recurrences"]
    kinds = list(recurrences["lstm"]["arms"])
    headings = [heading for kind in kinds for heading in (f"{kind}, ms", "median", "ratio to LSTM")]
    table = _table(environment["accelerator"] or environment["processor"], "state", *headings)
    for name, figures in recurrences.items():
        cells = [f"{figures['state_size']:,}"]
        for kind in kinds:
            step = figures["arms"].get(kind, {}).get("step_ms")
            ratio = figures["ratio_to_lstm"].get(kind)
            cells += [f"{step['minimum']:.2f}", f"{step['median']:.2f}", f"{ratio:.2f}"] if step else [""] * 3
        table.add_row(name, *cells)
    return table


def gpu_table(report: dict[str, Any]) -> Table:
    table = _table(
        f"{report['environment']['accelerator']}, {report['precision']}",
        *("step, ms", "median", "seed-steps/s", "of peak", "cold, s", "MB"),
    )
    lstm_arms = {name: arm for figures in report["fused_lstm"].values() for name, arm in figures["arms"].items()}
    for name, arm in {**report["arms"], **lstm_arms}.items():
        table.add_row(
            name,
            *(f"{arm['step_ms'][which]:.3f}" for which in ("minimum", "median")),
            f"{arm['seed_steps_per_second']:,.0f}",
            f"{arm['share_of_peak']:.1%}" if "share_of_peak" in arm else "",
            f"{arm['cold_seconds']:.1f}",
            f"{arm['peak_memory_mb']:,.0f}" if arm["peak_memory_mb"] else "",
        )
    names = ("ratio_to_eager", "ratio_to_captured", "ratio_to_textbook", "price_of_64_seeds", "fused_lstm_ratio")
    ratios = {name.replace("_", " "): report[name] for name in (*names, "fused_lstm_ratio_128")}
    for runs, ratio in report.get("ratio_to_jax", {}).items():
        ratios[f"ratio to JAX, {runs} at once"] = ratio
        ratios[f"JAX, {runs} at once: compile, s"] = report["jax"]["compile_seconds"][runs]
    if "hundred_seed_minutes" in report:
        ratios["100 seeds, both ways, minutes"] = report["hundred_seed_minutes"]
    for name, ratio in ratios.items():
        table.add_row(name, "", "", f"{ratio:.1f}")
    return table


def cpu_table(report: dict[str, Any]) -> Table:
    table = _table(f"{report['environment']['processor']}, {report['cores']} cores", "best turn", "median")

    def add(name: str, value: dict[str, float], shown: str) -> None:
        table.add_row(name, *(format(value[which], shown) if which in value else "" for which in ("maximum", "median")))

    for name, rate in report["steps_per_second"].items():
        add(f"{name}: steps/s", rate, ".1f")
    add("one process a core / one process, all threads", report["processes_over_threads"], ".2f")
    for width, share in report["share_of_peak"].items():
        add(f"share of the product peak, width {width}", share, ".0%")
    add("ratio to a textbook LSTM", {"median": report["ratio_to_textbook"]}, ".2f")
    for name, ratio in report["ratio_to_peers"].items():
        add(f"an LSTM layer, ratio to {name}", {"median": ratio}, ".2f")
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
