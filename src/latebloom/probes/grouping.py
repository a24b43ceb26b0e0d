"""Grouping of equal parts of different layers into one path, such as model.layers.{0,2,4}.mamba."""

import re
from collections.abc import Sequence
from itertools import pairwise

_NUMBER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")


def pattern(path: str) -> str:
    """Return a path with `{}` for its first number, the index of the layer."""
    return _NUMBER.sub("{}", path, count=1)


def joined_paths(paths: Sequence[str]) -> str:
    """Join paths that differ only in their first number."""
    found = [_NUMBER.search(path) for path in paths]
    numbers = sorted({int(match.group()) for match in found if match})
    if len(numbers) < 2:
        return paths[0]
    return _NUMBER.sub(f"{{{joined_numbers(numbers)}}}", paths[0], count=1)


def joined_numbers(numbers: Sequence[int]) -> str:
    """Abbreviate increasing numbers: 0,2,4 or 0,2,...,46 or 0-3,5-11."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    is_even = all(after - before == step for before, after in pairwise(numbers))
    if len(numbers) > 4 and is_even and step > 1:
        return f"{numbers[0]},{numbers[1]},...,{numbers[-1]}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)
