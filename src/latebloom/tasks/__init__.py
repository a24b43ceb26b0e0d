"""Synthetic tasks: sequences with answers. Each task is one file."""

from latebloom.tasks.composite import Composite
from latebloom.tasks.modular_sum import ModularSum
from latebloom.tasks.recall import Recall
from latebloom.tasks.stream import Stream
from latebloom.tasks.task import Batch, Split, Task

__all__ = ["Batch", "Composite", "ModularSum", "Recall", "Split", "Stream", "Task"]
