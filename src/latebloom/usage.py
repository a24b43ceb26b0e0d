"""tyro's boxed complaints about the command line, as one sentence each."""

import re


def one_sentence(box: str) -> str:
    """What a box says: its first paragraph, and the nearest choices if it names any."""
    lines = [line.strip("│ \t") for line in box.splitlines()[1:-1]]
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if re.fullmatch(r"─*", line):  # a rule or an empty line
            paragraphs.append([])
        else:
            paragraphs[-1].append(line)
    said = [" ".join(paragraph) for paragraph in paragraphs if paragraph]
    sentence = said[0] if said else box.strip()
    for hint in said[1:]:
        near = re.match(r"Perhaps you meant: (--\S+)", hint)
        if near:
            sentence += f"; did you mean {near.group(1)}?"
        elif hint.startswith("Available subcommands"):
            sentence += f"; a{hint[1:]}"
    return f"{sentence} (see latebloom --help)"
