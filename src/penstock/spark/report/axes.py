"""Axes: where a value stands between 0 and 1, and which ticks are worth a label."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.spark.report import units

Floats = NDArray[np.float64]

_STEPS_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86400, 2 * 86400, 7 * 86400, 14 * 86400, 28 * 86400, 91 * 86400, 182 * 86400, 364 * 86400),
)
_DAY_S: Final = 86_400
_LABEL_HEIGHT: Final = 0.11  # of the lowest plot
_TICKS: Final = 8  # of a wide axis across; a narrow one shows every second


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A labelled place on an axis."""

    at: float  # from 0 to 1
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One direction of a plot."""

    name: str
    ticks: tuple[Tick, ...]
    place: Callable[[Floats], Floats]  # from values to 0 ... 1
    words: Callable[[float], str]  # a value as a tooltip has it


def linear(
    highest: float, words: Callable[[float], str], *, base: int = 10, is_whole: bool = False
) -> Axis:
    """Return an axis from 0 to just above ``highest``.

    Bytes take ``base`` 2: their ticks are round in KiB. What ``is_whole`` has no ticks between 0 and 1.
    """
    if highest <= 0:
        return Axis(
            name="", ticks=(Tick(at=0.0, label=words(0.0)),), place=np.zeros_like, words=words
        )
    step = _nice(highest / 4, base)
    if is_whole:
        step = max(step, 1.0)
    steps = math.ceil(highest / step - 1e-9)
    ticks = tuple(Tick(at=i / steps, label=words(i * step)) for i in range(steps + 1))
    return Axis(name="", ticks=ticks, place=lambda values: values / (steps * step), words=words)


def logarithmic(highest: float, words: Callable[[float], str]) -> Axis:
    """Return an axis on which each step is ten times the last, and which has a zero: log(1 + value)."""
    top = math.log10(1 + max(highest, 1.0)) * 1.04  # a little room above
    powers = range(math.ceil(top) + 1)
    skip = max(1, math.ceil(len(powers) / 6))
    marks = [0.0, *(10.0**power for power in powers[::skip] if 10.0**power <= max(highest, 1.0))]
    if math.log10(2) / top < _LABEL_HEIGHT:
        marks.remove(1.0)  # it would stand on the zero
    ticks = tuple(Tick(at=math.log10(1 + mark) / top, label=words(mark)) for mark in marks)

    def place(values: Floats) -> Floats:
        return np.asarray(np.log10(1 + np.maximum(values, 0)) / top, dtype=np.float64)

    return Axis(name="", ticks=ticks, place=place, words=words)


def positions(first: float, end: float) -> Axis:
    """Return an axis of log indexes."""
    first, end = _apart(first, end, least=1.0)
    step = max(1.0, _nice((end - first) / _TICKS, 10))
    marks = _multiples(first, end, step)
    digits = _short_position(step, end)
    ticks = tuple(
        Tick(at=float((mark - first) / (end - first)), label=digits(mark)) for mark in marks
    )
    return Axis(
        name="log index",
        ticks=ticks,
        place=lambda values: (values - first) / (end - first),
        words=lambda value: f"index {units.exact(value)}",
    )


def times(first_us: float, end_us: float) -> Axis:
    """Return an axis of time, in UTC."""
    first_us, end_us = _apart(first_us, end_us, least=units.SECOND_US)
    seconds = (end_us - first_us) / units.SECOND_US
    step = next((s for s in _STEPS_S if seconds / s <= _TICKS), None)
    if step is None:
        step = 364 * _DAY_S * _nice(seconds / (364 * _DAY_S) / _TICKS, 10)
    step_us = step * units.SECOND_US
    marks = _multiples(first_us, end_us, step_us)
    ticks = tuple(
        Tick(at=float((mark - first_us) / (end_us - first_us)), label=_clock(float(mark), step))
        for mark in marks
    )
    return Axis(
        name="time, UTC",
        ticks=ticks,
        place=lambda values: (values - first_us) / (end_us - first_us),
        words=lambda value: f"{units.moment(value, is_fine=step < 1)} UTC",
    )


def _multiples(first: float, end: float, step: float) -> list[float]:
    return [float(i * step) for i in range(math.ceil(first / step), math.floor(end / step) + 1)]


def _apart(first: float, end: float, *, least: float) -> tuple[float, float]:
    """Return the range, or one around it where it is none, or too short for ticks that floats could tell apart."""
    far = max(abs(first), abs(end))
    if end - first > far * 1e-12:
        return first, end
    room = max(least, far * 1e-9)
    return first - room, first + room


def _clock(time_us: float, step: float) -> str:
    day, _, clock = units.moment(time_us, is_fine=step < 1).partition(" ")
    if step >= _DAY_S:
        return day if step > 28 * _DAY_S else day[5:]
    if clock.startswith("00:00:00") and step >= 60:
        return day[5:]
    return clock[:5] if step >= 60 else clock[3:] if step < 1 else clock


def _nice(rough: float, base: int) -> float:
    """Return the next 1, 2 or 5 times a power of ten; or the next power of two."""
    if base == 2:
        return float(2.0 ** math.ceil(math.log2(rough)))
    power = 10.0 ** math.floor(math.log10(rough))
    return float(power * next(m for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9)))


def _short_position(step: float, end: float) -> Callable[[float], str]:
    for letter, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        # Neighbouring ticks must differ: a letter is used only if the step keeps its digits.
        if end >= size and step >= size / 100:
            places = max(0, -math.floor(math.log10(step / size) + 1e-9))
            return lambda mark: f"{mark / size:,.{places}f}{letter}" if mark else "0"
    return lambda mark: f"{mark:,.0f}"
