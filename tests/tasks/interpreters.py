"""Oracles that read a spelt sequence as a person would, and say where each answer is asked and what it is.

Each is given (place, word) pairs and returns {answer: [(place, word), ...]} with every query, in order of time. A key
of two tokens is one word, at the place of its second token.
"""

import contextlib
import io

from latebloom.tasks import Task

Words = list[tuple[int, str]]
Queries = dict[str, Words]


def spelt(task: Task, tokens: list[int]) -> Words:
    words: Words = []
    for place, token in enumerate(tokens):
        word = task.spell(token)
        if word.endswith("'"):  # the second token of a key
            words[-1] = (place, words[-1][1] + word)
        else:
            words.append((place, word))
    return words


def word_problem(task, words: Words) -> Queries:
    if task.group.startswith("Z"):
        return {"product": [(at, str(sum(int(w) for _, w in words[: at + 1]) % task.points)) for at, _ in words]}
    state, found = list(range(task.points)), []
    for place, word in words:
        state = [state[int(image)] for image in word]
        found.append((place, "".join(map(str, state))))
    return {"product": found}


def word_recall(task, words: Words) -> Queries:
    *items, (end, _), _, (asked_at, key) = words
    word = [(place, text) for place, text in items if text[0].isdigit()]
    products = word_problem(task.words, [(i, text) for i, (_, text) in enumerate(word)])["product"]
    found = [(place, product) for (place, _), (_, product) in zip(word, products, strict=True)]
    value = next(items[i + 1][1] for i, (_, text) in enumerate(items) if text == key)
    return {"product": [*found, (end, found[-1][1])], "recall": [(asked_at, value)]}


def parity_of(words: Words) -> int:
    return [word for _, word in words].count("1") % 2


def parity_recall(task, words: Words) -> Queries:
    found: Queries = {"parity": [], "recall": []}
    for at, (place, word) in enumerate(words):
        if word in ("0", "1"):
            found["parity"].append((place, str(parity_of(words[: at + 1]))))
        if word == "R":
            asked_at, key = words[at + 1]
            written = [words[i + 2][1] for i in range(at) if words[i][1] == "W" and words[i + 1][1] == key]
            assert len(written) == 1, "a key is written once, before it is read"
            value = int(written[0][1:]) + (parity_of(words[:at]) if task.coupled else 0)
            found["recall"].append((asked_at, f"v{value % task.values}"))
    return found


def conditional_mqar(task, words: Words) -> Queries:
    found: Queries = {"parity": [], "recall": []}
    for at, (place, word) in enumerate(words):
        if at == 0:
            assert word == "1"  # in every sequence, so it is not asked
        elif word in ("0", "1"):
            found["parity"].append((place, str(parity_of(words[: at + 1]))))
        if word == "R":
            asked_at, key = words[at + 1]
            counted = [
                words[i + 2][1]
                for i in range(at)
                if words[i][1] == "W" and words[i + 1][1] == key and parity_of(words[:i]) == 1
            ]
            found["recall"].append((asked_at, counted[-1]))
    return found


def mqar(task, words: Words) -> Queries:
    found = []
    for at, (_, word) in enumerate(words):
        if word == "ASK":
            asked_at, key = words[at + 1]
            # A key is followed by a value unless ASK stands before it.
            writes = [i for i in range(at) if words[i][1] == key and words[i + 1][1].startswith("v")]
            found.append((asked_at, words[writes[-1] + 1][1]))
    return {"recall": found}


def coupled_key(task, words: Words) -> Queries:
    total, found, table = 0, [], {}
    for at, (place, word) in enumerate(words):
        if word.isdecimal():
            total = (total + int(word)) % task.modulus
            found.append((place, str(total)))
        elif word == "SUM":
            found.append((place, str(total)))
        elif word.startswith("s"):
            table[words[at - 1][1], int(word[1:])] = words[at + 1][1]
    place, key = words[-1]
    return {"sum": found, "recall": [(place, table[key, total])]}


def coupled_value(task, words: Words) -> Queries:
    middle = [word for _, word in words].index("ADD")
    table = {words[i][1]: int(words[i + 1][1][1:]) for i in range(0, middle, 2)}
    read = words[middle + 1 :]
    return {
        "sum": [
            (place, f"v{sum(table[key] for _, key in read[: i + 1]) % task.values}")
            for i, (place, _) in enumerate(read)
        ]
    }


def state_based_recall(task, words: Words) -> Queries:
    array, pointers, origin, found = {}, {}, {}, []
    for at, (place, word) in enumerate(words):
        before = words[at - 1][1] if at else ""
        if word.startswith("v"):
            array[before] = word
        elif word.startswith("k") and before in "abcde" and before:
            pointers[before], origin[word] = word, before
        elif word == "SWAP":
            one, (second_at, other) = words[at + 1][1], words[at + 2]
            pointers[one], pointers[other] = pointers[other], pointers[one]
            found.append((second_at, origin[pointers[other]]))
        elif before == "FROM":
            found.append((place, origin[pointers[word]]))
    place, pointer = words[-1]
    return {"from": found, "cell": [(place, array[pointers[pointer]])]}


def repl(task, words: Words) -> Queries:
    """Run the program in Python, and find what it prints."""
    lines, found = [], {"variable": [], "entry": []}
    starts = [i for i, (_, word) in enumerate(words) if word in (f"{','.join(task.names)}=", "print(")]
    starts += [i for i, (_, word) in enumerate(words) if word == "d[" and words[i - 1][1] != "print("]
    starts.sort()
    printed = []
    for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
        first, *rest = (word for _, word in words[start:end])
        quoted = [repr(word) if word[0] in "kv" else word for word in rest]
        if first == "print(":
            printed.append(words[end - 1][1])  # the trace shows what was printed
            found["entry" if rest[0] == "d[" else "variable"].append((words[end - 2][0], len(printed) - 1))
            lines.append(first + "".join(quoted[:-1]))
        elif first == "d[":
            lines.append(first + "".join(quoted))
        else:
            lines.append(first + ",".join(quoted))
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec("\n".join(["d = {}", *lines]), {})
    output = shown.getvalue().split()
    assert printed == output
    return {name: [(place, output[number]) for place, number in asked] for name, asked in found.items()}
