"""Runs on a real Ray cluster: the same results, deaths, failures, stops, and machines that share no folder."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from processes import trainer_of

from latebloom import load_config, plugins, run
from latebloom.cli import main
from latebloom.engine.checkpoint import latest_checkpoint
from latebloom.engine.folder import RunFolder
from latebloom.engine.loop import run_stacked
from latebloom.engine.pause import Stop, paused_step
from latebloom.errors import ConfigError, InterruptedRun
from latebloom.layers.recurrence import Recurrence
from latebloom.results.file import read_results
from latebloom.studies import on_ray
from latebloom.studies import ray_cluster as connecting
from latebloom.studies.beginnings import train_sharing
from latebloom.studies.local import environment, train_all
from latebloom.studies.on_ray import train_on_ray
from latebloom.studies.ray_cluster import ray_cluster
from latebloom.studies.ray_worker import Coordinator

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster():
    """Two cores, and an environment that asks for more threads than a run is to have."""
    with environment(OMP_NUM_THREADS="4", MKL_NUM_THREADS="4"), ray_cluster(workers=2):
        yield ray.get_runtime_context().gcs_address


@pytest.fixture(params=["a shared folder", "no shared folder"])
def sharing(request, monkeypatch):
    """Whether workers see the study's folder."""
    if request.param == "no shared folder":
        monkeypatch.setattr(Path, "touch", lambda path: None)  # the file by which they recognise it is not there
    return request.param == "a shared folder"


def trained(folder: Path) -> dict[str, bytes]:
    """What must not differ by a bit."""
    names = ("config.json", "metrics.jsonl", "evaluation.json", "model/model.safetensors")
    return {name: (folder / name).read_bytes() for name in names}


def about(folder: Path):
    return json.loads((folder / "environment.json").read_text())


def longer(config, steps):
    return replace(config, training=replace(config.training, steps=steps, checkpoint_every=50))


def test_runs_are_those_that_one_would_do_alone(cluster, tiny, tmp_path, sharing, capfd):
    configs = {"arm/joint": replace(tiny, delay=None), "arm/dat": tiny}
    seen: dict[str, set[str]] = {name: set() for name in configs}
    (tmp_path / ".writing-arriving-x" / "arrived").mkdir(parents=True)  # what a killed study left
    (tmp_path / ".writing-driver-x").write_text("")
    failures = train_on_ray(configs, tmp_path, observe=lambda name, progress: seen[name].add(progress.phase))
    assert failures == {}
    assert not list(tmp_path.glob(".writing-*"))
    for name, config in configs.items():
        run(config, tmp_path / "alone" / name, device="cpu")
        assert trained(tmp_path / name) == trained(tmp_path / "alone" / name)
        assert about(tmp_path / name)["threads"] == 1
        assert about(tmp_path / name)["command"] == [Path(sys.argv[0]).name, *sys.argv[1:]]
        assert "done" in seen[name]
    before = trained(tmp_path / "arm" / "dat")
    assert train_on_ray(configs, tmp_path) == {}  # nothing is trained again
    assert trained(tmp_path / "arm" / "dat") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "arm"]
    assert capfd.readouterr() == ("", "")


def test_runs_pause_are_forked_and_go_on(cluster, tiny, tmp_path, sharing):
    """With the same bits as alone, also where the workers have another folder than the study."""
    slow = replace(tiny, training=replace(tiny.training, recurrence_factor=0.3))  # the same until the switch at step 12
    configs = {"dat": tiny, "slow": slow}

    def train(configs, folder, stops):
        return train_on_ray(configs, folder, stops=stops)

    stops = {name: Stop(20) for name in configs}
    assert train_sharing(configs, tmp_path, stops, train, on_ray.kind_of_device("cpu")) == {}
    assert about(tmp_path / "slow")["forked"]["step"] == 12
    assert [paused_step(RunFolder(tmp_path / name)) for name in configs] == [20, 20]
    assert train(configs, tmp_path, {}) == {}
    for name, config in configs.items():
        run(config, tmp_path / "alone" / name, device="cpu")
        assert trained(tmp_path / name) == trained(tmp_path / "alone" / name)


FAULTY = """
from dataclasses import dataclass
from typing import Literal

from latebloom.layers.lstm import LSTM, LSTMLayer


@dataclass(frozen=True, kw_only=True)
class Faulty(LSTM):
    name: Literal["faulty"] = "faulty"

    def build(self, width):
        return FaultyLayer(width)


class FaultyLayer(LSTMLayer):
    def forward(self, x, state=None, noise=None):
        return self.weigths
"""
"""A recurrence with a mistake, which nobody foresees."""


@pytest.fixture(scope="module")  # a worker of the cluster imports one file of this name
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Recurrence:
    file = tmp_path_factory.mktemp("faulty") / "faulty.py"
    file.write_text(FAULTY)
    plugins.load(str(file), "imports")
    return Recurrence.named("faulty")


def test_a_run_that_fails_is_reported_with_its_log_and_the_others_finish(cluster, tiny, faulty, tmp_path, sharing):
    (tmp_path / "unwritable" / "metrics.jsonl").mkdir(parents=True)
    (tmp_path / "unwritable" / "metrics.jsonl" / "a file").write_text("where a file should be, not a folder")
    broken = replace(tiny, model=replace(tiny.model, recurrence=faulty))
    hot = replace(tiny.training, full=replace(tiny.training.full, learning_rate=1e30), clip=1e30)
    configs = {"unwritable": tiny, "broken": broken, "hot": replace(tiny, training=hot, delay=None), "good": tiny}
    seen = []
    failures = train_on_ray(configs, tmp_path, observe=lambda name, progress: seen.append((name, progress.phase)))
    assert set(failures) == {"unwritable", "broken", "hot"}
    assert (
        "metrics.jsonl could not be written (it is a folder, not a plain file); what was saved"
        in failures["unwritable"]
    )
    assert failures["broken"] == f"AttributeError, see {tmp_path / 'broken' / 'error.log'}"
    assert "has no attribute 'weigths'" in (tmp_path / "broken" / "error.log").read_text()
    assert "not finite" in failures["hot"]
    assert {("broken", "failed"), ("hot", "failed"), ("good", "done")} <= set(seen)
    assert (tmp_path / "good" / "result.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="finds a worker by its files in /proc")
def test_a_worker_that_is_killed_is_started_again_and_goes_on(cluster, tiny, tmp_path, capfd):
    configs = {"once": longer(tiny, 400), "always": longer(tiny, 100_000)}
    killed: dict[str, set[int]] = {"once": set(), "always": set()}

    def kill(name, seen):
        process = trainer_of(tmp_path / name)  # which may be dying still of the last kill
        if seen.step >= 60 and process and (name == "always" or not killed[name]):
            killed[name].add(process)
            os.kill(process, signal.SIGKILL)

    assert train_on_ray(configs, tmp_path, observe=kill) == {"always": "its process ended 3 times"}
    assert {name: len(processes) for name, processes in killed.items()} == {"once": 1, "always": 3}
    assert len(about(tmp_path / "once")["resumed"]) == 1
    assert len(about(tmp_path / "always")["resumed"]) == 2
    run(configs["once"], tmp_path / "alone", device="cpu")
    assert trained(tmp_path / "once") == trained(tmp_path / "alone")
    assert capfd.readouterr() == ("", "")  # Ray has much to say of this


def test_ctrl_c_stops_the_runs_which_save_and_go_on(cluster, tiny, tmp_path, sharing):
    configs = {"a": longer(tiny, 400), "b": longer(replace(tiny, seed=1), 400), "c": tiny}
    reached: dict[str, int] = {}

    def interrupt(name, seen):
        reached[name] = seen.step
        if min(reached.get("a", 0), reached.get("b", 0)) > 0:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedRun, match=f"stopped; the progress is saved in {tmp_path}"):
        train_on_ray(configs, tmp_path, observe=interrupt)
    unfinished = [name for name in "ab" if not (tmp_path / name / "result.json").exists()]
    assert unfinished  # 400 steps leave time to ask
    if len(unfinished) == 2:  # on a busy machine one may have ended before the other began
        assert not (tmp_path / "c").exists()  # there was no core for it
    for name in unfinished:
        assert latest_checkpoint(tmp_path / name / "checkpoints") is not None
    assert train_on_ray(configs, tmp_path) == {}
    assert all(len(about(tmp_path / name)["resumed"]) == 1 for name in unfinished)
    run(configs[unfinished[0]], tmp_path / "alone", device="cpu")
    assert trained(tmp_path / unfinished[0]) == trained(tmp_path / "alone")


def test_a_coordinator_that_dies_takes_no_run_with_it(cluster, tiny, tmp_path, monkeypatch, sharing, capfd):
    """It dies at the first report after each start, so the driver hears nothing while the runs train."""

    class Mortal(Coordinator):
        def report(self, wave, progress):
            os._exit(1)

    monkeypatch.setattr(on_ray, "Coordinator", Mortal)
    configs = {"a": longer(tiny, 100), "b": longer(replace(tiny, seed=1), 100)}
    seen: dict[str, set[str]] = {name: set() for name in configs}
    assert train_on_ray(configs, tmp_path, observe=lambda name, progress: seen[name].add(progress.phase)) == {}
    for name, config in configs.items():
        run(config, tmp_path / "alone" / name, device="cpu")
        assert trained(tmp_path / name) == trained(tmp_path / "alone" / name)
        assert about(tmp_path / name)["resumed"] == []
        assert "done" in seen[name]
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_reaches_the_runs_also_if_the_coordinator_dies_of_it(cluster, tiny, tmp_path, monkeypatch):
    died = tmp_path / "died"

    class Mortal(Coordinator):
        def exchange(self, is_stopping):
            if is_stopping and not died.exists():
                died.mkdir()
                os._exit(1)
            return super().exchange(is_stopping)

    monkeypatch.setattr(on_ray, "Coordinator", Mortal)
    config = longer(tiny, 2000)

    def interrupt(name, seen):
        if seen.step > 0 and not died.exists():
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedRun):
        train_on_ray({"a": config}, tmp_path, observe=interrupt)
    assert died.exists()
    assert latest_checkpoint(tmp_path / "a" / "checkpoints") is not None
    assert not (tmp_path / "a" / "result.json").exists()


def test_runs_of_one_shape_are_trained_at_once_and_go_on_so(cluster, tiny, tmp_path, monkeypatch):
    """A stack in a task, as on a GPU; its checkpoints are in a folder of their own, which travels too."""
    configs = {f"arm/{seed}": longer(replace(tiny, seed=seed), 200) for seed in range(2)}
    monkeypatch.setattr(Path, "touch", lambda path: None)  # no shared folder
    monkeypatch.setattr(on_ray, "_plan", lambda configs, *rest: ("cpu", [configs]))

    def interrupt(name, seen):
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRun):
        train_on_ray(configs, tmp_path, observe=interrupt)
    (stack,) = tmp_path.glob("stack-*")
    assert latest_checkpoint(stack / "checkpoints") is not None
    assert train_on_ray(configs, tmp_path) == {}
    assert not stack.exists()  # its checkpoints have served
    run_stacked(configs, tmp_path / "alone", torch.device("cpu"))
    for name in configs:
        assert len(about(tmp_path / name)["resumed"]) == 1
        assert trained(tmp_path / name) == trained(tmp_path / "alone" / name)


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU")


def seldom_looked_at(config, steps):
    training = replace(config.training, steps=steps, log_every=50, check_every=500, checkpoint_every=500)
    return replace(config, training=training, model=replace(config.model, width=16))


def assert_as_without_ray(configs, folder: Path):
    assert train_all(configs, folder / "here", device="cuda") == {}
    for name in configs:
        assert trained(folder / name) == trained(folder / "here" / name)


@pytest.mark.gpu
@on_a_gpu
def test_on_a_gpu_runs_are_stacked_as_they_are_without_ray(cluster, tiny, tmp_path, sharing):
    tiny = seldom_looked_at(tiny, 100)
    configs = {f"arm/{seed}": replace(tiny, seed=seed) for seed in range(3)}
    configs["wide"] = replace(tiny, model=replace(tiny.model, width=32))
    assert train_on_ray(configs, tmp_path) == {}
    assert {about(tmp_path / name)["device"] for name in configs} == {"cuda"}
    assert [json.loads((tmp_path / name / "result.json").read_text())["stacked"] for name in configs] == [3, 3, 3, 1]
    assert_as_without_ray(configs, tmp_path)


@pytest.mark.gpu
@on_a_gpu
def test_a_stack_on_a_gpu_that_is_stopped_goes_on(cluster, tiny, tmp_path, sharing):
    configs = {f"arm/{seed}": replace(seldom_looked_at(tiny, 2000), seed=seed) for seed in range(2)}

    def interrupt(name, seen):
        if seen.step > 0:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedRun):
        train_on_ray(configs, tmp_path, observe=interrupt)
    (stack,) = tmp_path.glob("stack-*")
    assert latest_checkpoint(stack / "checkpoints") is not None
    assert train_on_ray(configs, tmp_path) == {}
    assert all(len(about(tmp_path / name)["resumed"]) == 1 for name in configs)
    assert_as_without_ray(configs, tmp_path)


@pytest.mark.gpu
@on_a_gpu
def test_a_worker_on_a_gpu_that_is_killed_is_started_again(cluster, tiny, tmp_path):
    configs = {f"arm/{seed}": replace(seldom_looked_at(tiny, 2000), seed=seed) for seed in range(2)}
    killed: list[int] = []

    def kill(name, seen):
        process = trainer_of(tmp_path / name)
        if process and seen.step > 0 and not killed:
            killed.append(process)
            os.kill(process, signal.SIGKILL)

    assert train_on_ray(configs, tmp_path, observe=kill) == {}
    assert killed
    assert all(len(about(tmp_path / name)["resumed"]) == 1 for name in configs)
    assert_as_without_ray(configs, tmp_path)


STUDY = """
from latebloom import load_config
from latebloom.studies.plan import Arm, Plan, study

@study("mine")
def mine(scale):
    return Plan([Arm("joint", load_config({config!r}))], seeds=range(2))
"""


def test_the_command_uses_a_cluster_that_is_there(cluster, tiny, tmp_path):
    config = str(tmp_path / "config.json")
    Path(config).write_text(json.dumps(replace(tiny, delay=None).to_json()))
    (tmp_path / "mine.py").write_text(STUDY.format(config=config))
    words = ["study", "mine.py", "--scale", "tiny", "--on", "ray", "--address", cluster, "--out", "out"]
    ran = subprocess.run(
        [sys.executable, "-m", "latebloom", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert all(line.startswith("2 runs: ") for line in ran.stderr.splitlines())
    assert "2 runs: 2 done, 0 running" in ran.stderr
    assert [record.failure for record in read_results([tmp_path / "out" / "results.parquet"])] == [None, None]


@pytest.mark.slow
def test_a_machine_that_leaves_the_cluster_takes_no_run_with_it(tiny, tmp_path):
    """Three of Ray's nodes: one that trains nothing, as a head often is, and two that train, of which one is lost."""
    from ray.cluster_utils import Cluster

    config = longer(replace(tiny, delay=None), 1500)
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    (tmp_path / "mine.py").write_text(STUDY.format(config=str(tmp_path / "config.json")))
    memory = 100 * 2**20
    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": soon, "object_store_memory": memory}
    machines, study = Cluster(initialize_head=True, head_node_args=head), None
    try:
        stays, leaves = (machines.add_node(num_cpus=1, object_store_memory=memory) for _ in range(2))
        words = ["study", "mine.py", "--scale", "tiny", "--on", "ray", "--address", machines.address, "--out", "out"]
        command = [sys.executable, "-m", "latebloom", *words]
        study = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        runs = [tmp_path / "out" / "composite" / "joint" / f"seed-{seed}" for seed in range(2)]
        until = time.monotonic() + 120
        while not all(any((folder / "checkpoints").glob("*")) for folder in runs):
            assert study.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        assert not any((folder / "result.json").exists() for folder in runs)
        machines.remove_node(leaves, allow_graceful=False)
        _, said = study.communicate(timeout=120)
        assert study.returncode == 0, said
        assert stays in machines.worker_nodes
    finally:
        if study is not None:
            study.kill()
        machines.shutdown()
    assert sorted(len(about(folder).get("resumed", [])) for folder in runs) == [0, 1]
    for seed, folder in enumerate(runs):  # either may have been the one that was lost
        run(replace(load_config(tmp_path / "config.json"), seed=seed), tmp_path / f"alone-{seed}", device="cpu")
        assert trained(folder) == trained(tmp_path / f"alone-{seed}")


def test_a_cluster_of_our_own_listens_on_loopback_alone(cluster):
    assert cluster.startswith("127.")
    assert all(node["NodeManagerAddress"].startswith("127.") for node in ray.nodes())


@pytest.mark.parametrize(
    ("address", "reason"), [("127.0.0.1:1", "no answer within 5 seconds"), ("here", "Invalid address format")]
)
def test_an_address_where_no_cluster_is_is_one_sentence(address, reason, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(connecting, "SECONDS_TO_CONNECT", 5.0 if "no answer" in reason else 40.0)
    with pytest.raises(SystemExit) as stop:
        main(["study", "paper", "--on", "ray", "--address", address, "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"latebloom: address: there is no Ray cluster at '{address}': {reason}")


def test_a_device_that_the_cluster_does_not_have_is_an_error(cluster, tiny, tmp_path):
    with pytest.raises(ConfigError, match="'cuda' is not available in the Ray cluster"):
        train_on_ray({"a": tiny}, tmp_path, device="cuda")
    with pytest.raises(ConfigError, match="'cuda:1' cannot be chosen on Ray; choices: cpu, cuda"):
        train_on_ray({"a": tiny}, tmp_path, device="cuda:1")


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(connecting, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"not installed; pip install 'latebloom\[ray\]'"), ray_cluster():
        pass
