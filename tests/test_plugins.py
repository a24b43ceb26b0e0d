"""Components of a user's own, in files and modules: known to every command and every process."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from latebloom import load_config, plugins, recipe
from latebloom.config import config_from
from latebloom.errors import ConfigError
from latebloom.layers.recurrence import Recurrence
from latebloom.tasks import Task

COMPONENTS = '''
"""A task and a recurrence of one's own."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from latebloom.layers.recurrence import Recurrence, RecurrentLayer
from latebloom.tasks import Batch, Task
from latebloom.tasks.random import integers


@dataclass(frozen=True, kw_only=True)
class Parity(Task):
    """Bits, then a marker; the answer is their parity."""

    answers: ClassVar = ("parity",)
    state_answer: ClassVar = "parity"
    name: Literal["parity"] = "parity"

    @property
    def vocabulary_size(self):
        return 3

    @property
    def chance(self):
        return {"parity": 0.5}

    def token_count(self, length):
        return length + 1

    def spell(self, token):
        return "01="[token]

    def draw(self, key, rows, length):
        bits = integers(key, rows, 0, length, 2)
        marker = torch.full((len(rows), 1), 2, device=rows.device)
        return Batch(
            torch.cat([bits, marker], dim=1),
            torch.full_like(marker, length),
            bits.sum(dim=1, keepdim=True) % 2,
            {"parity": slice(0, 1)},
        )


@dataclass(frozen=True, kw_only=True)
class Elman(Recurrence):
    """An Elman network."""

    name: Literal["elman"] = "elman"

    def build(self, width):
        return ElmanLayer(width)

    def state_size(self, width):
        return width


class ElmanLayer(RecurrentLayer):
    def __init__(self, width):
        super().__init__()
        self.rnn = nn.RNN(width, width, batch_first=True)

    def forward(self, x, state=None, noise=None):
        return self.rnn(x, state)
'''
STUDY = '''

from latebloom import Delay, Evaluating, Phase, RunConfig, Training, at_step, hybrid
from latebloom.studies.plan import Arm, Plan, study


def config(steps):
    phase = Phase(warmup=2, batch_size=8)
    return RunConfig(
        task=Parity(),
        model=hybrid(width=8, blocks=1, heads=2, recurrence="elman"),
        training=Training(length=4, steps=steps, delayed=phase, full=phase, log_every=5, checkpoint_every=5),
        evaluation=Evaluating(multiples=(1, 2), sequences=16),
    )


@study("mine")
def mine(scale):
    """Whether an Elman network tracks parity."""
    from dataclasses import replace

    joint = config(STEPS)
    return Plan([Arm("joint", joint), Arm("dat", replace(joint, delay=Delay(until=at_step(5))))], seeds=range(2))
'''


def command(*words: str, cwd: Path, check: bool = True) -> str:
    """What a command prints, run as a user runs it, without this repository on the path of its modules."""
    ran = subprocess.run(
        [sys.executable, "-m", "latebloom", *words], cwd=cwd, capture_output=True, text=True, timeout=250
    )
    assert not check or ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def write_study(folder: Path, steps: int = 12) -> Path:
    file = folder / "mystudy.py"
    file.write_text(COMPONENTS + STUDY.replace("STEPS", str(steps)))
    return file


@pytest.fixture(scope="module")
def studied(tmp_path_factory) -> Path:
    """A folder in which a study file with its own task and recurrence was run on two processes."""
    folder = tmp_path_factory.mktemp("studied")
    write_study(folder)
    (folder / "elsewhere").mkdir()
    words = ("study", "../mystudy.py", "--scale", "tiny", "--out", "out", "--workers", "2", "--device", "cpu")
    said = command(*words, cwd=folder / "elsewhere")
    assert "Page:" in said
    return folder


def test_a_study_file_brings_its_own_task_and_recurrence_to_its_worker_processes(studied):
    run = studied / "elsewhere" / "out" / "parity" / "dat" / "seed-1"
    written = json.loads((run / "config.json").read_text())
    assert written["imports"] == [str(studied / "mystudy.py")]
    assert (written["task"], written["model"]["recurrence"]) == ({"name": "parity"}, {"name": "elman"})
    assert json.loads((run / "model" / "config.json").read_text())["imports"] == [str(studied / "mystudy.py")]


def test_its_runs_can_be_evaluated_inspected_and_reported_from_anywhere(studied, tmp_path):
    run = studied / "elsewhere" / "out" / "parity" / "joint" / "seed-0"
    assert "parity" in command("evaluate", str(run), "--lengths", "4,6", "--json", "numbers.json", cwd=tmp_path)
    assert "ElmanLayer" in command("inspect", str(run), "--no-horizon", cwd=tmp_path)
    assert "ElmanLayer" in command("inspect", str(run / "model"), "--no-horizon", cwd=tmp_path)
    command("report", str(run.parents[2]), "--out", "report", cwd=tmp_path)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "mystudy.py" in page  # in the command that repeats a run


def test_the_command_that_repeats_a_run_repeats_it(studied, tmp_path):
    from latebloom.results.collect import repeat_command

    run = studied / "elsewhere" / "out" / "parity" / "joint" / "seed-0"
    line = repeat_command(load_config(run / "config.json"), "cpu").replace(
        "latebloom train", f"{sys.executable} -m latebloom train"
    )
    subprocess.run(["bash", "-c", f"{line} --out again"], cwd=tmp_path, check=True, capture_output=True, timeout=250)
    again, first = (json.loads((place / "evaluation.json").read_text()) for place in (tmp_path / "again", run))
    assert again == first


def test_a_study_that_is_killed_goes_on(tmp_path):
    write_study(tmp_path, steps=400)
    words = ["study", "mystudy.py", "--scale", "tiny", "--out", "out", "--workers", "2", "--device", "cpu"]
    process = subprocess.Popen([sys.executable, "-m", "latebloom", *words], cwd=tmp_path, start_new_session=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    while not list(tmp_path.glob("out/parity/*/seed-*/checkpoints/step-*")):
        time.sleep(0.05)
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    interrupted = [folder.parent for folder in tmp_path.glob("out/parity/*/seed-*/checkpoints")]
    assert any(not (run / "result.json").exists() for run in interrupted)
    command(*words, cwd=tmp_path)
    resumed = [json.loads((run / "environment.json").read_text())["resumed"] for run in interrupted]
    assert any(resumed)
    assert len(list(tmp_path.glob("out/parity/*/seed-*/result.json"))) == 4


def test_a_run_whose_file_has_moved_says_what_to_import(studied, tmp_path):
    run = json.loads((studied / "elsewhere" / "out" / "parity" / "joint" / "seed-0" / "config.json").read_text())
    run["imports"] = ["/nowhere/mystudy.py"]
    (tmp_path / "config.json").write_text(json.dumps(run))
    said = command("train", "--config", "config.json", "--out", "run", cwd=tmp_path, check=False)
    assert said.startswith("latebloom: task.name: 'parity' is not known; ")
    assert said.strip().endswith(
        "; the file /nowhere/mystudy.py that defines it is not here; give --import with where it is now"
    )
    moved = str(studied / "mystudy.py")
    command("train", "--config", "config.json", "--out", "run", "--device", "cpu", "--import", moved, cwd=tmp_path)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["imports"] == [moved]


def test_a_module_is_imported_by_name_and_listed(tmp_path):
    (tmp_path / "my_parts.py").write_text(COMPONENTS)
    listed = command("list", "--import", "my_parts", cwd=tmp_path)
    assert "parity" in listed
    assert "elman" in listed


# Within this process.


def test_a_file_that_is_loaded_twice_is_one_module_and_a_changed_one_is_read_again(tmp_path):
    file = tmp_path / "parts.py"
    file.write_text(COMPONENTS)
    module = plugins.load(str(file))
    assert plugins.load(str(file)) is module
    assert Task.find("parity") is module.Parity
    file.write_text(COMPONENTS.replace('"parity"', '"parity2"'))
    assert plugins.load(str(file)) is not module
    assert "parity" not in Task.members
    assert "parity2" in Task.members


def test_two_files_that_define_one_name_are_told_apart(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(COMPONENTS)
    plugins.load(str(tmp_path / "one.py"))
    with pytest.raises(
        ConfigError, match=r"--import: .*two.py, line \d+: task: 'parity' is defined twice.*one.py.*two.py"
    ):
        plugins.load(str(tmp_path / "two.py"))


def test_imports_are_recorded_and_no_part_of_the_hash(tmp_path):
    file = tmp_path / "parts.py"
    file.write_text(COMPONENTS)
    plugins.load(str(file))
    data = recipe("demo-joint").to_json()
    assert "imports" not in data
    data["model"]["recurrence"] = "elman"
    config = config_from(data)
    assert config.imports == ()
    assert config.to_json()["imports"] == [str(file)]
    again = config_from(json.loads(json.dumps(config.to_json())))
    assert again == config
    assert again.hash == config.hash
    assert again.imports == (str(file),)


def test_a_file_that_was_sent_from_another_machine_keeps_its_path(tmp_path):
    plugins.receive_sources({"/over/there/parts.py": COMPONENTS.encode()})
    data: dict[str, Any] = recipe("demo-joint").to_json() | {"imports": ["/over/there/parts.py"]}
    data["model"]["recurrence"] = "elman"
    config = config_from(data)
    assert config.to_json()["imports"] == ["/over/there/parts.py"]
    assert "elman" in Recurrence.members


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1 / 0", "parts.py, line 1: ZeroDivisionError: division by zero"),
        ("import nothing_of_the_kind", "parts.py, line 1: ModuleNotFoundError: No module named 'nothing_of_the_kind'"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence(tmp_path, text, said):
    (tmp_path / "parts.py").write_text(text)
    with pytest.raises(ConfigError, match=said):
        plugins.load(str(tmp_path / "parts.py"))
    with pytest.raises(ConfigError, match=said):
        config_from({"imports": [str(tmp_path / "parts.py")]})


def test_what_is_not_there_is_one_sentence():
    with pytest.raises(ConfigError, match="--import: there is no module 'nothing_of_the_kind'; give one that can be"):
        plugins.load("nothing_of_the_kind")
    with pytest.raises(ConfigError, match=r"--import: there is no file none\.py"):
        plugins.load("none.py")


def test_a_worker_of_a_cluster_reads_runs_whose_plugin_it_does_not_have(tmp_path):
    from latebloom.studies.ray_worker import Order

    file = tmp_path / "parts.py"
    file.write_text(COMPONENTS)
    plugins.load(str(file))
    data: dict[str, Any] = recipe("demo-joint").to_json()
    data["model"]["recurrence"] = "elman"
    (tmp_path / "order").write_bytes(pickle.dumps(Order.of({"run": config_from(data)})))
    file.unlink()  # as on a machine that shares no file system
    script = (
        "import pathlib, pickle, sys\n"
        "order = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "(config,) = order.read().values()\n"
        "print(config.model.recurrence.build(8), *config.to_json()['imports'])\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "order")]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("ElmanLayer(")
    assert ran.stdout.strip().endswith(str(file))


# Files beside a file.

HELPER = COMPONENTS + "\nSTEPS = 12\n"
USES_HELPER = "from helper import Parity, STEPS\nfrom more.constants import ARM\n" + STUDY.replace('"joint"', "ARM")


def write_neighbours(folder: Path) -> Path:
    (folder / "helper.py").write_text(HELPER)
    (folder / "more").mkdir()
    (folder / "more" / "__init__.py").write_text("")
    (folder / "more" / "constants.py").write_text('ARM = "joint"\n')
    (folder / "mystudy.py").write_text(USES_HELPER)
    return folder / "mystudy.py"


def test_a_study_file_imports_its_neighbours_in_every_command_and_process(tmp_path):
    file = write_neighbours(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    words = ("study", str(file), "--scale", "tiny", "--seeds", "1", "--out", "out", "--workers", "2", "--device", "cpu")
    command(*words, cwd=elsewhere)
    run = elsewhere / "out" / "parity" / "dat" / "seed-0"
    assert json.loads((run / "config.json").read_text())["imports"] == [str(file)]
    assert "parity" in command("evaluate", str(run), "--lengths", "4", "--json", "n.json", cwd=elsewhere)
    assert "ElmanLayer" in command("inspect", str(run), "--no-horizon", cwd=elsewhere)
    (run / "result.json").unlink()
    assert "Everything is in" in command("train", "--out", str(run), "--device", "cpu", cwd=elsewhere)
    command("report", str(run.parents[2]), "--out", "report", cwd=elsewhere)


def test_neighbours_are_sent_to_a_worker_of_a_cluster(tmp_path):
    file = write_neighbours(tmp_path)
    plugins.load(str(file))
    sources = plugins.plugin_sources([str(file)])
    assert set(sources) == {str(tmp_path / name) for name in ("mystudy.py", "helper.py", "more/__init__.py",
                                                              "more/constants.py")}  # fmt: skip
    script = (
        "import pathlib, pickle, sys\nfrom latebloom import plugins\nfrom latebloom.config import config_from\n"
        "sources, data = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "plugins.receive_sources(sources)\nplugins.receive_sources(sources)\n"
        "print(config_from(data).to_json()['imports'])\n"
    )
    data = recipe("demo-joint").to_json() | {"task": {"name": "parity"}, "imports": [str(file)]}
    there = tmp_path / "there"
    there.mkdir()
    (there / "order").write_bytes(pickle.dumps((sources, data)))
    for path in sources:
        Path(path).unlink()
    ran = subprocess.run(
        [sys.executable, "-c", script, str(there / "order")], cwd=there, capture_output=True, text=True
    )
    assert ran.stdout.strip() == f"['{file}']", ran.stderr


def test_a_file_that_changes_during_a_study_is_sent_as_it_was_when_the_study_began(tmp_path):
    file = write_neighbours(tmp_path)
    before = {path: path.read_bytes() for path in (file, tmp_path / "helper.py")}
    plugins.load(str(file))
    for path, content in before.items():
        path.write_bytes(content + b"\nraise RuntimeError('edited')\n")
    sources = plugins.plugin_sources([str(file)])
    assert all(sources[str(path)] == content for path, content in before.items())


def test_neighbours_of_the_same_name_in_two_folders_are_told_apart(tmp_path):
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "constants.py").write_text(f"NUMBER = {number}\n")
        (folder / "parts.py").write_text("from constants import NUMBER\n")
    assert [vars(plugins.load(str(tmp_path / n / "parts.py")))["NUMBER"] for n in ("1", "2", "1")] == [1, 2, 1]


def test_a_file_and_its_neighbour_may_both_be_named(tmp_path):
    file = write_neighbours(tmp_path)
    helper = plugins.load(str(tmp_path / "helper.py"))
    assert vars(plugins.load(str(file)))["Parity"] is vars(helper)["Parity"]
    assert plugins.load(str(tmp_path / "helper.py")) is helper


# Mistakes.


def test_an_unknown_component_says_how_to_name_its_file():
    with pytest.raises(ConfigError, match=r"'partiy' is not known; .* give its file with --import FILE\.py$"):
        config_from({"task": "partiy"})


NAME = '    name: Literal["parity"] = "parity"\n'


@pytest.mark.parametrize(
    ("before", "after", "lacking"),
    [
        (
            "@dataclass(frozen=True, kw_only=True)\nclass Parity",
            "class Parity",
            "@dataclass(frozen=True, kw_only=True) above it",
        ),
        (NAME, "", f"{NAME.strip()} in it"),
        (NAME, '    name: Literal["parity"]\n', f"{NAME.strip()} in it"),
        (NAME, '    name = "parity"\n', f"{NAME.strip()} in it"),
    ],
)
def test_a_component_that_lacks_something_says_what_to_add(tmp_path, before, after, lacking):
    (tmp_path / "parts.py").write_text(COMPONENTS.replace(before, after))
    with pytest.raises(ConfigError) as caught:
        plugins.load(str(tmp_path / "parts.py"))
    assert str(caught.value).endswith(
        f"task: Parity in {tmp_path / 'parts.py'} is no dataclass with a name; write {lacking}"
    )


def test_a_component_without_a_dataclass_says_so_when_it_is_made():
    namespace: dict[str, Any] = {"__name__": "notebook"}
    exec(COMPONENTS.replace("@dataclass(frozen=True, kw_only=True)\nclass Parity", "class Parity"), namespace)
    with pytest.raises(ConfigError, match=r"task: Parity in notebook is no dataclass with a name; write @dataclass"):
        namespace["Parity"]()


WRONG_TASKS = {
    'answers: ClassVar = ("sum",)': "the batch has columns for parity, which `answers` does not name",
    "return 2  # tokens": "a token is 2, so vocabulary_size must be 3 or more; it is 2",
    "return length  # tokens": "length 5 has 6 tokens, and token_count says 5",
    'return {"sum": 0.5}': "chance is given for sum; `answers` has parity",
    'return {"parity": 0.1}': "chance of parity is 10%, and always answering ",
    'state_answer: ClassVar = "sum"': "state_answer is 'sum', which is not in `answers` (parity)",
    "bits = integers(key, rows, 0, length, 2) * 1.0": "a token is a number of torch.float32; it must be torch.int64",
    "bits = integers(key, rows, 0, lenght, 2)": "NameError: name 'lenght' is not defined (parts.py, line 38)",
}
RIGHT = {
    "answers: C": 'answers: ClassVar = ("parity",)',
    "return 2": "return 3",
    "return length": "return length + 1",
    "return {": 'return {"parity": 0.5}',
    "state_answer: C": 'state_answer: ClassVar = "parity"',
    "bits =": "bits = integers(key, rows, 0, length, 2)",
}


@pytest.mark.parametrize("wrong", WRONG_TASKS)
def test_a_task_that_contradicts_itself_is_one_sentence_before_the_first_step(wrong, tmp_path, tiny):
    from dataclasses import replace

    from latebloom.dry_run import show_run
    from latebloom.engine.loop import run
    from latebloom.studies.plan import Arm
    from latebloom.study import Plan, train_plan

    right = next(line for start, line in RIGHT.items() if wrong.startswith(start))
    (tmp_path / "parts.py").write_text(COMPONENTS.replace(right, wrong, 1))
    task = vars(plugins.load(str(tmp_path / "parts.py")))["Parity"]()
    config = replace(tiny, task=task, delay=None)
    for train in (
        lambda: run(config, tmp_path / "run"),
        lambda: show_run(config, tmp_path / "run", device="cpu", seeds=None),
        lambda: train_plan("mine", Plan([Arm("joint", config)], range(2)), tmp_path / "run"),
    ):
        with pytest.raises(ConfigError) as caught:
            train()
        assert str(caught.value).startswith(f"task: parity: {WRONG_TASKS[wrong]}")
        assert str(caught.value).endswith(f"`latebloom check {tmp_path / 'parts.py'}` tests it")
    assert not (tmp_path / "run").exists()
