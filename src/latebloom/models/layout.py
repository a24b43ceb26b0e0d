"""The layout of a model as a short string.

ram              recurrence, attention and MLP, one after the other
(ra)m            recurrence and attention side by side on one norm, then the MLP
rm rm rm am      four blocks, of which the last has attention in place of the recurrence
"""

from latebloom.errors import ConfigError

PARTS = {"r": "recurrence", "a": "attention", "m": "MLP"}

Block = tuple[str, ...]
"""The parts of a block in order: a letter, or several that stand side by side."""


def parse_layout(text: str) -> tuple[Block, ...]:
    """Return the blocks of a layout; raise a ConfigError that names the character of the first mistake."""
    blocks: list[Block] = []
    block: list[str] = []
    group: str | None = None
    opened = 0
    for place, character in enumerate(f"{text} ", start=1):
        if character in PARTS and group is None:
            block.append(character)
        elif character in PARTS and group is not None:
            if character in group:
                raise _mistake(text, place, f"a second {character} in one pair of parentheses")
            group += character
        elif character == "(" and group is None:
            group, opened = "", place
        elif character == ")" and group is not None:
            if len(group) < 2:
                raise _mistake(text, place, f"parentheses hold two parts or more, not {len(group)}")
            block.append(group)
            group = None
        elif character == " " and group is None:
            if not block:
                raise _mistake(text, place, "the block has no parts")
            blocks.append(tuple(block))
            block = []
        elif character == " " and place > len(text):
            raise _mistake(text, opened, "the parenthesis is never closed")
        elif character in "()":
            raise _mistake(text, place, "parentheses inside others" if character == "(" else "nothing was opened")
        else:
            letters = ", ".join(f"{letter} ({part})" for letter, part in PARTS.items())
            raise _mistake(text, place, f"{character!r} is none of {letters}")
    return tuple(blocks)


def _mistake(text: str, place: int, what: str) -> ConfigError:
    return ConfigError(f"layout: {text!r}, character {place}: {what}; write for example ram, (ra)m or rm rm rm am")


def describe_layout(text: str) -> str:
    """Return a layout in words: its blocks, each with its parts."""
    blocks = [
        ", ".join(" beside ".join(PARTS[letter] for letter in part) for part in block) for block in parse_layout(text)
    ]
    return "; ".join(blocks)
