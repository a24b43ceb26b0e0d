"""Two real processes that train together, started as torchrun starts them, so that every trainer knows what to do."""

import faulthandler
import gc
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LINUX = sys.platform == "linux"
# A server that has imported what ranks need forks them: importing takes seconds, and each rank would pay for it.
METHOD = "forkserver" if LINUX else "spawn"
START = 60
"""Seconds that the server and the ranks may take to begin, on a busy machine."""
IMPORTED_ONCE = [
    "pytest",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "latebloom.integrations.accelerate",
    "latebloom.integrations.lightning",
    "transformers.trainer",
    "transformers.models.bamba.modeling_bamba",
    "transformers.models.olmo_hybrid.modeling_olmo_hybrid",
    "latebloom.integrations.sharded_trainer",
]


def run_ranks(work: Callable[..., Any], *arguments: Any, limit: float = 120) -> list[Any]:
    """What `work(*arguments)` returns on each of two ranks: tensors and plain values in dictionaries and lists.

    Fails with the traceback of the rank that fails, or with the stacks of all after `limit` seconds; none outlives it.
    """
    context: Any = get_context(METHOD)
    context.set_forkserver_preload(IMPORTED_ONCE)
    # The store lives here, at a port that it has chosen itself: as with torchrun's agent, there is no port to lose.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes: list[Any] = []
        try:
            for rank in (0, 1):
                settings = (rank, store.port, folder, limit, work, arguments)
                process = context.Process(target=_be_rank, args=settings, daemon=True)
                process.start()
                processes.append(process)
            _wait(processes, time.monotonic() + START + limit, folder)
        finally:
            for process in processes:
                process.kill()
                process.join()
        return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


def _be_rank(
    rank: int, port: int, folder: Path, limit: float, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo" if LINUX else "lo0",  # no name of this machine to look up
    }
    torch.set_num_threads(1)
    with open(folder / f"{rank}.stacks", "w") as stacks:
        faulthandler.dump_traceback_later(limit, exit=True, file=stacks)
        try:
            torch.save(work(*arguments), folder / f"{rank}.pt")
            _leave_group()
        except BaseException:
            (folder / f"{rank}.error").write_text(traceback.format_exc())
            raise SystemExit(1) from None
        finally:
            faulthandler.cancel_dump_traceback_later()


def _leave_group() -> None:
    """Leave the group after everything that `work` has built is gone, and after the other rank has come to its end.

    DistributedDataParallel that outlives `destroy_process_group` is the last to hold the group, and frees it with the
    interpreter's lock in its hand. The group then waits for gloo's threads, and one of these may wait for that lock to
    drop what the last backward pass gave it: torch (seen in 2.13) deadlocks.
    """
    gc.collect()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def _wait(processes: list[Any], deadline: float, folder: Path) -> None:
    running = [process.sentinel for process in processes]
    while running:
        ended = connection.wait(running, max(0.0, deadline - time.monotonic()))
        running = [one for one in running if one not in ended]
        failed = any(process.exitcode for process in processes)
        if failed:
            connection.wait(running, 5)  # the words of the other may tell the cause
        if failed or not ended:
            files = [*sorted(folder.glob("*.error")), *sorted(folder.glob("*.stacks"))]
            said = [f"{file.name}:\n{file.read_text()}" for file in files if file.stat().st_size]
            codes = [process.exitcode for process in processes]
            raise AssertionError("\n".join([f"the ranks ended with {codes} (None: not in time)", *said]))
