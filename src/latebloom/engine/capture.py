"""Steps as CUDA graphs: hundreds of small launches become one."""

import warnings
from collections.abc import Callable, Hashable

import torch


class Captured:
    """Runs a step by its key: the first time as it is, the second time captured, from then on replayed.

    A step must read all that changes from tensors that stay where they are, and write its results into such. The
    first time is a real step, not a rehearsal: it leaves nothing to undo, and what is set up lazily (kernels that are
    compiled, optimizer state) is there when the step is captured. All graphs share one pool of memory, since they never
    run at the same time. On a CPU every step runs as it is, and so it does on a GPU from the moment a step could not be
    captured; `reason` says why.
    """

    def __init__(self, device: torch.device, enabled: bool = True) -> None:
        self.enabled = enabled and device.type == "cuda"
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.reason: str | None = None if self.enabled else f"steps are captured on a GPU, not on {device}"
        if self.enabled:
            self._pool = torch.cuda.graph_pool_handle()
            # One stream for all: libraries keep a workspace for each, and may choose their algorithms by it.
            self._stream = torch.cuda.Stream(device)

    def run(self, key: Hashable, step: Callable[[], None]) -> None:
        """Do the step that the key stands for."""
        if not self.enabled:
            step()
            return
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            if key in self._seen and key not in self._graphs:
                self._capture(key, step)
            self._seen.add(key)
            if key in self._graphs:
                self._graphs[key].replay()
            else:
                step()
        current.wait_stream(self._stream)

    def _capture(self, key: Hashable, step: Callable[[], None]) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                step()
        except RuntimeError as error:
            self.enabled = False
            self.reason = f"capturing a step failed: {str(error).splitlines()[0]}"
            self._graphs.clear()
            self._end_half_captured_randomness()
            warnings.warn(f"steps are not captured, which is slower: {self.reason}", stacklevel=2)
        else:
            self._graphs[key] = graph

    def _end_half_captured_randomness(self) -> None:
        """A capture that fails leaves torch's random numbers waiting for its end, and whoever draws some next gets an
        error; a capture that succeeds, of next to nothing, ends that."""
        torch.cuda.synchronize(self._stream.device)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self._stream):
            torch.zeros(1, device=self._stream.device)
