"""Steps as CUDA graphs: hundreds of small launches become one."""

from collections.abc import Callable, Hashable

import torch


class Captured:
    """Runs a step by its key: the first time as it is, the second time captured, from then on replayed.

    A step must read all that changes from tensors that stay where they are, and write its results into such. The
    first time is a real step, not a rehearsal: it leaves nothing to undo, and what is set up lazily (kernels that are
    compiled, optimizer state) is there when the step is captured. All graphs share one pool of memory, since they never
    run at the same time. On a CPU every step runs as it is.
    """

    def __init__(self, device: torch.device, enabled: bool = True) -> None:
        self.enabled = enabled and device.type == "cuda"
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        if self.enabled:
            self._pool = torch.cuda.graph_pool_handle()
            # One stream for all: libraries keep a workspace for each, and may choose their algorithms by it.
            self._stream = torch.cuda.Stream(device)

    def run(self, key: Hashable, step: Callable[[], None]) -> None:
        """Do the step that the key stands for."""
        if not self.enabled:
            step()
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            if key not in self._seen:
                self._seen.add(key)
                step()
            else:
                if key not in self._graphs:
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                        step()
                    self._graphs[key] = graph
                self._graphs[key].replay()
        torch.cuda.current_stream().wait_stream(self._stream)

    def forget(self) -> None:
        """Drop the graphs, because the tensors that they read are no longer the ones in use."""
        self._graphs.clear()
        self._seen.clear()
