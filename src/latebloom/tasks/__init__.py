"""Synthetic tasks: sequences with answers. Each task is one file."""

from latebloom.tasks.composite import Composite
from latebloom.tasks.conditional_mqar import ConditionalMQAR
from latebloom.tasks.coupled_key import CoupledKey
from latebloom.tasks.coupled_value import CoupledValue
from latebloom.tasks.modular_sum import ModularSum
from latebloom.tasks.mqar import MQAR
from latebloom.tasks.parity_recall import ParityRecall
from latebloom.tasks.recall import Recall
from latebloom.tasks.repl import Repl
from latebloom.tasks.state_based_recall import StateBasedRecall
from latebloom.tasks.stream import Stream
from latebloom.tasks.task import Batch, Split, Task
from latebloom.tasks.word_problem import WordProblem
from latebloom.tasks.word_recall import WordRecall

__all__ = [
    "MQAR",
    "Batch",
    "Composite",
    "ConditionalMQAR",
    "CoupledKey",
    "CoupledValue",
    "ModularSum",
    "ParityRecall",
    "Recall",
    "Repl",
    "Split",
    "StateBasedRecall",
    "Stream",
    "Task",
    "WordProblem",
    "WordRecall",
]
