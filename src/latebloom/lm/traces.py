"""Short programs and their output, written as text: what a language model must track or recall to continue them.

Each kind is a list of lines of which the last asks, with the one right answer among a few. Training documents answer
every query; a probe ends before the answer. Filler lines of other text may stand between the lines of a trace.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

DIGITS = tuple(f" {digit}" for digit in range(10))
NAMES = ("a", "b", "c", "d", "e")
KEYS = tuple(f"{first}{second}" for first in "bcdfghjklmnpqrstvwxz" for second in "aeiou")


@dataclass(frozen=True)
class Trace:
    """A trace up to its last query."""

    lines: tuple[str, ...]
    """The lines before the query, with their ends."""
    query: str
    """The last line, without its answer."""
    answer: str
    choices: tuple[str, ...]
    """The answers that are possible, the right one among them."""

    def __str__(self) -> str:
        return "".join(self.lines) + self.query + self.answer + "\n"


def needle(random: Random, size: int) -> Trace:
    """One sentence names a number; it is asked for at the end. `size` has no effect."""
    name, digit = random.choice(KEYS), random.choice(DIGITS)
    return Trace((f"# The number of {name} is{digit}.\n",), f"# The number of {name} is", digit, DIGITS)


def dictionary(random: Random, size: int) -> Trace:
    """`size` entries of a dictionary, of which one is asked for."""
    keys = random.sample(KEYS, max(1, min(size, len(KEYS))))
    values = {key: random.choice(DIGITS) for key in keys}
    asked = random.choice(keys)
    lines = tuple(f'table["{key}"] ={value}\n' for key, value in values.items())
    return Trace(("table = {}\n", *lines), f'assert table["{asked}"] ==', values[asked], DIGITS)


def swaps(random: Random, size: int, asked_every: int = 0) -> Trace:
    """Five variables, `size` swaps of two of them, and the value of one; only a variable that moved is asked for."""
    values = random.sample(DIGITS, len(NAMES))
    state: dict[str, str] = dict(zip(NAMES, values, strict=True))
    moved = set[str]()
    lines = [f">>> {', '.join(NAMES)} ={','.join(values)}\n"]
    for done in range(1, max(1, size) + 1):
        first, second = random.sample(NAMES, 2)
        state[first], state[second] = state[second], state[first]
        moved |= {first, second}
        lines.append(f">>> {first}, {second} = {second}, {first}\n")
        if asked_every and done % asked_every == 0 and done < size:
            shown = random.choice(NAMES)
            lines.append(f">>> {shown} #{state[shown]}\n")
    asked = random.choice(sorted(moved))
    return Trace(tuple(lines), f">>> {asked} #", state[asked], tuple(values))


def pointers(random: Random, size: int) -> Trace:
    """An array, two pointers that `size` lines move or swap, and the cell at one that moved: state, then recall."""
    cells = [random.choice(DIGITS) for _ in range(10)]
    at = {"i": random.randrange(10), "j": random.randrange(10)}
    moved = set[str]()
    lines = [f">>> cells = [{','.join(cells).strip()}]\n", f">>> i, j = {at['i']}, {at['j']}\n"]
    for _ in range(max(1, size)):
        if random.random() < 0.5:
            at["i"], at["j"] = at["j"], at["i"]
            moved |= {"i", "j"}
            lines.append(">>> i, j = j, i\n")
        else:
            name, value = random.choice("ij"), random.randrange(10)
            at[name] = value
            moved.add(name)
            lines.append(f">>> {name} = {value}\n")
    asked = random.choice(sorted(moved))
    return Trace(tuple(lines), f">>> cells[{asked}] #", cells[at[asked]], DIGITS)


KINDS: dict[str, Callable[[Random, int], Trace]] = {
    "needle": needle,
    "dictionary": dictionary,
    "swaps": swaps,
    "pointers": pointers,
}
TITLES = {
    "needle": "needle: a number named once",
    "dictionary": "dictionary: one of the entries written before",
    "swaps": "swaps: the value of a variable after swaps",
    "pointers": "pointers: the cell at a pointer that moves",
}


def training_document(seed: int, index: int, fillers: Sequence[str] = ()) -> str:
    """Return a training document of one kind; a pure function of its arguments.

    Many traces are short, and values are asked for along the way, because models do not learn to track many steps from
    an answer at the end alone. Fillers are lines of other text between the facts of recall.
    """
    random = Random(f"{seed}/{index}")
    kind = random.choice(sorted(KINDS))
    parts = []
    for _ in range(4):
        size = random.choice((1, 2, 3, 4, 6, 8, 12))
        if kind == "swaps":
            parts.append(str(swaps(random, size, asked_every=random.choice((1, 2, 4)))))
            continue
        trace = KINDS[kind](random, size)
        filler = random.choice(fillers) if fillers and kind in ("needle", "dictionary") else ""
        parts.append("".join(trace.lines) + filler + trace.query + trace.answer + "\n")
    return "".join(parts)
