"""Steps as CUDA graphs: hundreds of small launches become one."""

import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from time import perf_counter
from typing import TypeVar

import torch

from latebloom.errors import first_line

T = TypeVar("T")


class Captured:
    """Run steps by key: directly the first time, captured the second time, and replayed from then on.

    A step must read everything that changes from tensors that stay in place, and write its results into such tensors.
    The first run is a real step, and it sets up what is created lazily (compiled kernels, optimizer state) before the
    capture. All graphs share one memory pool, because they never run at the same time. On a CPU, and on a GPU after a
    capture has failed for a `reason`, every step runs directly.
    """

    def __init__(self, device: torch.device, enabled: bool = True) -> None:
        self.enabled = enabled and device.type == "cuda"
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.reason: str | None = None
        self._seconds = 0.0
        if self.enabled:
            self._pool = torch.cuda.graph_pool_handle()
            # One stream for all graphs: libraries keep a workspace per stream, and may choose algorithms by it.
            self._stream = torch.cuda.Stream(device)

    def run(self, key: Hashable, step: Callable[[], None]) -> None:
        """Run the step with this key."""
        if not self.enabled:
            step()
            return
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            if key in self._seen and key not in self._graphs:
                began = perf_counter()
                self._capture(key, step)
                self._seconds += perf_counter() - began
            self._seen.add(key)
            if key in self._graphs:
                self._graphs[key].replay()
            else:
                step()
        current.wait_stream(self._stream)

    def take_seconds(self) -> float:
        """Return the time that captures have taken since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _capture(self, key: Hashable, step: Callable[[], None]) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                step()
        except RuntimeError as error:
            self.enabled = False
            self.reason = f"capturing a step failed: {first_line(error)}"
            self._graphs.clear()
            self._reset_generators()
            warnings.warn(f"steps are not captured, which is slower: {self.reason}", stacklevel=2)
        else:
            self._graphs[key] = graph

    def _reset_generators(self) -> None:
        """Reset torch's generators after a failed capture.

        They still wait for the capture to end, and the next draw would raise; a small successful capture ends it.
        """
        torch.cuda.synchronize(self._stream.device)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self._stream):
            torch.zeros(1, device=self._stream.device)


@cache
def _side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """Return the same stream for the same number, because libraries keep a workspace per stream."""
    return torch.cuda.Stream(device)


def side_by_side(device: torch.device, works: Sequence[Callable[[], T]]) -> list[T]:
    """Return what each function returns; on a GPU each has a stream of its own, so that small kernels run at once.

    The functions must not depend on one another, nor create tensors that outlive the call.
    """
    if device.type != "cuda":
        return [work() for work in works]
    current, found = torch.cuda.current_stream(device), list[T]()
    streams = [_side_stream(device, number) for number in range(len(works))]
    started: list[torch.cuda.Stream] = []
    try:
        for stream, work in zip(streams, works, strict=True):
            stream.wait_stream(current)
            started.append(stream)
            with torch.cuda.stream(stream):
                found.append(work())
    finally:  # a capture cannot end while a stream has not come back
        for stream in started:
            current.wait_stream(stream)
    return found
