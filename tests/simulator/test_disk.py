"""Simulated disks: what was synced survives, of the rest any part does."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from penstock.errors import DirectoryLocked
from penstock.storage.files import replace_file
from simulation.clock import SECOND, Gate, Timeline
from simulation.disk import (
    SECTOR,
    MachineDown,
    Pace,
    SimulatedDisk,
    SimulatedFiles,
)

HOME = Path("/node")
FILE = HOME / "file"


def files_with(data: bytes, seed: int = 0) -> SimulatedFiles:
    """Return a disk with one synced file."""
    files = SimulatedFiles(Random(seed))
    files.make_directory(HOME)
    file = files.open(FILE, write=True, create=True)
    file.write(0, [data])
    file.sync()
    files.sync_directory(HOME)
    return files


def contents(files: SimulatedFiles, path: Path = FILE) -> bytes:
    file = files.open(path, write=False)
    return file.read(0, file.size())


def test_what_is_written_is_seen_at_once_and_a_killed_process_loses_nothing() -> None:
    files = files_with(b"old")
    files.open(FILE, write=True).write(1, [b"e", memoryview(b"w")])
    assert contents(files) == b"oew"
    files.kill()
    assert contents(files) == b"oew"
    assert not files.is_synced(str(FILE), 0, 3)
    assert files.is_synced(str(FILE), 0, 1)


def test_what_was_synced_survives_a_power_cut_and_what_was_not_is_lost_or_not() -> None:
    old, new = b"a" * 3 * SECTOR, b"b" * 3 * SECTOR
    seen = set()
    for seed in range(200):
        files = files_with(old, seed)
        files.open(FILE, write=True).write(0, [new])
        files.cut_power(survival=0.5)
        found = contents(files)
        assert len(found) == len(old)
        for start in range(0, len(old), SECTOR):
            sector = found[start : start + SECTOR]
            kept = len(sector) - len(sector.lstrip(b"b"))
            assert sector == b"b" * kept + b"a" * (SECTOR - kept)  # torn at one place, if at all
            seen.add("new" if kept == SECTOR else "torn" if kept else "old")
        assert files.durable_image() == {str(FILE): found}
    assert seen == {"old", "new", "torn"}


@pytest.mark.parametrize(("survival", "expected"), [(0.0, b"old"), (1.0, b"a longer one")])
def test_nothing_or_everything_survives_at_the_extremes(survival: float, expected: bytes) -> None:
    found = set()
    for seed in range(20):
        files = files_with(b"old", seed)
        files.open(FILE, write=True).write(0, [b"a longer one"])
        files.cut_power(survival=survival)
        found.add(contents(files))
    # A sector that arrives may still arrive in part only.
    assert expected in found
    if not survival:
        assert found == {expected}


def test_a_truncation_that_was_not_synced_may_be_undone() -> None:
    sizes = set()
    for seed in range(40):
        files = files_with(b"x" * 2000, seed)
        files.open(FILE, write=True).truncate(100)
        assert contents(files) == b"x" * 100
        files.cut_power(survival=0.5)
        sizes.add(len(contents(files)))
    # A shorter size is metadata that the sync of the file brings; without it either may be found.
    assert sizes <= {100, 2000}
    assert 100 in sizes


def test_a_sync_makes_sizes_and_holes_durable() -> None:
    files = files_with(b"old")
    file = files.open(FILE, write=True)
    file.write(1000, [b"far"])
    file.truncate(2000)
    file.sync()
    files.cut_power(survival=0.0)
    assert contents(files) == b"old".ljust(1000, b"\0") + b"far".ljust(1000, b"\0")


def test_a_failed_sync_loses_its_pages_for_good_even_if_the_next_one_succeeds() -> None:
    files = files_with(b"old")
    file = files.open(FILE, write=True)
    file.write(0, [b"new"])

    def fail(kind: str, path: str) -> None:
        raise OSError(errno.EIO, kind, path)

    files.arm(1, fail)
    with pytest.raises(OSError, match="sync"):
        file.sync()
    assert contents(files) == b"new"  # the cache still shows it
    file.sync()
    files.cut_power(survival=1.0)
    assert contents(files) == b"old"


def test_creations_renames_and_removals_need_a_sync_of_their_directory() -> None:
    seen = set()
    for seed in range(60):
        files = files_with(b"old", seed)
        sibling = files.create(HOME / "sibling")
        sibling.write(0, [b"new"])
        sibling.sync()
        files.rename(HOME / "sibling", FILE)
        files.cut_power(survival=0.5)
        seen.add((tuple(files.names(HOME)), contents(files)))
    assert (("file",), b"old") in seen
    assert (("file",), b"new") in seen
    assert (("file", "sibling"), b"old") in seen
    files = files_with(b"old")
    replace_file(files, FILE, [b"whole"])
    files.cut_power(survival=0.0)
    assert (files.names(HOME), contents(files)) == (["file"], b"whole")
    files.remove(FILE)
    assert not files.exists(FILE)
    files.cut_power(survival=0.0)
    assert contents(files) == b"whole"


def test_the_system_may_write_back_a_sector_that_is_then_written_again() -> None:
    found = set()
    for seed in range(100):
        files = files_with(b"0", seed)
        files.write_back_chance = 0.5
        file = files.open(FILE, write=True)
        for digit in b"123":
            file.write(0, [bytes((digit,))])
        files.cut_power(survival=0.3)
        found.add(contents(files))
    assert found == {b"0", b"1", b"2", b"3"}


def test_a_machine_that_goes_down_in_a_call_makes_no_further_one() -> None:
    files = files_with(b"old")
    file = files.open(FILE, write=True)
    files.arm(2, lambda _kind, _path: files.go_down())
    file.write(0, [b"one"])
    with pytest.raises(MachineDown):
        file.write(0, [b"two"])
    with pytest.raises(MachineDown):
        file.sync()
    files.cut_power(survival=0.0)
    assert contents(files) == b"old"
    files.open(FILE, write=True).sync()  # and it is back


def test_a_write_beyond_the_quota_is_cut_short() -> None:
    files = files_with(b"old")
    files.quota = files.size + 2
    file = files.open(FILE, write=True)
    with pytest.raises(OSError, match="No space") as raised:
        file.write(0, [b"much longer"])
    assert raised.value.errno == errno.ENOSPC
    assert contents(files) == b"much "
    file.write(0, [b"MUCH"])  # what is there may be overwritten
    files.quota = None
    file.write(5, [b"longer"])
    assert contents(files) == b"MUCH longer"


def test_locks_go_with_the_process_and_an_empty_disk_has_nothing() -> None:
    files = files_with(b"old")
    lock = files.lock(HOME / "lock")
    with pytest.raises(DirectoryLocked):
        files.lock(HOME / "lock")
    lock.release()
    files.lock(HOME / "lock")
    files.kill()
    files.lock(HOME / "lock")
    files.wipe()
    assert (files.exists(FILE), files.is_directory(HOME), files.size) == (False, False, 0)
    with pytest.raises(FileNotFoundError):
        files.open(FILE, write=False)


def test_damage_flips_one_bit_that_was_synced() -> None:
    for seed in range(20):
        files = files_with(b"old and synced" + bytes(100), seed)
        assert files.damage(lambda name: name.endswith("lock")) is None
        assert files.damage(lambda _: True) is not None
        found = contents(files)
        files.cut_power(survival=0.0)
        assert contents(files) == found
        change = int.from_bytes(found, "big") ^ int.from_bytes(
            b"old and synced" + bytes(100), "big"
        )
        assert change.bit_count() == 1
        assert found[14:] == bytes(100)  # nobody reads the zeros at the end


def test_jobs_run_in_order_after_some_time_and_a_gone_process_hears_nothing() -> None:
    timeline, done = Timeline(), list[object]()
    disk = SimulatedDisk(timeline, Random(3), Gate(), Pace(mean=1000))
    disk.run(lambda: done.append("job 1"), done.append, is_small=True)
    error = OSError(errno.EIO, "broken")

    def fail() -> None:
        raise error

    disk.run(fail, done.append, is_small=False)
    assert done == []
    timeline.run(SECOND)
    assert done == ["job 1", None, error]
    disk.run(lambda: done.append("never"), done.append, is_small=True)
    disk.end()
    timeline.run(2 * SECOND)
    assert done == ["job 1", None, error]


def test_a_machine_that_goes_down_in_a_job_is_told_of_instead() -> None:
    timeline, down, done = Timeline(), list[bool](), list[object]()
    files = files_with(b"old")
    files.arm(1, lambda _kind, _path: files.go_down())
    disk = SimulatedDisk(timeline, Random(3), Gate(), Pace())
    disk.when_down = lambda: down.append(True)
    disk.run(files.open(FILE, write=True).sync, done.append, is_small=True)
    timeline.run(SECOND)
    assert (down, done) == ([True], [])
