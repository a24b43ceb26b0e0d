"""Traces of a Python session: variables that are permuted, a dictionary that is written, and prints."""

from dataclasses import dataclass
from math import factorial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from latebloom.errors import require
from latebloom.fields import Bound
from latebloom.tasks.keyed import KeyedTask
from latebloom.tasks.layout import first_tokens, insert, items_of_kinds, random_kinds, write_items, writes_and_reads
from latebloom.tasks.permutations import running_product, unrank, with_start
from latebloom.tasks.pieces import DIGITS, KINDS, MOVES, ORDER, START, Score, batch_of, draw_memory, keys_at, scored
from latebloom.tasks.random import distinct, integers
from latebloom.tasks.task import Batch, Supervision

PERMUTE, PRINT, WRITE, LOOK_UP = range(4)
"""The kinds of statements."""


@dataclass(frozen=True, kw_only=True)
class Repl(KeyedTask):
    """Statements of a Python session: permutations of variables, dictionary writes, and prints of both.

    A quarter of the statements each are writes, prints of a variable and prints of an entry; the others permute. There
    are half as many keys as writes, so most are written several times. What a print shows follows it in the trace.

    length 4   tokens    a,b,c= v5 v1 v8  d[ k7 ]= v2  a,b,c= c a b  print( b ) v5  print( d[ k7 ]) v2
               variable                                                       v5
               entry                                                                             v2
    """

    answers: ClassVar = ("variable", "entry")
    state_answer: ClassVar = "variable"
    markers: ClassVar = ("d[", "]=", "print(", ")", "])")
    shortest: ClassVar = 4

    name: Literal["repl"] = "repl"
    variables: Annotated[int, Bound(lambda n: 2 <= n <= 5, "from 2 to 5")] = 3
    """Number of variables; they start with distinct values."""
    supervision: Supervision = "aligned"
    """Supervise every print (aligned), or the last of a variable and the last of an entry (outcome)."""
    score: Score = "every"
    """Count every print that is supervised, or the last of each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.values >= self.variables, "values", self.values, f"{self.variables} or more, one per variable")

    @property
    def names(self) -> str:
        return "abcef"[: self.variables]  # d is the dictionary

    @property
    def named_tokens(self) -> tuple[str, ...]:
        return *self.names, f"{','.join(self.names)}=", *self.markers

    @property
    def chance(self) -> dict[str, float]:
        """The accuracy of guessing: for a variable, one of the values that the variables start with."""
        return {"variable": 1 / self.variables, "entry": 1 / self.values}

    def counts(self, length: int) -> tuple[int, int, int, int]:
        """Return the number of permutations, prints of a variable, writes and prints of an entry."""
        quarter = length // 4
        return length - 3 * quarter, quarter, quarter, quarter

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.variables + 1, 4, self.key_tokens + 3, self.key_tokens + 4

    def keys_needed(self, length: int) -> int:
        return (self.counts(length)[WRITE] + 1) // 2

    def token_count(self, length: int) -> int:
        statements = sum(count * size for count, size in zip(self.counts(length), self.sizes, strict=True))
        return self.variables + 1 + statements

    def oracle(self, tokens: list[int]) -> dict[str, int | list[int]]:
        words = [self.spell(token) for token in tokens]
        state: dict[str, int] = dict(zip(self.names, tokens[1:], strict=False))
        entries: dict[tuple[int, ...], int] = {}
        printed: dict[str, list[int]] = {"variable": [], "entry": []}
        place = self.variables + 1
        while place < len(tokens):
            if words[place] == "print(" and words[place + 1] == "d[":
                printed["entry"].append(entries[tuple(tokens[place + 2 : place + 2 + self.key_tokens])])
                place += self.sizes[LOOK_UP]
            elif words[place] == "print(":
                printed["variable"].append(state[words[place + 1]])
                place += self.sizes[PRINT]
            elif words[place] == "d[":
                *key, _, value = tokens[place + 1 : place + self.sizes[WRITE]]
                entries[tuple(key)] = value
                place += self.sizes[WRITE]
            else:
                right = words[place + 1 : place + 1 + self.variables]
                state = {name: state[source] for name, source in zip(self.names, right, strict=True)}
                place += self.sizes[PERMUTE]
        return {name: scored(values, self.supervision, self.score) for name, values in printed.items()}

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        counts, marker = self.counts(length), self.vocabulary.marker
        mixed = random_kinds(key, rows, ORDER, (*counts[:WRITE], counts[WRITE] + counts[LOOK_UP]))
        kinds = insert(mixed, WRITE, WRITE + writes_and_reads(key, rows, KINDS, counts[WRITE], counts[LOOK_UP]))
        places = first_tokens(kinds, self.sizes) + self.variables + 1
        items = dict(enumerate(items_of_kinds(kinds, counts)))
        starts = {kind: places.gather(1, at) for kind, at in items.items()}

        start = distinct(key, rows, START, self.variables, self.values) + self.vocabulary.first_value
        steps = unrank(integers(key, rows, MOVES, counts[PERMUTE], factorial(self.variables)), self.variables)
        sources = with_start(running_product(steps))  # where each variable's value was at the start
        done = (kinds == PERMUTE).long().cumsum(dim=1).gather(1, items[PRINT])
        shown = integers(key, rows, DIGITS, counts[PRINT], self.variables)
        variable = start.gather(1, keys_at(sources, done).gather(2, shown[:, :, None])[:, :, 0])

        pool = self.keys_needed(length)
        keys, values, found = draw_memory(key, rows, pool, self.vocabulary, kinds == WRITE, kinds == LOOK_UP)
        entry = found.gather(1, items[LOOK_UP])

        assign = marker(f"{','.join(self.names)}=")
        tokens = write_items(
            self.token_count(length),
            (torch.zeros_like(places[:, :1]), assign, start[:, None]),
            (starts[PERMUTE], assign, steps + marker("a")),
            (starts[WRITE], marker("d["), keys_at(keys, items[WRITE]), marker("]="), values.gather(1, items[WRITE])),
            (starts[PRINT], marker("print("), shown + marker("a"), marker(")"), variable),
            (starts[LOOK_UP], marker("print("), marker("d["), keys_at(keys, items[LOOK_UP]), marker("])"), entry),
        )
        queries = {"variable": (starts[PRINT] + 2, variable), "entry": (starts[LOOK_UP] + 2 + self.key_tokens, entry)}
        return batch_of(tokens, queries, self.supervision, self.score)
