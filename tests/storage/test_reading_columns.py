"""A log in columns tells what the plain scan tells, whatever the windows, and however it is cut into ranges."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.taskflux.entries import scan_entries
from penstock.formats.taskflux.log import LogLayout, Status, encode_header, encode_record
from penstock.storage import reading
from penstock.storage.files import File, OsFiles
from penstock.storage.log_end import find_record_in_file
from penstock.storage.reading import (
    Batch,
    scan_file,
    scan_file_columns,
)
from penstock.testing.disk import MemoryFiles
from support.damage import overwritten, random_damage, random_log
from support.log_reading import Row, exhausted, rows_of
from support.taskflux_strategies import MARKED, delta_logs

PATH = Path("/node/log")
Told = tuple[Row, bytes]
"""A piece, and the bytes of its payload."""

each_layout = pytest.mark.parametrize("layout", LogLayout, ids=lambda layout: layout.variant)
each_marked = pytest.mark.parametrize("layout", MARKED, ids=lambda layout: layout.variant)
each_window = pytest.mark.parametrize("window", [32, 100, 512])


def opened(data: bytes) -> File:
    return MemoryFiles({str(PATH): data}).open(PATH, write=False)


def told_plainly(file: File, layout: LogLayout, size: int) -> list[Told]:
    """Return what the plain scan tells."""
    pieces = scan_file(file, layout, start=layout.header_size, size=size)
    return [(tuple(map(int, piece)), payload) for piece, payload in pieces]


def told_by(batches: list[Batch], layout: LogLayout) -> list[Told]:
    """Return what batches tell, in the words of the plain scan."""
    told: list[Told] = []
    for batch in batches:
        for offset, size, status, term, length in rows_of(batch.entries.pieces):
            body = offset + layout.record_header.size
            payload = batch.data[body : body + length].tobytes()
            told.append(((batch.base + offset, size, status, term, length), payload))
    return told


def told_in_ranges(file: File, layout: LogLayout, size: int, stops: list[int]) -> list[Told]:
    """Return what consecutive ranges tell, each begun where the one before it ended."""
    told: list[Told] = []
    place, term = layout.header_size, 0
    for stop in [*stops, size]:
        found = scan_file_columns(file, layout, start=place, stop=stop, size=size, term=term)
        batches, place = exhausted(found)
        rows = told_by(batches, layout)
        assert all(row[0] < stop for row, _ in rows), "a range yields what begins in it"
        assert place >= min(stop, size), "and ends at its end, or behind it"
        told += rows
        term = next((row[3] for row, _ in reversed(rows) if row[3] >= 1), term)
    assert place == size
    return told


def wild_log(random: Random, layout: LogLayout) -> bytes:
    """Return a log with payloads of every size around the windows, damaged in up to three places."""
    data = random_log(random, layout, records=random.randrange(14))
    for _ in range(random.randrange(4)):
        size = random.choice((0, 1, 30, 64, 99, 100, 150, 512, 700))
        payload = random.choice((bytes(size), random.randbytes(size)))
        data += encode_record(layout, term=random.randint(3, 9), payload=payload)
    if random.random() < 0.3:
        data += bytes(random.choice((1, 3, 4, 64, 600)))
        data += random.choice((b"", b"left", encode_record(layout, term=9, payload=b"behind")))
    return random_damage(random, data, start=layout.header_size)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """Compile before anything is timed."""
    for layout in LogLayout:
        data = encode_header(layout) + encode_record(layout, term=1, payload=b"D\x00")
        exhausted(scan_entries(data, layout, start=layout.header_size))


@pytest.fixture
def _believing_little() -> Iterator[None]:
    """Let a record be a giant from 400 bytes on, so that a small file can hold a false one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "WINDOW", 64)
        patch.setattr(reading, "RECORD_SIZE_BELIEVED", 400)
        patch.setattr(reading, "LOOKBACK", 800)
        yield


# --- the same as the plain scan ------------------------------------------------------------------


@each_window
@each_layout
@given(seed=st.integers(0, 2**32))
def test_columns_tell_what_the_plain_scan_tells(layout: LogLayout, window: int, seed: int) -> None:
    data = wild_log(Random(seed), layout)
    file = opened(data)
    expected = told_plainly(file, layout, len(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "WINDOW", window)
        assert told_in_ranges(file, layout, len(data), []) == expected


@each_window
@each_layout
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, 2000), max_size=6))
def test_ranges_cut_anywhere_together_tell_the_whole(
    layout: LogLayout, window: int, seed: int, cuts: list[int]
) -> None:
    data = wild_log(Random(seed), layout)
    file = opened(data)
    expected = told_plainly(file, layout, len(data))
    stops = sorted(min(cut, len(data)) for cut in cuts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "WINDOW", window)
        assert told_in_ranges(file, layout, len(data), stops) == expected


@each_layout
@pytest.mark.parametrize("seed", range(3))
def test_every_single_cut_of_a_damaged_log_loses_and_repeats_nothing(
    layout: LogLayout, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = wild_log(Random(seed), layout)
    file = opened(data)
    expected = told_plainly(file, layout, len(data))
    monkeypatch.setattr(reading, "WINDOW", 100)
    for stop in range(len(data) + 1):
        assert told_in_ranges(file, layout, len(data), [stop]) == expected


@pytest.mark.parametrize(
    "layout",
    [LogLayout.ONE_C, LogLayout.TWO, LogLayout.THREE],
    ids=lambda layout: layout.variant,
)
@given(data=st.data(), window=st.integers(24, 200), cut=st.integers(0, 400))
def test_what_payloads_say_does_not_depend_on_windows_and_cuts(
    layout: LogLayout, data: st.DataObject, window: int, cut: int
) -> None:
    log = data.draw(delta_logs(layout))
    file, size = opened(log.data), len(log.data)

    def said(stops: list[int]) -> list[tuple[int, bytes, int, int, bytes]]:
        place, term, rows = layout.header_size, 0, []
        for stop in [*stops, size]:
            found = scan_file_columns(file, layout, start=place, stop=stop, size=size, term=term)
            batches, place = exhausted(found)
            for batch in batches:
                terms = batch.entries.pieces.term
                term = int(terms[-1]) if len(terms) and terms[-1] >= 1 else term
                rows += said_by(batch)
        return rows

    def said_by(batch: Batch) -> list[tuple[int, bytes, int, int, bytes]]:
        changes, raw = batch.entries.changes, batch.data.tobytes()
        return [
            (op, raw[name : name + name_size], key, task_id, raw[body : body + body_size])
            for op, name, name_size, key, task_id, body, body_size in zip(
                changes.op.tolist(),
                changes.queue_offset.tolist(),
                changes.queue_size.tolist(),
                changes.key.tolist(),
                changes.task_id.tolist(),
                changes.payload_offset.tolist(),
                changes.payload_size.tolist(),
                strict=True,
            )
        ]

    expected = said([])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "WINDOW", window)
        assert said([min(cut, size)]) == expected


# --- what is not a record ------------------------------------------------------------------------


@each_marked
@pytest.mark.usefixtures("_believing_little")
@given(seed=st.integers(0, 2**32), cut=st.integers(0, 3000))
def test_a_false_giant_costs_its_place_and_nothing_behind_it(
    layout: LogLayout, seed: int, cut: int
) -> None:
    random = Random(seed)
    plain = encode_record(layout, term=2, payload=b"p" * random.randrange(60))
    giant = encode_record(layout, term=2, payload=random.randbytes(50))
    length = random.choice((401, 500, 900, 2**31 - 1))
    giant = overwritten(giant, layout.record_header.size - 4, length.to_bytes(4, "big"))
    data = encode_header(layout) + plain * 3 + giant + plain * 20 + bytes(random.choice((0, 900)))
    file = opened(data)
    expected = told_plainly(file, layout, len(data))
    assert len(expected) == 24
    assert told_in_ranges(file, layout, len(data), [min(cut, len(data))]) == expected


@each_marked
@pytest.mark.usefixtures("_believing_little")
def test_a_true_giant_is_read_however_small_the_window(layout: LogLayout) -> None:
    plain = encode_record(layout, term=1, payload=b"p")
    giant = encode_record(layout, term=1, payload=b"g" * 5000)
    data = encode_header(layout) + plain + giant + plain
    file = opened(data)
    told = told_in_ranges(file, layout, len(data), [])
    assert told == told_plainly(file, layout, len(data))
    assert [payload[:1] for _, payload in told] == [b"p", b"g", b"p"]


@each_marked
@pytest.mark.parametrize("zeros", [4, 20, 63, 64, 65, 700])
@pytest.mark.parametrize("tail", ["nothing", "record", "older", "leftover"])
def test_an_end_marker_ends_the_log_unless_records_of_no_lower_term_follow(
    layout: LogLayout, zeros: int, tail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WINDOW", 64)
    record = encode_record(layout, term=2, payload=b"x" * 30)
    older = encode_record(layout, term=1, payload=b"x" * 30)
    behind = {"nothing": b"", "record": record, "older": older, "leftover": b"left"}[tail]
    data = encode_header(layout) + record + bytes(zeros) + behind
    file, whole = opened(data), int(Status.OK)
    hidden = [whole, int(Status.ZEROS), whole]
    wanted = {
        "nothing": [whole],
        "record": [whole, int(Status.UNDECIDED)] if layout is LogLayout.TWO else hidden,
        "older": [whole, int(Status.STALE)],
        "leftover": [whole, int(Status.STALE)],
    }[tail]
    for stop in range(0, len(data) + 1, 3):
        told = told_in_ranges(file, layout, len(data), [stop])
        assert [row[2] for row, _ in told] == wanted
        assert told == told_plainly(file, layout, len(data))


@each_marked
def test_the_holes_of_a_sparse_file_are_not_read(tmp_path: Path, layout: LogLayout) -> None:
    path, far = tmp_path / "log", 5 * 10**9
    with path.open("wb") as file:
        file.write(encode_header(layout) + encode_record(layout, term=1, payload=b"first"))
        file.seek(far)
        file.write(encode_record(layout, term=1, payload=b"far away"))
    size = path.stat().st_size
    if path.stat().st_blocks * 512 > 2**24:
        pytest.skip("needs a file system with sparse files")
    read = OsFiles().open(path, write=False)
    told = told_in_ranges(read, layout, size, [10**9, 2 * 10**9])
    read.close()
    is_hidden = layout is LogLayout.THREE  # in generation 2 the bytes do not tell
    assert [payload for _, payload in told] == [b"first", b"", b"far away"][: 2 + is_hidden]
    assert told[1][0][0] + told[1][0][1] == (far if is_hidden else size)


@each_layout
def test_a_file_that_is_cut_while_it_is_read_ends_and_never_hangs(
    layout: LogLayout, tmp_path: Path
) -> None:
    """A reader once asked for more of a file that had become shorter, for ever."""
    record = encode_record(layout, term=1, payload=b"x" * 30)
    data = encode_header(layout) + record * 4
    path = tmp_path / "log"
    path.write_bytes(data)
    os.truncate(path, layout.header_size + 2 * len(record))
    file = OsFiles().open(path, write=False)
    told = told_plainly(file, layout, len(data))
    batches, place = exhausted(
        scan_file_columns(file, layout, start=layout.header_size, stop=len(data), size=len(data))
    )
    file.close()
    assert [row[2] for row, _ in told] == [Status.OK, Status.OK]
    assert told_by(batches, layout) == told
    assert place == layout.header_size + 2 * len(record)


@each_marked
def test_a_search_in_a_file_that_was_cut_ends(layout: LogLayout) -> None:
    record = encode_record(layout, term=1, payload=b"x" * 30)
    data = encode_header(layout) + record
    for cut in range(layout.header_size, len(data)):
        file = opened(data[:cut])
        assert find_record_in_file(file, layout, layout.header_size, len(data) + 50) is None
