"""The benchmark times its arms in turn and counts the operations of a step; its peers do the same work."""

import json
import subprocess
import sys
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
import torch
from commands import latebloom
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from latebloom.bench import arms, processes
from latebloom.bench.arms import check_peers, textbook, textbook_trainer
from latebloom.bench.cpu import start_worker, take_turn
from latebloom.bench.kernels import measure_kernels, read_kernels
from latebloom.bench.measure import LENGTH, Arm, bench_config, product_peak, step_operations, take_turns
from latebloom.bench.recurrences import bench_recurrences
from latebloom.bench.report import gpu_table, kernel_rows, processes_table, recurrences_table
from latebloom.engine.trainer import Trainer
from latebloom.errors import ConfigError
from latebloom.layers.recurrence import Recurrence

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def test_the_setting_has_25_tokens():
    assert bench_config().task.token_count(LENGTH) == 25


def test_arms_take_turns_and_keep_the_minimum_and_the_median():
    order: list[str] = []

    def arm(name: str) -> Arm:
        def build():
            def advance():
                order.append(name)

            return advance

        return Arm(name, build, runs=4)

    arms = [arm("a"), arm("b")]
    take_turns(arms, CPU, seconds=1e-6, tell=lambda what: None)
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert turns == ["a", "b"] * 6  # one cold start each, then five turns
    for one in arms:
        assert len(one.seconds) == 5
        assert one.per_second == 4 / min(one.seconds)
        told = one.to_json()
        assert told["step_ms"]["minimum"] <= told["step_ms"]["median"]
        assert told["cold_seconds"] > 0


@pytest.mark.parametrize("width", [32, 64])
def test_the_operations_of_a_step_are_those_that_torch_counts(width):
    """Torch's own counter sees every product of the textbook form. It also counts the masked half of the scores."""
    config = bench_config(width=width, batch=4)
    advance = textbook(config, LENGTH, CPU)
    with FlopCounterMode(display=False) as counted:
        advance()
    assert step_operations(config, LENGTH) == pytest.approx(counted.get_total_flops(), rel=0.06)


def test_a_textbook_lstm_trains_as_the_library_does():
    config = bench_config(width=16, batch=4)
    losses = []
    for trainer in (Trainer([config], CPU), textbook_trainer(config, CPU)):
        for _ in range(3):
            trainer.advance()
        losses.append(trainer.read_means()[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_peak_is_a_rate_that_a_product_reaches():
    peak = product_peak(CPU, 256)
    left, right = torch.randn(2, 256, 256)
    arm = Arm("product", lambda: lambda: left @ right)
    take_turns([arm], CPU, seconds=0.01, tell=lambda what: None)
    reached = 2 * 256**3 * arm.per_second
    assert 0.2 * peak < reached < 5 * peak


def test_a_worker_process_times_its_own_run():
    with start_worker(threads=1, width=16) as worker:
        steps, peak = worker.submit(take_turn, 0.1).result()
    assert steps > 0
    assert peak > 1e8


def test_the_command_writes_every_figure_of_a_cpu(tmp_path):
    out = tmp_path / "bench.json"
    options = ["--device", "cpu", "--seconds", "0.05", "--peers", "--out", str(out)]
    command = [sys.executable, "-m", "latebloom", "bench", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert {"environment", "steps_per_second", "processes_over_threads", "share_of_peak", "cores"} <= report.keys()
    assert 0 < report["share_of_peak"]["64"]["median"] < 1.2
    assert "share of the product peak, width 64" in done.stdout
    assert report["ratio_to_peers"].keys() == {"JAX"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seconds", "0"], "seconds: 0.0"),
        (["--out", "/nowhere/x.json"], "out: /nowhere/x.json"),
        (["--steps", "1"], "steps: 1"),
        (["--kernels", "--peers"], "kernels: they are measured alone; leave out --peers"),
        (["--kernels", "--device", "cpu"], "kernels: --kernels needs a GPU, and the device is cpu"),
        (["--processes", "--recurrences"], "processes: they are measured alone; leave out --recurrences"),
        (["--processes", "--device", "cpu"], "processes: --processes needs a GPU, and the device is cpu"),
        (["--kernels", "lstn"], "kernels: 'lstn' is not known; did you mean 'lstm'"),
        (["--recurrences", "--growth"], "recurrences: they are measured alone; leave out --growth"),
    ],
)
def test_a_mistake_is_one_sentence(words, said):
    done = latebloom("bench", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_every_recurrence_of_the_package_is_timed_against_the_lstm():
    told: list[str] = []
    config = bench_config(width=16, batch=2)
    report = bench_recurrences(config, CPU, seconds=1e-3, tell=told.append)
    own = [name for name, member in Recurrence.choices().items() if member.__module__.startswith("latebloom.")]
    assert list(report["recurrences"]) == own
    assert {"lstm", "gru", "slstm", "m2rnn", "min_gru"} <= set(own)
    figures = report["recurrences"]["m2rnn"]
    assert figures["state_size"] == Recurrence.named("m2rnn").state_size(16)
    assert figures["arms"]["one run"]["step_ms"]["minimum"] > 0
    assert figures["ratio_to_lstm"]["one run"] > 0
    assert report["recurrences"]["lstm"]["ratio_to_lstm"] == {"one run": 1.0}
    assert [line for line in told if "turn 1" in line] == [f"{name}: turn 1 of 5" for name in own]
    stacked = {"64 stacked runs": figures["arms"]["one run"]}  # as on a GPU, where one of them cannot be stacked
    report["recurrences"]["lstm"]["arms"] |= stacked
    report["recurrences"]["lstm"]["ratio_to_lstm"] |= {"64 stacked runs": 1.0}
    report["environment"] = {"accelerator": "a GPU", "processor": "a CPU"}
    console = Console(width=160, record=True, file=StringIO())
    console.print(recurrences_table(report))
    rows = {cells[1].strip(): cells for line in console.export_text().splitlines() if len(cells := line.split("│")) > 3}
    assert rows["lstm"][8].strip() == "1.00"
    assert rows["m2rnn"][2].strip() == f"{figures['state_size']:,}"
    assert rows["m2rnn"][8].strip() == ""


def test_small_stacks_are_timed_in_one_process_and_in_several(monkeypatch):
    monkeypatch.setattr(processes, "RECURRENCES", ("min_gru", "gru"))
    monkeypatch.setattr(processes, "RUNS", 1)
    monkeypatch.setattr(processes, "COUNTS", (1, 2))
    monkeypatch.setattr(processes, "has_mps", lambda: False)
    report = processes.bench_processes(CPU, steps=10, tell=lambda what: None)
    assert (report["stacks"], report["runs"], report["steps"], report["mps"]) == (2, 1, 10, False)
    assert report["seconds"].keys() == {"1", "2"}
    report |= {"seconds": {"1": 30.0, "4": 10.0}, "environment": {"accelerator": "a GPU"}}
    console = Console(width=120, record=True, file=StringIO())
    console.print(processes_table(report))
    text = console.export_text()
    assert "2 stacks of 1 runs, without MPS" in text
    (row,) = (line for line in text.splitlines() if "4 processes" in line)
    assert [cell.strip() for cell in row.split("│")[2:4]] == ["10.0", "3.0"]


def test_the_table_of_a_gpu_has_the_arms_and_ratios_to_jax():
    report = json.loads((ROOT / "results" / "bench-h200.json").read_text())
    report["arms"]["JAX, 64 runs"] = report["arms"]["64 stacked runs"] | {"peak_memory_mb": None}
    report |= {"ratio_to_jax": {"64": 1.75}, "jax": {"version": "0", "compile_seconds": {"64": 31.4}}}
    console = Console(width=120, record=True, file=StringIO())
    console.print(gpu_table(report))
    rows = {cells[1].strip(): cells for line in console.export_text().splitlines() if len(cells := line.split("│")) > 3}
    assert {"eager single run", "64 stacked runs", "JAX, 64 runs", "ratio to captured"} <= rows.keys()
    assert rows["JAX, 64 runs"][7].strip() == ""
    assert rows["ratio to JAX, 64 at once"][4].strip() == "1.8"
    assert rows["JAX, 64 at once: compile, s"][4].strip() == "31.4"


@pytest.mark.slow
def test_the_programs_in_jax_do_the_same_work():
    if find_spec("jax") is None:
        pytest.skip("JAX is not installed")
    command = [sys.executable, str(Path(__file__).with_name("jax_checks.py"))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.split() == ["lstm_layer", "same_model_and_training", "batches", "stacked_runs"]


def test_peers_that_are_not_there_are_named(monkeypatch):
    monkeypatch.setattr(arms, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"none is installed; choices: JAX \(pip install 'latebloom\[peers\]'\)"):
        check_peers()


PROFILED = """==PROF== Connected to process 1
"ID","Process ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum"
"","","","byte","byte","ns"
"0","1","_forward_kernel","1,000,000","2,000","10,000"
"1","1","void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, T1)","64","64","500"
"2","1","_forward_kernel","3,000,000","0","30,000"
"""


def test_launches_of_a_kernel_are_added_up_and_the_slowest_stands_first():
    lstm, add = read_kernels(PROFILED.splitlines())
    expected = {"name": "_forward_kernel", "launches": 2, "read": 4_000_000, "written": 2_000}
    assert lstm == expected | {"seconds": pytest.approx(4e-5)}
    assert add["name"] == "vectorized_elementwise_kernel: CUDAFunctor_add"
    report = {"copy_bytes_per_second": 1e12, "kernels": [lstm, add]}
    assert kernel_rows(report, most=1) == [
        ("_forward_kernel", "2", "0.040", "4", "10%"),
        ("1 others", "1", "0.001", "0", "0%"),
        ("all", "3", "0.041", "4", "10%"),
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU")
def test_the_kernels_of_a_step_are_measured():
    pytest.importorskip("triton")
    report = measure_kernels(2, "gru", "tf32")
    assert report["copy_bytes_per_second"] > 1e11
    assert "_gru_forward_kernel" in [one["name"] for one in report["kernels"]]
    assert all(one["launches"] > 0 and one["seconds"] > 0 for one in report["kernels"])
