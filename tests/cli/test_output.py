"""Rows on stdout: JSON lines in UTF-8, in batches, and in ASCII where UTF-8 does not do."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.output import BATCH_SIZE, emit, emit_rows

Row = dict[str, Any]


class Raw(io.RawIOBase):
    """A stdout that Python does not buffer: it notes every write, and takes ``size_max`` bytes of each."""

    def __init__(self, size_max: int = sys.maxsize) -> None:
        self.writes: list[bytes] = []
        self._size_max = size_max

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.writes.append(bytes(data[: self._size_max]))
        return len(self.writes[-1])


class Stdout:
    """As much of a text stream as the module uses."""

    def __init__(self, raw: Raw, *, is_terminal: bool = False) -> None:
        self.buffer = raw
        self.flushed: list[int] = []
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def flush(self) -> None:
        self.flushed.append(len(self.buffer.writes))


def written(
    rows: list[Row], *, size_max: int = sys.maxsize, is_terminal: bool = False
) -> list[bytes]:
    """Return what was written, write by write."""
    raw = Raw(size_max)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", Stdout(raw, is_terminal=is_terminal))
        emit_rows(rows)
    return raw.writes


def lines(rows: list[Row]) -> list[bytes]:
    return b"".join(written(rows)).split(b"\n")[:-1]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),  # lone surrogates too
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(st.characters()), json_values, max_size=4), max_size=4))
def test_every_row_is_one_line_that_gives_the_row_back(rows: list[Row]) -> None:
    assert [json.loads(line) for line in lines(rows)] == rows


def test_text_is_written_in_utf_8_without_spaces() -> None:
    assert lines([{"queue": "grüße", "key": 1, "path": None}]) == [
        '{"queue":"grüße","key":1,"path":null}'.encode()
    ]


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**40])
def test_an_integer_beyond_64_bits_is_written_whole(number: int) -> None:
    assert lines([{"n": number}]) == [b'{"n":%d}' % number]


@given(st.lists(st.binary(max_size=6), unique=True, max_size=8))
def test_paths_that_are_not_utf_8_do_not_look_alike(names: list[bytes]) -> None:
    found = lines([{"path": os.fsdecode(name)} for name in names])
    assert len(set(found)) == len(names)
    assert [os.fsencode(json.loads(line)["path"]) for line in found] == names


def test_a_row_that_is_not_utf_8_is_ascii_and_its_neighbours_are_not_touched() -> None:
    assert lines([{"p": "ü"}, {"p": "ü\udcff"}, {"p": "ü"}]) == [
        '{"p":"ü"}'.encode(),
        rb'{"p":"\u00fc\udcff"}',
        '{"p":"ü"}'.encode(),
    ]


def test_many_rows_are_written_in_few_calls() -> None:
    rows = [{"n": n, "text": "x" * 90} for n in range(10_000)]
    writes = written(rows)
    assert all(len(each) < BATCH_SIZE + 200 for each in writes)
    assert len(writes) <= 10_000 * 120 // BATCH_SIZE + 1


def test_an_unbuffered_stdout_that_takes_a_part_of_a_batch_gets_the_rest() -> None:
    rows = [{"n": n} for n in range(100)]
    assert b"".join(written(rows, size_max=7)) == b"".join(written(rows))


def test_rows_before_an_error_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> Iterator[Row]:
        yield {"n": 1}
        raise ValueError

    raw = Raw()
    monkeypatch.setattr(sys, "stdout", Stdout(raw))
    with pytest.raises(ValueError):
        emit_rows(rows())
    assert raw.writes == [b'{"n":1}\n']


def test_a_terminal_shows_each_row_at_once_and_no_text_moves_its_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stdout = Stdout(Raw(), is_terminal=True)
    monkeypatch.setattr(sys, "stdout", stdout)
    emit({"queue": "a\x9b2J"})
    emit({"queue": "b"})
    assert stdout.buffer.writes == [rb'{"queue":"a\u009b2J"}' + b"\n", b'{"queue":"b"}\n']
    assert stdout.flushed == [1, 2]
