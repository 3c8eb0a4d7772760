"""A disk that fails once, at every place: a full one is a refusal, anything else ends the spool for good.

For n = 1, 2, 3, …: a life of a spool fails at its n-th operation, before it or in the middle of a write. Then everything is
asked of the spool, and the disk is opened anew as it is and as a power cut at that moment may leave it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random

import pytest

from penstock.errors import SpoolFull, StorageFailed
from penstock.formats.beats.segment import Options
from penstock.testing.disk import SECTOR, MemoryFiles, Operation, crash_states_now
from support.report import report
from support.spool_lives import (
    AES,
    LZ4,
    PLAIN,
    ROOT,
    Life,
    LifeOver,
    check_image,
    live,
    live_at_random,
    numbers_in,
    open_spool,
    payload,
    read_all,
    settings,
)

WAYS = pytest.mark.parametrize("options", [PLAIN, LZ4, AES], ids=["plain", "lz4", "aes"])
HALVES = pytest.mark.parametrize("half", [False, True], ids=["nothing written", "half written"])
EIO = OSError(errno.EIO, "Input/output error")
ENOSPC = OSError(errno.ENOSPC, "No space left on device")
EDQUOT = OSError(errno.EDQUOT, "Disk quota exceeded")


@dataclass
class Breaker:
    """Fails the n-th operation of a disk, and remembers it."""

    files: MemoryFiles
    at: int
    error: OSError
    half_written: bool = False  # a part of the write reaches the file
    broken: Operation | None = None
    seen: int = 0

    def __call__(self, operation: Operation) -> None:
        self.seen += 1
        if self.seen != self.at:
            return
        self.broken = operation
        if self.half_written and operation.kind == "write":
            half = replace(operation, data=operation.data[: len(operation.data) // 2])
            self.files.fault = None
            self.files.do(half)
        raise OSError(*self.error.args)


def broken_life(options: Options, at: int, error: OSError, *, half: bool) -> tuple[Life, Breaker]:
    files = MemoryFiles()
    breaker = Breaker(files, at, error, half)
    files.fault = breaker
    life = Life(options, files)
    with suppress(LifeOver):
        live(life)
    files.fault = None
    return life, breaker


def is_over(life: Life) -> bool:
    return life.events[-1].end > len(life.files.operations)


def check_that_it_stays_failed(life: Life) -> None:
    if life.events[-1].kind in ("open", "close"):  # nothing is open that could be asked
        return
    before = len(life.files.operations)
    spool = life.spool
    attempts: list[Callable[[], object]] = [
        lambda: spool.publish([b"more"]),
        lambda: spool.read(1, timeout=0),
        spool.save,
    ]
    for attempt in attempts:
        with pytest.raises(StorageFailed):
            attempt()
    spool.close()
    assert len(life.files.operations) == before, "a failed disk was written to again"


def check_failures(options: Options, *, half: bool) -> None:
    count = at = 0
    while True:
        at += 1
        life, breaker = broken_life(options, at, EIO, half=half)
        if breaker.broken is None:
            break
        if not is_over(life):
            # Its publication is durable, and what failed behind it was the removal of another segment.
            assert breaker.broken.kind in ("remove", "sync_directory", "rename")
        check_that_it_stays_failed(life)
        operations = len(life.files.operations)
        check_image(life, MemoryFiles(life.files.image()), operations, goes_on=True)
        for crash in crash_states_now(life.files, seed=at, random_states=2):
            check_image(life, MemoryFiles(crash.image), operations, goes_on=False)
            count += 1
    report(f"spool, options {int(options)}: {at - 1} places of EIO, {count} states")
    assert at > 50


def check_full_disk(options: Options, error: OSError, *, half: bool) -> None:
    at = refusals = count = 0
    while True:
        at += 1
        life, breaker = broken_life(options, at, error, half=half)
        if breaker.broken is None:
            break
        if is_over(life) and life.events[-1].kind != "open":  # which may be tried again
            # No room to give room back: only file systems that copy on write say such a thing.
            assert breaker.broken.kind in ("remove", "sync_directory")
        refusals += bool(life.refused)
        operations = len(life.files.operations)
        files = MemoryFiles(life.files.image())
        check_image(life, files, operations, goes_on=True)
        for event in life.events:
            if event.is_refused:  # nothing of it is on the disk
                check_image(life, life.files.after(event.end), event.end, goes_on=False)
        for crash in crash_states_now(life.files, seed=at, random_states=1):
            check_image(life, MemoryFiles(crash.image), operations, goes_on=False)
            count += 1
    report(f"spool, options {int(options)}: {at - 1} places of {error.strerror}, {count} states")
    assert refusals > 10


@pytest.mark.parametrize(("options", "half"), [(PLAIN, True), (AES | LZ4, False)])
def test_a_disk_that_fails_once_ends_the_spool_and_loses_nothing(
    options: Options, half: bool
) -> None:
    check_failures(options, half=half)


@pytest.mark.parametrize(
    ("options", "error", "half"), [(PLAIN, EDQUOT, False), (AES | LZ4, ENOSPC, True)]
)
def test_a_full_disk_refuses_whole_batches_and_the_spool_goes_on(
    options: Options, error: OSError, half: bool
) -> None:
    check_full_disk(options, error, half=half)


@pytest.mark.heavy
@WAYS
@HALVES
def test_a_disk_that_fails_once_in_any_way_loses_nothing(options: Options, half: bool) -> None:
    check_failures(options, half=half)


@pytest.mark.heavy
@WAYS
@HALVES
def test_a_disk_that_is_full_in_any_way_refuses_whole_batches(options: Options, half: bool) -> None:
    check_full_disk(options, ENOSPC, half=half)


def blocks(size: int) -> int:
    return -(-size // SECTOR)


class SmallDisk:
    """A disk of so many blocks; a write that does not fit is cut off where it is full."""

    def __init__(self, files: MemoryFiles, count: int) -> None:
        self.files = files
        self.count = count
        self.refusals = 0

    @property
    def used(self) -> int:
        return sum(blocks(len(data)) for data in self.files.image().values())

    def __call__(self, operation: Operation) -> None:
        if operation.kind != "write":
            return
        there = self.files.size(operation.file)
        most = (blocks(there) + max(0, self.count - self.used)) * SECTOR
        fits = most - operation.offset
        if len(operation.data) <= fits:
            return
        self.refusals += 1
        self.files.fault = None
        self.files.do(replace(operation, data=operation.data[: max(0, fits)]))
        self.files.fault = self
        raise OSError(*ENOSPC.args)


@WAYS
@pytest.mark.parametrize("seed", range(6))
def test_a_small_disk_is_filled_and_emptied_without_a_torn_frame(
    options: Options, seed: int
) -> None:
    files = MemoryFiles()
    disk = SmallDisk(files, 28)
    files.fault = disk
    life = Life(options, files)
    live_at_random(life, Random(seed), 120)
    operations = len(files.operations)
    assert disk.refusals > 0
    assert life.notes == []
    check_image(life, MemoryFiles(files.image()), operations, goes_on=False)
    for crash in crash_states_now(files, seed=seed, random_states=2):
        check_image(life, MemoryFiles(crash.image), operations, goes_on=False)


def test_a_spool_on_a_disk_that_is_full_to_the_last_byte_can_be_emptied_and_filled_again() -> None:
    files = MemoryFiles()
    disk = SmallDisk(files, 40)
    files.fault = disk
    spool = open_spool(files)
    number = 0
    while disk.used <= disk.count - 4:
        spool.publish([payload(number, 900)])
        number += 1
    with pytest.raises(SpoolFull, match="No space left on device; nothing of this was kept"):
        spool.publish([payload(number, 3000)])
    disk.count = disk.used  # somebody else has the rest
    batch = spool.read(1, timeout=0)
    assert batch is not None
    spool.save(sending=batch.end)
    spool.acknowledge(batch)
    spool.save()
    batches = read_all(spool)
    assert numbers_in(batches) == list(range(1, number))
    for batch in batches:
        spool.acknowledge(batch)
    spool.publish([payload(7, 2000)])
    spool.close()
    spool = open_spool(files)
    assert numbers_in(read_all(spool)) == [7]
    spool.close()


def test_a_state_for_which_there_is_no_room_at_all_is_saved_later() -> None:
    files = MemoryFiles()
    spool = open_spool(files)
    spool.publish([payload(n, 300) for n in range(20)])

    def no_room_for_a_state(operation: Operation) -> None:
        if "state.dat" in operation.path and operation.kind in ("create", "write"):
            raise OSError(*ENOSPC.args)

    files.fault = no_room_for_a_state
    with pytest.raises(SpoolFull, match=r"state\.dat: No space left on device; make room"):
        spool.save()
    batch = spool.read(settings().ack_window + 1, timeout=0)
    assert batch is not None
    spool.acknowledge(batch)
    files.fault = None
    last = spool.read(1, timeout=0)
    assert last is not None
    spool.acknowledge(last)
    left = spool.read(100, timeout=0)
    again = open_spool(MemoryFiles(files.image()))
    assert left is not None
    assert numbers_in(read_all(again)) == numbers_in([left]) + numbers_in(read_all(spool))
    assert str(ROOT) in str(spool.path)
