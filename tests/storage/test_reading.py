"""Reading a log in windows tells the same as reading it whole, and a sparse file costs nothing."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData
from penstock.formats.taskflux.log import LogLayout, Status, encode_header, encode_record, walk
from penstock.formats.taskflux.log_scan import Piece, find_record, scan
from penstock.model import Index
from penstock.storage import reading
from penstock.storage.files import File, OsFiles
from penstock.storage.log import LogLimits
from penstock.storage.log_end import end_of_data, find_record_in_file, read_data
from penstock.storage.reading import (
    read_header,
    scan_file,
    walk_file,
)
from penstock.storage.segmented_log import SegmentedLog
from penstock.storage.single_log import SingleLog
from penstock.testing.disk import MemoryFiles
from support.log_stores import AnyLog, append, content
from support.report import report

PATH = Path("/node/log")
LAYOUTS = [LogLayout.ONE_A, LogLayout.ONE_B, LogLayout.TWO, LogLayout.THREE]
WINDOWS = [64, 100, 512]
FAR = 20 * 10**9


def opened(data: bytes) -> File:
    return MemoryFiles({str(PATH): data}).open(PATH, write=False)


def damaged_log(layout: LogLayout, seed: int) -> bytes:
    """Return a log with a few records, and with up to four kinds of damage somewhere in it."""
    random = Random(seed)
    data, term = bytearray(encode_header(layout)), 1
    for _ in range(random.randint(0, 12)):
        term += random.choice((0, 0, 0, 1, 2**20))
        size = random.choice((0, 1, 10, 60, 64, 99, 100, 150, 512, 700))
        payload = random.choice((bytes(size), random.randbytes(size)))
        if random.random() < 0.2:
            payload = encode_record(layout, term=1, payload=payload[:20]) * 2
        data += encode_record(layout, term=term, payload=payload)
    if random.random() < 0.5:
        data += bytes(random.choice((1, 3, 4, 7, 64, 100, 600)))
    for _ in range(random.choice((0, 0, 1, 1, 2, 4))):
        place = random.randrange(len(data)) if len(data) > layout.header_size else 0
        place = max(place, layout.header_size)
        match random.randrange(5):
            case 0 if place < len(data):
                data[place] ^= 1 << random.randrange(8)
            case 1:
                del data[place:]
            case 2:
                length = random.choice((1, 4, 16, 64, 200))
                data[place : place + length] = bytes(length)
            case 3:
                data[place:place] = random.randbytes(random.choice((1, 4, 30, 200)))
            case _:
                data += random.randbytes(random.choice((1, 3, 16, 90)))
    return bytes(data)


def _is_inside(piece: Piece) -> bool:
    return piece.status not in (Status.ZEROS, Status.LEFTOVER)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("layout", LAYOUTS)
@given(seed=st.integers(0, 2**32))
def test_scanning_in_windows_yields_what_scanning_the_whole_yields(
    layout: LogLayout, window: int, seed: int
) -> None:
    data = damaged_log(layout, seed)
    file, start = opened(data), layout.header_size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "WINDOW", window)
        found = list(scan_file(file, layout, start=start, size=len(data)))
    assert found == list(scan_file(file, layout, start=start, size=len(data)))
    # Up to the first end marker with something behind it, which a scan of bytes does not judge.
    plain = list(takewhile(_is_inside, scan(data, layout, start=start)))
    assert [piece for piece, _ in found][: len(plain)] == plain


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("layout", LAYOUTS)
@given(seed=st.integers(0, 2**32))
def test_walking_in_windows_ends_where_walking_the_whole_ends(
    layout: LogLayout, window: int, seed: int
) -> None:
    data = damaged_log(layout, seed)
    whole = walk(data, layout, offset=layout.header_size, end=len(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "WINDOW", window)
        found = walk_file(opened(data), PATH, layout)
    assert list(found.records.offsets) == whole.offsets
    assert [found.records.term(n) for n in range(len(found.records))] == whole.terms
    assert (found.records.end, found.stop) == (whole.position, whole.stop)
    assert found.commit == (-1 if layout is LogLayout.TWO else None)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("layout", [LogLayout.TWO, LogLayout.THREE])
@given(seed=st.integers(0, 2**32))
def test_searching_in_windows_finds_what_searching_the_whole_finds(
    layout: LogLayout, window: int, seed: int
) -> None:
    data = damaged_log(layout, seed)
    file = opened(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "WINDOW", window)
        for start in range(layout.header_size, len(data), 37):
            expected = find_record(data, layout, start, len(data))
            assert find_record_in_file(file, layout, start, len(data)) == expected


@pytest.mark.parametrize("window", [1, 7, 64, 512])
def test_the_end_of_the_data_is_found_in_windows(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WINDOW", window)
    data = b"\x01" * 10 + bytes(90) + b"\x02" + bytes(500)
    file = opened(data)
    assert end_of_data(file, 0, len(data)) == 101
    assert end_of_data(file, 50, len(data)) == 101
    assert end_of_data(file, 101, len(data)) == 101
    assert end_of_data(file, 300, len(data)) == 300
    assert b"".join(piece for _, piece in read_data(file, 5, 250)) == data[5:250]


def test_a_header_that_is_no_header_names_the_file() -> None:
    for data in (b"", b"\x12\x76", b"something else", bytes(20)):
        with pytest.raises(BadData) as caught:
            read_header(opened(data), PATH)
        assert caught.value.path == str(PATH)


# Sparse files.


class CountedFile:
    """A file that counts the bytes read from it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.bytes_read = 0
        self.size = file.size
        self.next_data = file.next_data
        self.write = file.write
        self.truncate = file.truncate
        self.sync = file.sync
        self.close = file.close

    def read(self, offset: int, size: int) -> bytes:
        data = self._file.read(offset, size)
        self.bytes_read += len(data)
        return data


class CountedFiles(OsFiles):
    """Real files that count the bytes read from them."""

    def __init__(self) -> None:
        self.opened: list[CountedFile] = []

    def open(self, path: Path, *, write: bool, create: bool = False) -> CountedFile:  # type: ignore[override]
        file = CountedFile(super().open(path, write=write, create=create))
        self.opened.append(file)
        return file

    @property
    def bytes_read(self) -> int:
        return sum(file.bytes_read for file in self.opened)


def sparse(path: Path, layout: LogLayout, *, tail: bytes = b"") -> bytes:
    """Write a small log at the start of a file of 20 GB that is otherwise a hole, but for ``tail``."""
    start = encode_header(layout) + encode_record(layout, term=1, payload=b"first")
    with path.open("wb") as file:
        file.write(start)
        file.truncate(FAR)
        if tail:
            file.seek(FAR - 10**6)
            file.write(tail)
    if path.stat().st_blocks * 512 > 2**24:
        pytest.skip("needs a file system with sparse files")
    return start


@pytest.mark.parametrize("layout", [LogLayout.TWO, LogLayout.THREE])
def test_a_sparse_file_is_walked_scanned_and_searched_without_reading_its_holes(
    tmp_path: Path, layout: LogLayout
) -> None:
    path = tmp_path / "log"
    start = sparse(path, layout, tail=encode_record(layout, term=1, payload=b"far away"))
    file = CountedFile(OsFiles().open(path, write=False))
    walked = walk_file(file, path, layout)
    assert (len(walked.records), walked.stop) == (1, None)
    assert find_record_in_file(file, layout, len(start), FAR) == FAR - 10**6
    pieces = list(scan_file(file, layout, start=layout.header_size, size=FAR))
    is_hidden = layout is LogLayout.THREE  # in generation 2 the bytes do not tell
    assert [payload for _, payload in pieces] == [b"first", b"", b"far away"][: 2 + is_hidden]
    file.close()
    report(
        f"sparse log of {FAR // 10**9} GB, layout {layout.variant}: {file.bytes_read} bytes read"
    )
    assert file.bytes_read < 20 * reading.WINDOW


@pytest.mark.parametrize("layout", [LogLayout.TWO, LogLayout.THREE])
@pytest.mark.parametrize("tail", [b"", b"garbage far behind the end"], ids=["hole", "garbage"])
def test_a_start_on_a_sparse_log_reads_and_writes_little(
    tmp_path: Path, layout: LogLayout, tail: bytes
) -> None:
    name = "log.raft" if layout is LogLayout.TWO else "0000000000000000000.log"
    sparse(tmp_path / name, layout, tail=tail)
    files = CountedFiles()
    limits = LogLimits(soft=2**16, hard=2**17, growth=2**16)
    log: AnyLog
    if layout is LogLayout.TWO:
        log = SingleLog(files, tmp_path / name, None, limits)
    else:
        log = SegmentedLog(files, tmp_path, None, limits)
    assert content(log) == {0: (1, b"first")}
    assert len(log.cuts) == bool(tail)
    append(log, 1, b"second")
    log.sync()
    assert log.read(Index(1), Index(2))[0].payload == b"second"
    log.close()
    assert files.bytes_read < 20 * reading.WINDOW
    assert (tmp_path / name).stat().st_blocks * 512 < 2**24
