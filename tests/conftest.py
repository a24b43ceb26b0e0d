"""One thread a process: two test workers share two cores, and threads would make them wait for each other."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Triton's kernels run in its interpreter: slow, but the same program. It is read when triton is imported, which
    # other libraries do too, so it must stand before all of them.
    os.environ["TRITON_INTERPRET"] = "1"
settings.register_profile("latebloom", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("latebloom")


@pytest.fixture(autouse=True)
def own_components():
    """Forget the components that a test defines when it ends."""
    yield
    from latebloom import plugins
    from latebloom.components import families, origin_of

    for family in families():
        for name in [name for name, member in family.members.items() if origin_of(member) is not None]:
            del family.members[name]
    plugins._loaded.clear()
    plugins._sent.clear()


@pytest.fixture
def device() -> torch.device:
    """The device that kernels are tested on."""
    torch.manual_seed(0)  # the inputs of a test are its own, whichever tests the process has run before
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def tiny(tiny_run):
    """A run that takes a second: every part of a real one, in small."""
    return tiny_run


@pytest.fixture(scope="session")
def tiny_run():
    """The same, for fixtures that several tests share."""
    from latebloom import Composite, Delay, Evaluating, Phase, RunConfig, Training, at_step, hybrid

    return RunConfig(
        task=Composite(modulus=3, keys=16, values=4),
        model=hybrid(width=8, blocks=2, heads=2),
        delay=Delay(until=at_step(12), withhold=("recall",)),
        training=Training(
            length=5,
            steps=24,
            delayed=Phase(learning_rate=5e-3, warmup=4, batch_size=8),
            full=Phase(learning_rate=3e-3, warmup=4, batch_size=16),
            log_every=3,
            check_every=8,
            checkpoint_every=5,
        ),
        evaluation=Evaluating(multiples=(1, 2, 3), sequences=32),
    )


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A folder whose state after each fsync is remembered as a power cut would leave it."""
    from simulated_disk import Disk

    root = tmp_path / "disk"
    root.mkdir()
    simulated = Disk(root)
    fsync, kept = os.fsync, []

    def note_and_sync(descriptor: int) -> None:
        kept.append(os.dup(descriptor))  # the number of an inode is used again unless something has it open
        fsync(descriptor)
        simulated.fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_and_sync)
    yield simulated
    for descriptor in kept:
        os.close(descriptor)
