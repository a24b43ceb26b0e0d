"""Lengths as the command line takes them: 25,50,100 or 25,50,...,400."""

from latebloom.errors import ConfigError


def parse_lengths(text: str) -> list[int]:
    """Return the lengths of a list with commas; `a,b,...,z` continues from a and b in equal steps up to z."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"lengths: {text!r} names no length; write 25,50,100 or 25,50,...,400, for example")
    lengths: list[int] = []
    for i, part in enumerate(parts):
        if part in ("...", "…"):
            if len(lengths) < 2 or i + 1 == len(parts):
                raise ConfigError(f"lengths: in {text!r} the dots need two lengths before them and one after")
            step, last = lengths[-1] - lengths[-2], _number(parts[i + 1], text)
            if step < 1 or (last - lengths[-1]) % step or last < lengths[-1]:
                raise ConfigError(f"lengths: in {text!r} steps of {step} from {lengths[-1]} do not lead to {last}")
            lengths += range(lengths[-1] + step, last, step)
        else:
            lengths.append(_number(part, text))
    return lengths


def _number(part: str, text: str) -> int:
    if not part.isdecimal() or int(part) < 1:
        raise ConfigError(
            f"lengths: {part!r} in {text!r} is not a whole number above 0; write 25,50,100 or 25,50,...,400"
        )
    return int(part)
