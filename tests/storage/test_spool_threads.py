"""The spool with many threads: group commit, back-pressure, and an end that leaves nobody waiting."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import InvalidValue, SpoolFull, StorageFailed
from penstock.formats.beats.segment import Options
from penstock.storage.spool import Spool, SpoolSettings, WhenFull
from penstock.testing.disk import MemoryFiles, Operation
from support.spool_lives import KEY, ROOT, read_all

PATIENCE = 60.0
"""Seconds after which a thread that should have ended counts as stuck."""


def until(condition: Callable[[], bool]) -> None:
    """Return when other threads have made the condition true."""
    tick = threading.Event()
    for _ in range(int(PATIENCE * 1000)):
        if condition():
            return
        tick.wait(0.001)
    raise AssertionError("waited in vain")


def small(**changes: object) -> SpoolSettings:
    known: dict[str, object] = {"max_size": 20_000, "segment_size": 4096}
    return SpoolSettings(**{**known, **changes})  # type: ignore[arg-type]


def syncs(files: MemoryFiles) -> int:
    return sum(one.kind == "sync" and one.path.endswith(".seg") for one in files.operations)


class SlowDisk:
    """Holds the next sync of a segment up until it is let go."""

    def __init__(self, files: MemoryFiles) -> None:
        self.is_held = threading.Event()
        self.go = threading.Event()
        files.fault = self

    def __call__(self, operation: Operation) -> None:
        if operation.kind == "sync" and operation.path.endswith(".seg"):
            self.is_held.set()
            assert self.go.wait(PATIENCE)


def test_those_who_come_while_a_write_is_under_way_share_the_next_one() -> None:
    files = MemoryFiles()
    spool = Spool(ROOT, small(), files=files)
    disk = SlowDisk(files)
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(spool.publish, [b"first"])
        assert disk.is_held.wait(PATIENCE)
        others = [pool.submit(spool.publish, [b"%d" % n, b"and"]) for n in range(15)]
        until(lambda: len(spool._pending) == 15)
        assert not first.done()
        assert spool.read(1, timeout=0) is None, "what is not durable is not seen"
        disk.go.set()
        for future in (first, *others):
            future.result(PATIENCE)
    assert syncs(files) == 2, "16 publications"
    found = [one for batch in read_all(spool) for one in batch.payloads]
    assert found[0] == b"first"
    assert sorted(found[1::2]) == sorted(b"%d" % n for n in range(15))
    assert found[2::2] == [b"and"] * 15
    spool.close()


def test_no_more_frames_gather_than_write_ahead_allows() -> None:
    files = MemoryFiles()
    spool = Spool(ROOT, small(write_ahead=4), files=files)
    disk = SlowDisk(files)
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(spool.publish, [b"first"])
        assert disk.is_held.wait(PATIENCE)
        others = [pool.submit(spool.publish, [b"%d" % n, b"and"]) for n in range(6)]
        until(lambda: len(spool._waiting) == 4)
        assert len(spool._pending) == 2
        with pytest.raises(SpoolFull):
            spool.publish([b"late"], timeout=0)
        disk.go.set()
        for future in (first, *others):
            future.result(PATIENCE)
    spool.publish([b"%d" % n for n in range(9)])  # more at once than wait elsewhere
    assert spool.stat().published == 1 + 12 + 9
    spool.close()


def test_a_producer_waits_for_room_and_is_served_in_turn() -> None:
    spool = Spool(ROOT, small(), files=MemoryFiles())
    for _ in range(4):
        spool.publish([b"x" * 4000])
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(spool.publish, [b"1" * 4000])
        until(lambda: len(spool._waiting) == 1)
        second = pool.submit(spool.publish, [b"2"])  # it would fit, but others came before it
        until(lambda: len(spool._waiting) == 2)
        with pytest.raises(SpoolFull):
            spool.publish([b"3"], timeout=0.01)
        assert not first.done()
        assert not second.done()
        batch = spool.read(1, timeout=0)
        assert batch is not None
        spool.acknowledge(batch)
        spool.read(1, timeout=0)  # so that the reader has left the segment
        first.result(PATIENCE)
        second.result(PATIENCE)
    found = [one[:1] for batch in read_all(spool) for one in batch.payloads]
    assert found[-2:] == [b"1", b"2"]
    spool.close()


def test_a_reader_waits_for_the_first_payload() -> None:
    spool = Spool(ROOT, small(), files=MemoryFiles())
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(spool.read, 10)
        until(spool._reader.locked)
        assert spool.read(10, timeout=0.01) is None, "another is reading"
        spool.publish([b"a", b"b"])
        found = batch.result(PATIENCE)
    assert found is not None
    assert found.payloads == [b"a", b"b"]
    assert spool.read(10, timeout=0.01) is None
    spool.close()


def waiting_reader(spool: Spool, pool: ThreadPoolExecutor) -> Future[object]:
    future: Future[object] = pool.submit(spool.read, 10)
    until(spool._reader.locked)
    return future


def waiting_producer(spool: Spool, pool: ThreadPoolExecutor) -> Future[object]:
    future: Future[object] = pool.submit(spool.publish, [b"x" * 4000])
    until(lambda: len(spool._waiting) == 1)
    return future


def test_closing_ends_everybodys_wait() -> None:
    spool = Spool(ROOT, small(), files=MemoryFiles())
    with ThreadPoolExecutor(2) as pool:
        reader = waiting_reader(spool, pool)
        spool.close()
        with pytest.raises(InvalidValue, match="the spool is closed"):
            reader.result(PATIENCE)
    spool = Spool(ROOT, small(), files=MemoryFiles())
    for _ in range(4):
        spool.publish([b"x" * 4000])
    with ThreadPoolExecutor(2) as pool:
        producer = waiting_producer(spool, pool)
        spool.close()
        with pytest.raises(InvalidValue, match="the spool is closed"):
            producer.result(PATIENCE)


def test_closing_lets_the_write_under_way_finish_and_refuses_those_behind_it() -> None:
    files = MemoryFiles()
    spool = Spool(ROOT, small(), files=files)
    disk = SlowDisk(files)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(spool.publish, [b"first"])
        assert disk.is_held.wait(PATIENCE)
        second = pool.submit(spool.publish, [b"second"])
        until(lambda: len(spool._pending) == 1)
        closing = pool.submit(spool.close)
        until(lambda: spool._is_closed)
        disk.go.set()
        closing.result(PATIENCE)
        first.result(PATIENCE)
        with pytest.raises(InvalidValue, match="the spool is closed"):
            second.result(PATIENCE)
    with Spool(ROOT, small(), files=files) as spool:
        assert [batch.payloads for batch in read_all(spool)] == [[b"first"]]


def test_a_disk_that_fails_ends_everybodys_wait() -> None:
    files = MemoryFiles()

    def fail(operation: Operation) -> None:
        raise OSError(errno.EIO, "Input/output error", operation.path)

    spool = Spool(ROOT, small(), files=files)
    with ThreadPoolExecutor(2) as pool:
        reader = waiting_reader(spool, pool)
        files.fault = fail
        with pytest.raises(StorageFailed):
            spool.publish([b"a"])
        with pytest.raises(StorageFailed):
            reader.result(PATIENCE)
    files = MemoryFiles()
    spool = Spool(ROOT, small(ack_window=0), files=files)
    for _ in range(4):
        spool.publish([b"x" * 4000])
    batch = spool.read(1)
    assert batch is not None
    with ThreadPoolExecutor(2) as pool:
        producer = waiting_producer(spool, pool)
        files.fault = fail
        with pytest.raises(StorageFailed):
            spool.acknowledge(batch)
        with pytest.raises(StorageFailed):
            producer.result(PATIENCE)
    spool.close()


def test_all_who_shared_a_write_that_failed_are_told() -> None:
    files = MemoryFiles()
    spool = Spool(ROOT, small(), files=files)
    disk = SlowDisk(files)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(spool.publish, [b"first"])
        assert disk.is_held.wait(PATIENCE)
        others = [pool.submit(spool.publish, [b"%d" % n]) for n in range(3)]
        until(lambda: len(spool._pending) == 3)

        def full(operation: Operation) -> None:
            if operation.kind == "write":
                files.fault = None
                raise OSError(errno.ENOSPC, "No space left on device", operation.path)

        files.fault = full
        disk.go.set()
        first.result(PATIENCE)
        for future in others:
            with pytest.raises(
                SpoolFull, match="No space left on device; nothing of this was kept"
            ):
                future.result(PATIENCE)
    spool.publish([b"goes on"])
    found = [one for batch in read_all(spool) for one in batch.payloads]
    assert found == [b"first", b"goes on"]
    spool.close()


@pytest.mark.parametrize("options", [Options(0), Options(3)], ids=str)
@pytest.mark.parametrize("when_full", [WhenFull.BLOCK, WhenFull.DROP_OLDEST])
def test_threads_that_publish_read_and_acknowledge_at_once_lose_and_double_nothing(
    tmp_path: Path, options: Options, when_full: WhenFull
) -> None:
    producers, rounds = 6, 60
    # Room for all where nothing may be dropped would never make a producer wait.
    max_size = 60_000 if when_full is WhenFull.BLOCK else 2**20
    settings = SpoolSettings(
        max_size=max_size, segment_size=6000, options=options, key=KEY, ack_window=50,
        when_full=when_full,
    )  # fmt: skip
    spool = Spool(tmp_path, settings)
    done = threading.Event()

    def produce(producer: int) -> None:
        for round_ in range(rounds):
            spool.publish([b"%d %d %d " % (producer, round_, n) * 10 for n in range(4)])

    def consume() -> list[bytes]:
        found: list[bytes] = []
        while True:
            batch = spool.read(30, timeout=0.05)
            if batch is not None:
                found += batch.payloads
                spool.acknowledge(batch)
            elif done.is_set():
                return found

    with ThreadPoolExecutor(producers + 1) as pool:
        consumer = pool.submit(consume)
        for future in [pool.submit(produce, number) for number in range(producers)]:
            future.result(PATIENCE)
        done.set()
        found = consumer.result(PATIENCE)
    assert spool.stat().dropped == 0
    spool.close()
    per_producer: dict[bytes, list[tuple[int, int]]] = {}
    for payload in found:
        producer, round_, n = payload.split(b" ")[:3]
        per_producer.setdefault(producer, []).append((int(round_), int(n)))
    expected = [(round_, n) for round_ in range(rounds) for n in range(4)]
    assert per_producer == {b"%d" % n: expected for n in range(producers)}
    with Spool(tmp_path, settings) as spool:
        assert spool.read(1, timeout=0) is None
