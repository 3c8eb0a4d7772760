"""Numbers as people read them: counts, sizes, rates, spans and moments.

Counts above a million lose digits, positions never: an index, an id or a key is what one searches for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import numpy as np

from penstock.model import INT64_MAX

Words = Callable[[float], str]
"""How a number is written."""

NONE: Final = "–"
"""What stands where there is no value."""

_THOUSANDS: Final = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")
_EXACT_END: Final = 1_000_000  # counts below are shown with all their digits

SECOND_US: Final = 1_000_000
_TIME_MAX: Final = INT64_MAX - SECOND_US  # NumPy cannot round the last ones to seconds
_SPANS: Final = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))


def is_missing(value: float | None) -> bool:
    """Return whether there is no value: a null, or a number that is none."""
    return value is None or not math.isfinite(value)


def count(value: float | None) -> str:
    """Return how many: all digits below a million, three of them above."""
    if value is None or is_missing(value):
        return NONE
    if abs(value) < _EXACT_END:
        return f"{round(value):,}"
    return short(value)


def short(value: float) -> str:
    """Return a number in at most three digits and a letter, as an axis has room for."""
    return _scaled(value, 1000.0, _THOUSANDS, "\u202f" if abs(value) >= _EXACT_END else "")


def size(value: float | None) -> str:
    """Return bytes."""
    if value is None or is_missing(value):
        return NONE
    return _scaled(value, 1024.0, _SIZES, " ")


def rate(value: float | None) -> str:
    """Return how many in a second."""
    if value is None or is_missing(value):
        return NONE
    return f"{_digits(value) if abs(value) < 1000 else count(value)}/s"


def span(seconds: float | None) -> str:
    """Return a stretch of time in its two largest units."""
    if seconds is None or is_missing(seconds):
        return NONE
    if seconds < 0:
        return f"−{span(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds < 59.95 else "1 min"
    for (unit, length), (below, part) in pairwise(_SPANS):
        if seconds >= length:
            rest = int(seconds % length // part)
            return f"{int(seconds // length):,} {unit}" + (f" {rest} {below}" if rest else "")
    raise AssertionError(seconds)


def moment(time_us: float | None, *, is_fine: bool = False) -> str:
    """Return a point in time, in UTC. NumPy's calendar does not end in the year 9999 as ``datetime`` does."""
    if time_us is None or is_missing(time_us):
        return NONE
    held = min(max(int(time_us), -_TIME_MAX), _TIME_MAX)  # a float of the last ones is beyond them
    words = str(np.datetime64(held, "us").astype("datetime64[ms]" if is_fine else "datetime64[s]"))
    return words.replace("T", " ")


def exact(value: float | None) -> str:
    """Return a position with all its digits: it is what one searches for."""
    if value is None or is_missing(value):
        return NONE
    return str(int(value))


def plural(number: float, one: str, many: str | None = None) -> str:
    """Return a count with its noun."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def _digits(value: float) -> str:
    if value == round(value) and abs(value) < 1000:
        return str(round(value))
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def _scaled(value: float, base: float, units: tuple[str, ...], space: str) -> str:
    step = 0
    scaled = float(value)
    # 999.5 would be rounded to 1000 of a unit where it is 1 of the next.
    while abs(scaled) >= (999.5 if base == 1000 else 1023.5) and step < len(units) - 1:
        scaled /= base
        step += 1
    return f"{_digits(scaled)}{space}{units[step]}" if units[step] else _digits(scaled)
