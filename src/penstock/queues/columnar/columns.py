"""Columns of a chunk: views of a record's bytes, or arrays of the chunk's own once a change has written to them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, TypeAlias

from penstock.binary import Bytes
from penstock.formats.records.columns import NONE, Blobs
from penstock.formats.records.ids import Strings

Numbers: TypeAlias = "memoryview[int] | array[int]"
"""One number for each task."""

Column: TypeAlias = "int | memoryview[int] | array[int]"
"""One number for all tasks, or one for each."""

Places: TypeAlias = "range | list[int]"
"""Positions in a chunk, ascending: a range where they are consecutive."""

Ids: TypeAlias = "range | memoryview[int] | array[int] | list[int]"
"""Ids of tasks, ascending."""

TIME_MAX: Final = 2**61
"""Absolute times are kept within this distance of 0, so that the distance of two of them can be written."""

NEVER: Final = 2**62
"""Later than every time: the bound of tasks without one."""


def pick(column: Numbers, places: Places, form: str) -> array[int]:
    """Return the numbers of some tasks."""
    if isinstance(places, range):
        found: array[int] = array(form)
        found.frombytes(column[places.start : places.stop].tobytes())
        return found
    return array(form, [column[place] for place in places])


def own(column: Column | None, count: int, form: str, default: int) -> array[int]:
    """Return a column as an array that can be written to, with one number for each task."""
    if column is None or isinstance(column, int):
        return array(form, [default if column is None else column]) * count
    if isinstance(column, array):
        return column
    return pick(column, range(count), form)


def one_of(numbers: array[int]) -> int | None:
    """Return the number that all tasks have, or None if they differ."""
    first = numbers[0]
    if numbers[-1] != first:
        return None
    return first if numbers == array(numbers.typecode, [first]) * len(numbers) else None


def alike(numbers: array[int]) -> int | array[int]:
    """Return one number for all if they are equal, otherwise the numbers."""
    one = one_of(numbers)
    return numbers if one is None else one


def shifted(numbers: array[int], distance: int) -> array[int]:
    """Return relative times counted from another moment."""
    if not distance:
        return numbers
    return array("q", [value if value == NONE else value + distance for value in numbers])


def clamped(time_ms: int) -> int:
    """Return an absolute time within ``TIME_MAX``."""
    return min(max(time_ms, -TIME_MAX), TIME_MAX)


def blobs_of(values: Sequence[bytes]) -> Blobs:
    """Return strings as a column of their own."""
    offsets: array[int] = array("i", [0])
    size = 0
    for value in values:
        size += len(value)
        offsets.append(size)
    return Blobs(memoryview(offsets), b"".join(values), 0)


def string_at(strings: Strings, number: int) -> bytes:
    """Return a string of a column of a change: one for all, or one for each."""
    if isinstance(strings, bytes):
        return strings
    return strings.get(number) if isinstance(strings, Blobs) else strings[number]


def copied(column: Column, form: str) -> Column:
    """Return a column that does not refer to the bytes it was decoded from."""
    return pick(column, range(len(column)), form) if isinstance(column, memoryview) else column


def copied_blobs(column: Blobs) -> Blobs:
    """Return a column of strings that does not refer to the bytes it was decoded from."""
    offsets = memoryview(column.offsets.tobytes()).cast("i")
    size = offsets[-1] - offsets[0]
    return Blobs(offsets, bytes(column.data[column.at : column.at + size]), 0)


def pieces(data: Bytes, at: int, offsets: Sequence[int], places: Places) -> list[Bytes]:
    """Return slices of ``data`` that hold the strings of some tasks, joined where they stand together."""
    if isinstance(places, range):
        return [data[at + offsets[places.start] : at + offsets[places.stop]]]
    return [data[at + offsets[place] : at + offsets[place + 1]] for place in places]
