"""The snapshot on the disk: a stream in both directions, put in place in one step."""

from __future__ import annotations

import tracemalloc
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from penstock.errors import BadData, StorageFailed
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.snapshot import Patch, StoredTask, encode_snapshot
from penstock.formats.taskflux.snapshot_decode import Batch, SnapshotHeader, decode_snapshot
from penstock.formats.taskflux.snapshot_frame import detect_layout
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import DEFAULT_QUEUE, NO_LIMITS, QueueHead, SnapshotPoint, TaskId
from penstock.storage import snapshot
from penstock.storage.files import TEMPORARY_SUFFIX, OsFiles
from penstock.storage.snapshot import SnapshotStore
from penstock.testing.disk import MemoryFiles, crash_states
from support.log_stores import flipped, point

PATH = Path("/node/snapshot")
GENERATIONS = [Generation.TWO, Generation.THREE]

MEMORY_MAX = 16 * 2**20


def pieces(
    at: SnapshotPoint, generation: Generation, tasks: Iterator[StoredTask], count: int
) -> Generator[bytes, None, Patch | None]:
    head = QueueHead(name=DEFAULT_QUEUE, policy=NO_LIMITS, last_id=TaskId(count), count=count)
    return encode_snapshot(at, 1, [(head, tasks)], WRITTEN[generation].snapshot)


def small(
    generation: Generation, index: int, payload: bytes = b"task"
) -> Generator[bytes, None, Patch | None]:
    return pieces(point(index), generation, iter([(1, 7, payload)]), 1)


def tasks_of(store: SnapshotStore) -> list[StoredTask]:
    assert store.header is not None
    file = store.open()
    try:
        return [
            task
            for event in decode_snapshot(file.read, file.size(), store.header.layout)
            if isinstance(event, Batch)
            for task in event.tasks
        ]
    finally:
        file.close()


@pytest.mark.parametrize(
    ("generation", "count", "payload"),
    [(Generation.THREE, 300_000, b"p" * 80), (Generation.TWO, 50_000, b"p" * 600)],
    ids=["3", "2"],
)
def test_a_large_state_passes_through_little_memory(
    tmp_path: Path, generation: Generation, count: int, payload: bytes
) -> None:
    store = SnapshotStore(OsFiles(), tmp_path / "snapshot")
    tasks = ((n + 1, n % 1000, payload) for n in range(count))
    tracemalloc.start()
    try:
        store.write(pieces(point(count), generation, tasks, count)).install()
        _, write_peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        again = SnapshotStore(OsFiles(), tmp_path / "snapshot")
        assert again.point == point(count)
        assert again.header is not None
        file, found = again.open(), 0
        for event in decode_snapshot(file.read, file.size(), again.header.layout):
            if isinstance(event, Batch):
                found += len(event.tasks)
        file.close()
        _, read_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == count
    assert (tmp_path / "snapshot").stat().st_size > 1.5 * MEMORY_MAX
    assert write_peak < MEMORY_MAX
    assert read_peak < MEMORY_MAX


@pytest.mark.parametrize("generation", GENERATIONS)
def test_small_pieces_are_gathered_and_large_ones_pass(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "WRITE_SIZE", 100)
    files = MemoryFiles()
    store = SnapshotStore(files, PATH)
    writer = store.writer()
    expected = b""
    for size in (1, 50, 48, 1, 300, 20, 99, 1):
        writer.write(bytes([size % 256]) * size)
        expected += bytes([size % 256]) * size
    writer.finish(Patch(2, b"PATCH"))
    expected = expected[:2] + b"PATCH" + expected[7:]
    writes = [len(o.data) for o in files.operations if o.kind == "write"]
    assert writes == [100, 300, 119, 1, 5]
    writer.install()
    assert files.image() == {str(PATH): expected}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_was_written_is_what_the_next_start_reads(
    tmp_path: Path, generation: Generation
) -> None:
    store = SnapshotStore(OsFiles(), tmp_path / "snapshot")
    assert (store.header, store.point) == (None, None)
    for index in (3, 8):
        store.write(small(generation, index, b"state %d" % index)).install()
        store.reload()
        for found in (store, SnapshotStore(OsFiles(), tmp_path / "snapshot")):
            assert found.header == SnapshotHeader(
                layout=WRITTEN[generation].snapshot, point=point(index)
            )
            assert tasks_of(found) == [(1, 7, b"state %d" % index)]
    file = store.open()
    assert detect_layout(file.read, file.size()) is WRITTEN[generation].snapshot
    file.close()
    assert [p.name for p in tmp_path.iterdir()] == ["snapshot"]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_power_cut_leaves_the_old_snapshot_or_the_new_one_whole(generation: Generation) -> None:
    files = MemoryFiles()
    SnapshotStore(files, PATH).write(small(generation, 3, b"old" * 500)).install()
    files = MemoryFiles(files.image())
    SnapshotStore(files, PATH).write(small(generation, 9, b"new" * 900)).install()
    found = set()
    for crash in crash_states(files, random_states=8):
        store = SnapshotStore(MemoryFiles(crash.image), PATH)
        (task,) = tasks_of(store)
        found.add((store.point, task[2]))
        if crash.operations == len(files.operations):
            assert store.point == point(9)
    assert found == {(point(3), b"old" * 500), (point(9), b"new" * 900)}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_until_it_is_installed_a_snapshot_does_not_show(generation: Generation) -> None:
    files = MemoryFiles()
    store = SnapshotStore(files, PATH)
    store.write(small(generation, 3)).install()
    writer = store.write(small(generation, 9))
    store.reload()
    assert store.point == point(3)
    assert files.operations[-1].kind == "sync"
    writer.install()
    store.reload()
    assert store.point == point(9)
    assert [o.kind for o in files.operations[-2:]] == ["rename", "sync_directory"]


@pytest.mark.parametrize("is_finished", [False, True])
@pytest.mark.parametrize("is_real", [False, True])
def test_an_abandoned_snapshot_leaves_nothing(
    tmp_path: Path, is_finished: bool, is_real: bool
) -> None:
    files = OsFiles() if is_real else MemoryFiles()
    path = tmp_path / "snapshot"
    store = SnapshotStore(files, path)
    store.write(small(Generation.THREE, 3)).install()
    writer = store.writer()
    writer.write(b"bytes of a sender that went away")
    if is_finished:
        writer.finish(None)
    assert files.names(tmp_path) == ["snapshot", "snapshot" + TEMPORARY_SUFFIX]
    writer.abandon()
    assert files.names(tmp_path) == ["snapshot"]
    assert SnapshotStore(files, path).point == point(3)
    store.write(small(Generation.THREE, 4)).install()
    assert SnapshotStore(files, path).point == point(4)


def test_an_encoder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = SnapshotStore(OsFiles(), tmp_path / "snapshot")

    def failing() -> Generator[bytes, None, Patch | None]:
        yield b"x" * 100
        raise ValueError("no bytes for this")

    with pytest.raises(ValueError, match="no bytes for this"):
        store.write(failing())
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_while_writing_is_told_as_such() -> None:
    files = MemoryFiles()
    store = SnapshotStore(files, PATH)

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    files.fault = fail
    with pytest.raises(StorageFailed, match="Input/output"):
        store.write(small(Generation.TWO, 3))
    files.fault = None
    with pytest.raises(StorageFailed, match="Input/output"):
        store.write(small(Generation.TWO, 3))


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_flipped_bit_in_what_the_checksum_covers_stops_the_start(generation: Generation) -> None:
    files = MemoryFiles()
    SnapshotStore(files, PATH).write(small(generation, 3)).install()
    whole = files.image()[str(PATH)]
    covered = range(4 if generation is Generation.TWO else 20, len(whole))
    for bit in [bit for byte in (*range(4), *covered) for bit in range(byte * 8, byte * 8 + 8)]:
        with pytest.raises(BadData) as caught:
            SnapshotStore(MemoryFiles({str(PATH): flipped(whole, bit)}), PATH)
        assert caught.value.path == str(PATH)
        assert caught.value.offset is not None


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_snapshot_cut_anywhere_stops_the_start(generation: Generation) -> None:
    files = MemoryFiles()
    SnapshotStore(files, PATH).write(small(generation, 3)).install()
    whole = files.image()[str(PATH)]
    for size in range(1, len(whole)):
        with pytest.raises(BadData) as caught:
            SnapshotStore(MemoryFiles({str(PATH): whole[:size]}), PATH)
        assert caught.value.path == str(PATH)
