"""The training data of one run: an endless sequence of batches, each of one length."""

from dataclasses import dataclass

import torch

from latebloom.tasks.random import bounded_int, fold
from latebloom.tasks.task import Batch, Split, Task


@dataclass(frozen=True)
class Stream:
    """Batches by number, with lengths uniform from the shortest possible to the training length."""

    task: Task
    seed: int
    training_length: int
    split: Split = "train"

    def length(self, index: int, longest: int | None = None) -> int:
        """Return the length of batch `index`, up to `longest` or the training length.

        It does not depend on the seed, so that seeds can be stacked.
        """
        shortest = max(2, self.task.shortest)
        key = fold(0x1E46, index)
        assert isinstance(key, int)
        return shortest + bounded_int(key, (longest or self.training_length) - shortest + 1)

    def batch(self, index: int, size: int, device: torch.device | str = "cpu") -> Batch:
        return self.task.batch(self.seed, self.split, index, length=self.length(index), size=size, device=device)
