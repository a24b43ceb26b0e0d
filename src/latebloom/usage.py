"""The words of the command line: in any order on the way in, and tyro's boxed complaints as one sentence each."""

import re
from itertools import islice

WITH_CHANGES = ("train", "demo")
HINTS = dict.fromkeys(WITH_CHANGES, "settings are written FIELD=VALUE, such as training.steps=100") | {
    "evaluate": "give one run, and lengths as one word, such as --lengths 25,50,100"
}


def changes_last(words: list[str]) -> list[str]:
    """The words with the FIELD=VALUE changes of a command at the end, wherever between the options they stood."""
    if words[:1] not in [[command] for command in WITH_CHANGES]:
        return words
    options, changes, rest = words[:1], [], iter(words[1:])
    for word in rest:
        if not word.startswith("-"):
            changes.append(word)
            continue
        options.append(word)
        if "=" not in word and word not in ("-h", "--help"):
            options += islice(rest, 1)  # the option's value, whatever it looks like
    return options + changes


def one_sentence(box: str, words: list[str]) -> str:
    """What a box says about the words of a command: its first paragraph in plain words, and what was meant perhaps."""
    lines = [line.strip("│╰╯ \t") for line in box.splitlines()[1:]]  # the first is the title
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if re.fullmatch(r"[─-]*", line):  # a rule, of hyphens where the terminal has no others, or an empty line
            paragraphs.append([])
        else:
            paragraphs[-1].append(line)
    said = [" ".join(paragraph) for paragraph in paragraphs if paragraph]
    sentence = _plainly(said[0] if said else box.strip())
    is_command = bool(words) and not any(hint.startswith("Available subcommands") for hint in said)
    command = words[0] if is_command else ""
    for hint in said[1:]:
        near = re.findall(r"--[\w-]+", hint) if hint.startswith("Perhaps you meant") else []
        misplaced = [option for option in near if option in words]
        if misplaced:
            sentence += f"; latebloom {command} has no {misplaced[0]}"
        elif near:
            sentence += f"; did you mean {near[0]}?"
        elif hint.startswith("Available subcommands"):
            sentence += f"; a{hint[1:]}"
    is_open = "did you mean" not in sentence if command in WITH_CHANGES else ";" not in sentence
    if sentence.startswith("Unrecognized") and is_open and command in HINTS:
        sentence += f"; {HINTS[command]}"
    return f"{sentence} (see latebloom {command} --help)".replace("  ", " ")


def _plainly(text: str) -> str:
    """tyro's first paragraph without its words for types and places."""
    wrong = re.match(r"Error parsing (\S+): .*?(['\"])(.*)\2", text)
    if wrong:
        kind = "a number" if "float" in text.lower() else "a whole number"
        return f"{wrong.group(1)}: {wrong.group(3)!r} is not possible; it must be {kind}"
    missing = re.match(r"Missing value for argument '(\S+)'", text)
    if missing:
        name = missing.group(1)
        return f"{name} takes a value, and none was given" if name.startswith("-") else f"{name.upper()} is missing"
    absent = re.match(r"Missing from [\w ]+: \S+", text)  # what follows is its help text
    if absent:
        return absent.group()
    misplaced = re.findall(r"(\S+) \(applied to [\w ]+\)", text)
    return f"Unrecognized options: {', '.join(misplaced)}" if misplaced else text
