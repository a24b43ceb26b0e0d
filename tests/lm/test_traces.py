"""Traces: a Python interpreter agrees with every answer, and probes ask the same of every model."""

import ast
import re
from random import Random

import pytest

from latebloom.lm.probes import Prober
from latebloom.lm.tokenizer import read_tokenizer
from latebloom.lm.traces import KINDS, Trace, swaps, training_document


def run_python(trace: Trace) -> str:
    """Return what Python answers to the query of a trace."""
    known: dict[str, object] = {}
    for line in trace.lines:
        exec(line.removeprefix(">>> "), {}, known)
    question = trace.query.removeprefix("assert").removeprefix(">>>").removesuffix("==").removesuffix("#").strip()
    return f" {eval(question, {}, known)}"


@pytest.mark.parametrize("kind", ["dictionary", "swaps", "pointers"])
@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_python_gives_the_same_answer(kind, size):
    for seed in range(20):
        trace = KINDS[kind](Random(seed), size)
        assert run_python(trace) == trace.answer
        assert trace.answer in trace.choices
        assert len(set(trace.choices)) == len(trace.choices)
        ast.parse("".join(line.removeprefix(">>> ") for line in trace.lines))


def test_the_needle_is_the_number_that_was_named():
    trace = KINDS["needle"](Random(3), 1)
    assert trace.lines[0] == f"{trace.query}{trace.answer}.\n"


def test_values_along_the_way_are_right():
    trace, state = swaps(Random(1), 30, asked_every=1), dict[str, object]()
    shown = 0
    for line in trace.lines:
        if found := re.fullmatch(r">>> (\w) # (\d)\n", line):
            assert state[found[1]] == int(found[2])
            shown += 1
        else:
            exec(line.removeprefix(">>> "), {}, state)
    assert shown == 29


def test_training_documents_are_functions_of_seed_and_index():
    assert training_document(0, 5, ["x\n"]) == training_document(0, 5, ["x\n"])
    assert len({training_document(0, index) for index in range(50)}) == 50


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("context", [160, 400])
def test_a_probe_fills_its_window_and_holds_what_is_asked_for(corpus, kind, context):
    tokenizer, _ = read_tokenizer(corpus.folder)
    prober = Prober(tokenizer, corpus.split("test"))
    window, choices, answer = prober.write(kind, context, 0)
    assert len(window) == context
    again, _, _ = prober.write(kind, context, 0)
    assert again.tolist() == window.tolist()
    text = tokenizer.decode([*window.tolist(), choices[answer]])
    query = text.splitlines()[-1]
    if kind == "needle":
        assert f"{query}." in text
    elif kind == "dictionary":
        assert query.removeprefix("assert ").replace("==", "=") in text
    else:
        lines = text[text.index(">>> ") :].splitlines()
        trace = Trace(tuple(lines[:-1]), lines[-1][:-2], lines[-1][-2:], ())
        assert run_python(trace) == trace.answer
        assert len(tokenizer.encode("\n".join(lines)).ids) > 0.8 * context  # the trace grows with the window
