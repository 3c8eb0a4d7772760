"""Every truncation and a turned bit in every byte: ``verify`` reports it, and ``tasks`` invents nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.formats.records.changes import EncodedChange
from penstock.formats.records.header import Kind
from penstock.formats.records.page_checkpoint import encode_page_checkpoint
from penstock.formats.records.read import read_snapshot
from penstock.formats.records.writer import write_snapshot
from support.record_directories import Changes, write_directory
from support.record_listing import Row, dumped, listed, verified

FILES = (
    "identity.json",
    "hard-state",
    "sync-point",
    "log/00000000000000000001.log",
    "log/00000000000000000006.log",
    "snapshots/00000000000000000004.snap",
)


def small() -> Changes:
    made = Changes()
    made.begin()
    mail = made.queue("mail")
    made.add(mail, [b"one", b"three"], [2, 1])
    made.remove(mail, range(1, 2))
    made.add(mail, [b"four" * 20], 1, producer=(bytes(16), 0))
    made.fail(mail, range(2, 3))
    return made


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("damage") / "node"
    return write_directory(root, small().entries, segment_size=840, snapshots=(4,), zeros=64)


@pytest.fixture(scope="module")
def states(root: Path) -> list[list[Row]]:
    """The tasks after each entry, the last state first."""
    return [listed(root, at=index) for index in range(6, -1, -1)]


def changed(root: Path, name: str, data: bytes) -> Iterator[None]:
    path = root / name
    whole = path.read_bytes()
    path.write_bytes(data)
    yield
    path.write_bytes(whole)


def check(root: Path, states: list[list[Row]], where: str) -> list[Row]:
    """Check that the tasks are those of some moment, or refused; return what ``verify`` reports."""
    rows = verified(root)
    try:
        found = listed(root)
    except PenstockError:
        assert any(row["severity"] == "lost" for row in rows), where
    else:
        assert found in states, where
        if not any(row["severity"] == "lost" for row in rows):
            harmless_end = any(row["status"] in ("torn", "leftover") for row in rows)
            assert found == states[0] or harmless_end, where
    dumped(root)
    return rows


def test_the_directory_has_the_files_that_are_damaged_here(root: Path) -> None:
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) == sorted(FILES)  # fmt: skip
    assert verified(root) == []


@pytest.mark.parametrize("name", FILES)
def test_a_turned_bit_is_reported(root: Path, states: list[list[Row]], name: str) -> None:
    whole = (root / name).read_bytes()
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        for _ in changed(root, name, bytes(data)):
            assert check(root, states, f"{name}, byte {at}"), f"{name}, byte {at}: nothing reported"


@pytest.mark.parametrize("name", FILES)
def test_a_truncation_is_reported(root: Path, states: list[list[Row]], name: str) -> None:
    whole = (root / name).read_bytes()
    end = len(whole.rstrip(b"\x00"))
    for size in range(end):
        for _ in changed(root, name, whole[:size]):
            is_footer = name == FILES[3] and size == whole.rindex(
                b"PSK4"
            )  # a missing one is rebuilt
            rows = check(root, states, f"{name}, {size} bytes")
            assert rows or is_footer, f"{name} cut to {size}: nothing reported"


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_reported(root: Path, states: list[list[Row]], name: str) -> None:
    path = root / name
    whole = path.read_bytes()
    path.unlink()
    rows = check(root, states, name)
    path.write_bytes(whole)
    # The log tells what an old snapshot held, and a snapshot replaces an old segment.
    assert rows or name in (FILES[3], FILES[5])


def test_records_of_paged_queues_in_a_snapshot_are_no_damage(root: Path) -> None:
    """The digest of the state leaves them out, so the snapshot still fits the log; one that lost them does not."""
    name = FILES[5]
    snapshot = read_snapshot(data := (root / name).read_bytes())
    parts = [
        EncodedChange(
            Kind(record.header.kind),
            record.header.queue_id,
            record.header.first_id,
            data[slice(*record.body)],
        )
        for record in snapshot.records
    ]
    pages = [EncodedChange(Kind.PAGE_CHECKPOINT, 1, 0, encode_page_checkpoint(b"pages"))]
    paged = b"".join(write_snapshot(snapshot.start, parts, pages))
    for _ in changed(root, name, paged):
        assert verified(root) == []
    last = read_snapshot(paged).behind[0].offset
    for _ in changed(root, name, paged[:last]):
        assert [row["severity"] for row in verified(root)] == ["damaged"]  # the log has it all
