"""The real files under the storage: whole writes, private modes, no symbolic links, one owner."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.binary import Bytes
from penstock.errors import DirectoryLocked, PathRefused, StorageFailed
from penstock.storage.files import (
    TEMPORARY_SUFFIX,
    Files,
    OsFile,
    OsFiles,
    Poison,
    read_whole,
    replace_file,
)
from penstock.testing.disk import MemoryFiles


@pytest.fixture
def file(tmp_path: Path) -> Iterator[OsFile]:
    opened = OsFiles().open(tmp_path / "file", write=True, create=True)
    yield opened
    opened.close()


@pytest.fixture(params=["memory", "disk"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, Path]:
    """A file system of either kind, and a directory in it."""
    files: Files = MemoryFiles() if request.param == "memory" else OsFiles()
    return files, tmp_path


# Reading and writing.


def test_pieces_are_written_one_behind_the_other(file: OsFile) -> None:
    file.write(3, [b"ab", bytearray(b"cd"), memoryview(b"ef"), b""])
    assert file.read(0, 100) == b"\x00\x00\x00abcdef"
    assert file.size() == 9


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1024, 5000])
def test_any_number_of_pieces_is_one_call_to_the_system(
    file: OsFile, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = os.pwritev

    def counted(descriptor: int, pieces: Sequence[Bytes], offset: int) -> int:
        calls.append(len(pieces))
        return real(descriptor, pieces, offset)

    monkeypatch.setattr(os, "pwritev", counted)
    file.write(0, [b"%d," % n for n in range(count)])
    assert len(calls) == 1
    assert file.read(0, 10**6) == b"".join(b"%d," % n for n in range(count))


@pytest.mark.parametrize("most", [0, 1, 2, 7, 30])
def test_a_short_write_is_continued_to_its_end(
    file: OsFile, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The system may write less than it was given: after a signal, or close to a full disk.
    real = os.pwritev
    real_single = os.pwrite

    def short(descriptor: int, pieces: Sequence[Bytes], offset: int) -> int:
        return real(descriptor, [b"".join(pieces)[:most]], offset) if most else 0

    def short_single(descriptor: int, data: Bytes, offset: int) -> int:
        return real_single(descriptor, bytes(data)[: most or 3], offset)

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os, "pwrite", short_single)
    file.write(5, [b"0123456789", b"abcdefghij", b"ABCDEFGHIJ"])
    assert file.read(5, 100) == b"0123456789abcdefghijABCDEFGHIJ"


def test_a_disk_that_fills_up_within_a_write_is_an_error(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev

    def short(descriptor: int, pieces: Sequence[Bytes], offset: int) -> int:
        return real(descriptor, [b"".join(pieces)[:4]], offset)

    def full(descriptor: int, data: Bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        file.write(0, [b"0123456789"])


def test_a_short_read_is_continued_to_the_end(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write(0, [bytes(range(100))])
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda d, size, offset: real(d, min(size, 7), offset))
    assert file.read(10, 50) == bytes(range(10, 60))
    assert file.read(90, 50) == bytes(range(90, 100))
    assert file.read(100, 5) == b""


def test_holes_are_passed_over(file: OsFile) -> None:
    file.truncate(2**30)
    assert file.next_data(0) is None
    file.write(2**29, [b"x"])
    found = file.next_data(0)
    assert found is not None
    assert 0 < found <= 2**29
    assert file.next_data(2**30) is None


def test_a_file_system_without_holes_has_data_everywhere(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "lseek", unsupported)
    assert file.next_data(17) == 17


# Replacing a file.


def test_a_replaced_file_holds_all_pieces(disk: tuple[Files, Path]) -> None:
    files, home = disk
    path = home / "metadata"
    replace_file(files, path, [b"old old old"])
    replace_file(files, path, [b"ne", b"w"])
    assert read_whole(files, path, size_max=100) == b"new"
    assert files.names(home) == ["metadata"]


def test_a_longer_leftover_does_not_show_through(disk: tuple[Files, Path]) -> None:
    files, home = disk
    leftover = files.open(home / ("file" + TEMPORARY_SUFFIX), write=True, create=True)
    leftover.write(0, [b"a leftover of an earlier crash"])
    leftover.close()
    replace_file(files, home / "file", [b"new"])
    assert read_whole(files, home / "file", size_max=100) == b"new"


def test_reading_a_small_file_stops_one_byte_behind_the_bound(disk: tuple[Files, Path]) -> None:
    files, home = disk
    assert read_whole(files, home / "file", size_max=3) is None
    replace_file(files, home / "file", [b"0123456789"])
    assert read_whole(files, home / "file", size_max=3) == b"0123"


def test_a_file_that_is_missing_is_named(disk: tuple[Files, Path]) -> None:
    files, home = disk
    for action in (
        lambda: files.open(home / "missing", write=False),
        lambda: files.remove(home / "missing"),
        lambda: files.rename(home / "missing", home / "other"),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            action()
        assert caught.value.filename == str(home / "missing")


# Modes and links.


def test_whatever_the_umask_only_the_owner_may_use_what_we_make(tmp_path: Path) -> None:
    for mask in (0o000, 0o022, 0o777):
        root = tmp_path / f"{mask:o}"
        before = os.umask(mask)
        try:
            files = OsFiles()
            files.make_directory(root / "data" / "log")
            files.open(root / "file", write=True, create=True).close()
            replace_file(files, root / "data" / "replaced", [b"x"])
            files.lock(root / "lock").release()
        finally:
            os.umask(before)
        for path in (root, root / "data", root / "data" / "log"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        for path in (root / "file", root / "data" / "replaced"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE((root / "lock").stat().st_mode) & 0o077 == 0


def test_a_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    OsFiles().make_directory(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750


@pytest.mark.parametrize("create", [False, True])
def test_a_symbolic_link_is_never_written_through(tmp_path: Path, create: bool) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    link = tmp_path / "log.raft"
    link.symlink_to(target)
    with pytest.raises(PathRefused, match="symbolic link") as caught:
        OsFiles().open(link, write=True, create=create)
    assert str(link) in str(caught.value)
    with pytest.raises(PathRefused, match="symbolic link"):
        OsFiles().lock(link)
    assert target.read_bytes() == b"precious"


def test_a_symbolic_link_in_place_of_a_file_is_replaced_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    link = tmp_path / "metadata"
    link.symlink_to(target)
    replace_file(OsFiles(), link, [b"new"])
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"
    assert target.read_bytes() == b"precious"


def test_a_symbolic_link_in_place_of_the_sibling_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    (tmp_path / ("metadata" + TEMPORARY_SUFFIX)).symlink_to(target)
    with pytest.raises(PathRefused, match="symbolic link"):
        replace_file(OsFiles(), tmp_path / "metadata", [b"new"])
    assert target.read_bytes() == b"precious"


# Locks and poison.


def test_a_lock_has_one_owner(disk: tuple[Files, Path]) -> None:
    files, home = disk
    held = files.lock(home / "lock")
    with pytest.raises(DirectoryLocked, match=str(home)):
        files.lock(home / "lock")
    held.release()
    files.lock(home / "lock").release()


def test_poison_strikes_at_the_first_failure_and_for_ever() -> None:
    poison = Poison("/d/log.raft")
    poison.check()
    with poison.writing():
        pass
    assert not poison.has_struck
    words = r"/d/log\.raft: No space left on device"
    with pytest.raises(StorageFailed, match=words) as caught, poison.writing():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert isinstance(caught.value.__cause__, OSError)
    assert poison.has_struck
    with pytest.raises(StorageFailed, match="start again"):
        poison.check()
    ran = False
    with pytest.raises(StorageFailed), poison.writing():
        ran = True
    assert not ran


def test_other_errors_do_not_poison() -> None:
    poison = Poison("/d")
    with pytest.raises(AssertionError), poison.writing():
        raise AssertionError("a mistake of ours")
    poison.check()
