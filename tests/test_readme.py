"""The code and the commands of README.md and docs/ work as printed."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from synthetic import study

from latebloom import run
from latebloom.results.file import read_results, schema, write_results

ROOT = Path(__file__).parent.parent
PAGES = {str(page.relative_to(ROOT)): page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))}
README, TUTORIAL, DESIGN = (PAGES[name] for name in ("README.md", "docs/tutorial.md", "docs/design.md"))


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def python(code: str, folder: Path) -> str:
    """Run code in a process of its own and return what it prints."""
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


# README


def test_the_plain_loop_works_as_printed(tmp_path):
    loop, _ = blocks(README, "python")
    assert python(loop, tmp_path).startswith("DelayedAttention(enabled at step 3: ")


def test_the_trainer_callback_works_as_printed(tmp_path):
    pytest.importorskip("accelerate")
    _, callback = blocks(README, "python")
    before = (
        "import torch\n"
        "from transformers import OlmoHybridConfig, OlmoHybridForCausalLM\n"
        "heads = dict(num_attention_heads=2, linear_num_key_heads=2, linear_num_value_heads=2)\n"
        "widths = dict(hidden_size=16, intermediate_size=16, linear_key_head_dim=8, linear_value_head_dim=8)\n"
        "layers = dict(num_hidden_layers=2, layer_types=['linear_attention', 'full_attention'])\n"
        "config = OlmoHybridConfig(vocab_size=11, **heads, **widths, **layers, pad_token_id=None)\n"
        "model = OlmoHybridForCausalLM(config)\n"
        "ids = torch.arange(10)\n"
        "dataset = [{'input_ids': ids, 'labels': ids}] * 8\n"
    )
    after = (
        "\n(one,) = [c for c in trainer.callback_handler.callbacks if isinstance(c, DelayedAttentionCallback)]\n"
        "print(one.delay.switch_step)\n"
    )
    assert python(before + callback + after, tmp_path).splitlines()[-1] == "3"


def test_the_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    lines = [line for block in blocks(README, "sh") for line in block.splitlines() if line.startswith("make ")]
    assert [line.split()[1] for line in lines] == ["demo", "test"]
    assert all(f"\n{line.split()[1]}:" in makefile for line in lines)


def test_the_readme_is_a_front_page():
    assert README.count("\n") <= 120
    assert len(re.sub(r"<!--.*?-->|```.*?```", "", README, flags=re.DOTALL).split()) <= 900


# Tutorial

SMALLER = [
    "model.width=8", "model.blocks=1", "training.steps=12", "training.full.batch_size=4",
    "training.delayed.batch_size=4", "evaluation.sequences=8", "delay.until.step=6",
]  # fmt: skip


@pytest.mark.timeout(1500)
def test_the_commands_of_the_tutorial_work_as_printed_with_smaller_models(tmp_path):
    lines = [line for block in blocks(TUTORIAL, "sh") for line in block.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    results = tmp_path / "studies" / "paper-tiny" / "results.parquet"
    write_results(results, study(seeds=2, arms=("joint", "dat")))  # instead of the study itself, which takes minutes
    assert ["study", "paper", "--scale", "tiny"] in commands
    commands.remove(["study", "paper", "--scale", "tiny"])
    for words in commands:
        command = [sys.executable, "-m", "latebloom", *words, *(SMALLER if "--recipe" in words else [])]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, f"{words}: {ran.stderr}"
    assert len(list((tmp_path / "runs" / "dat").glob("evaluation-25-200-*.json"))) == 1
    for place in (".", "runs/dat-seeds", "studies/paper-tiny"):
        assert (tmp_path / place / "report" / "index.html").exists()


def train_with_the_api(folder: Path, switch: int, *changed: tuple[str, str]) -> float:
    """Run the tutorial's Python with some numbers changed, and return the accuracy at the training length."""
    (code,) = blocks(TUTORIAL, "python")
    for before, after in changed:
        assert before in code
        code = code.replace(before, after)
    check = f"\nassert run.switch_step == {switch}\nprint(run.evaluate([25], sequences=256).accuracy(25))"
    accuracy = float(python(code + check, folder))
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    return accuracy


@pytest.mark.slow
@pytest.mark.timeout(1500)  # on a busy machine its minute becomes many
def test_the_python_of_the_tutorial_works_as_printed(tmp_path):
    assert train_with_the_api(tmp_path, 500) > 0.9


def test_the_python_of_the_tutorial_works_with_fewer_steps(tmp_path):
    fewer = ("at_step(500)", "at_step(6)"), ("steps=900", "steps=12"), ("width=64", "width=8")
    assert train_with_the_api(tmp_path, 6, *fewer) < 0.9


# Other pages


def test_the_python_of_the_report_page_works_as_printed(tiny, tmp_path):
    run(tiny, tmp_path / "runs" / "joint-0", device="cpu")
    (code,) = blocks(PAGES["docs/report.md"], "python")
    python(code, tmp_path)
    (found,) = read_results([tmp_path / "results" / "mine.parquet"])
    assert (found.arm, found.seed, found.evaluation is not None) == ("joint", 0, True)


def test_the_report_page_names_the_columns_of_a_results_file():
    table = PAGES["docs/report.md"].partition("| column |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert named == set(schema())


YOUR_MODEL = PAGES["docs/your-model.md"]


def test_the_python_of_your_model_works_as_printed(tmp_path):
    (shown,) = re.findall(r"```\n(DelayedAttention.*?)```", YOUR_MODEL, re.DOTALL)
    assert python(blocks(YOUR_MODEL, "python")[0], tmp_path) == shown


def recipes() -> dict[str, str]:
    """The code of each recipe by its name."""
    section = YOUR_MODEL.partition("## Recipes")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\*\*([^*]+?)\.\*\*.*?```python\n(.*?)```", section, re.DOTALL | re.MULTILINE))


def test_the_recipes_of_your_model_work_as_printed(tmp_path):
    """Each is run on the model of the first block, over the switch; LoRA's on a Bamba."""
    model = blocks(YOUR_MODEL, "python")[0].partition("optimizer =")[0]
    bamba = (
        "import sys\n"
        f"sys.path.append({str(ROOT / 'tests' / 'integrations')!r})\n"
        "from families import build\n"
        "model = build('bamba')\n"
        "def loss_of(model):\n"
        "    tokens = torch.randint(3, 50, (2, 8))\n"
        "    return model(input_ids=tokens, labels=tokens).loss\n"
    )
    alone = (
        "import os\n"
        "import torch.distributed\n"
        "store = torch.distributed.TCPStore('127.0.0.1', 0, is_master=True)\n"
        "os.environ |= {'RANK': '0', 'WORLD_SIZE': '1', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(store.port),"
        " 'TORCHELASTIC_USE_AGENT_STORE': 'True'}\n"
    )
    train = """
before = {name: p.detach().clone() for name, p in delay.parameters().items()}
for step in range(1, 5):
    loss_of(globals().get("compiled", globals().get("wrapped", model))).backward()
    for one in globals().get("optimizers", [globals().get("optimizer")]):
        one.step()
        one.zero_grad()
    moved = sum(not torch.equal(getattr(p, "full_tensor", lambda: p)(), getattr(before[name], "full_tensor",
        lambda: before[name])()) for name, p in delay.parameters().items())
    assert moved == (len(before) if step > 2 else 0), (step, moved)
if torch.distributed.is_initialized():
    wrapped = None
    torch.distributed.destroy_process_group()
"""
    found = recipes()
    assert len(found) == 7
    code = ["import gc, torch, latebloom as lb", alone]
    for name, recipe in found.items():
        faster = recipe.replace("at_step(6_000)", "at_step(2)").replace(
            "compile(model)", "compile(model, backend='eager')"
        )
        code += [model, bamba if name == "LoRA" else "", faster, train]
        code += ["for name in ('compiled', 'wrapped', 'optimizers'):\n    globals().pop(name, None)\ngc.collect()\n"]
    python("\n".join(code), tmp_path)


def test_the_page_of_models_names_every_family_that_is_tested():
    families = (ROOT / "tests" / "integrations" / "families.py").read_text()
    for family in re.findall(r'^    "(\w+)": \{', families.split("FAMILIES")[1], re.MULTILINE):
        assert f"\n| `{family}` | `" in PAGES["docs/models.md"], family


def test_every_command_is_in_the_table():
    commands = {path.stem for path in (ROOT / "src" / "latebloom" / "commands").glob("[!_]*.py")}
    assert commands <= set(re.findall(r"^\| `latebloom (\w+)", PAGES["docs/cli.md"], re.MULTILINE))


def test_the_files_of_a_run_are_those_that_the_page_names(tiny, tmp_path):
    run(tiny, tmp_path / "run", device="cpu")
    table = PAGES["docs/cli.md"].partition("## The run folder")[2].partition("\n\n`latebloom")[0]
    named = set(re.findall(r"^\| `([\w.]+)/?` \|", table, re.MULTILINE))
    assert {path.name for path in (tmp_path / "run").glob("[!.]*")} == named


def test_every_dependency_is_in_the_table_and_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = (ROOT / "constraints.txt").read_text()
    for requirement in project["dependencies"]:
        name = re.split(r"[><=\[]", requirement)[0]
        assert re.search(rf"^\| .*\b{name}\b.* \|", DESIGN, re.MULTILINE), name
        assert re.search(rf"^{name}==", pinned, re.MULTILINE), name


def test_every_package_is_in_the_layout():
    packages = {path.parent.name for path in (ROOT / "src" / "latebloom").glob("*/__init__.py")}
    layout = DESIGN.partition("## Layout")[2].partition("## Guarantees")[0]
    assert packages <= set(re.findall(r"^  (\w+)/ ", layout, re.MULTILINE))


@pytest.mark.parametrize("page", sorted(PAGES))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", PAGES[page]):
        linked = (ROOT / page).parent / target if target else ROOT / page
        assert linked.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads], anchor


# The package


@pytest.mark.parametrize("heavy", ["rich", "vl_convert", "safetensors", "huggingface_hub", "scipy", "polars"])
def test_importing_latebloom_imports_nothing_heavy(heavy):
    script = f"import sys; from latebloom import *; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_importing_latebloom_adds_little_to_importing_torch(tmp_path):
    script = "import torch, time; t = time.process_time(); from latebloom import *; print(time.process_time() - t)"
    assert min(float(python(script, tmp_path)) for _ in range(3)) < 0.3
