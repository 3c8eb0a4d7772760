"""A key is proven by the segment itself or by its neighbours, or the segment is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import CorruptData
from penstock.formats.beats.segment import Options
from penstock.storage.files import OsFile, OsFiles
from penstock.storage.spool import Spool, SpoolSettings
from penstock.storage.spool_keys import WITNESSES_MAX, is_key_proven
from penstock.storage.spool_segments import new_iv
from support.beats_spools import KEY, PLAIN, sealed, spool

A, B = PLAIN[16:83], PLAIN[95:212]
OTHER_KEY = bytes(16)
ENCRYPTED = [Options(1), Options(3), Options(5), Options(7)]

Contents = dict[str, bytes]


def torn(data: bytes, size: int) -> bytes:
    """Return what a crash leaves of a segment: no count, and so many bytes."""
    return data[:4] + bytes(4) + data[8:size]


def contents(place: Path) -> Contents:
    return {path.name: path.read_bytes() for path in place.glob("*.seg*")}


def opened(place: Path, notes: list[str], key: bytes = KEY) -> list[bytes]:
    """Open a spool and return the payloads that it holds."""
    with Spool(place, SpoolSettings(max_size=2**20, key=key), tell=notes.append) as one:
        found: list[bytes] = []
        while batch := one.read(100, timeout=0):
            found += batch.payloads
        return found


@pytest.mark.parametrize("options", [Options(1), Options(3)], ids=str)
def test_a_segment_of_beats_torn_in_its_first_frame_does_not_lock_the_others(
    tmp_path: Path, options: Options
) -> None:
    whole = sealed([B], options=options, key=KEY)
    for size in range(29, len(whole) - 8, 3):
        last = torn(whole, size)
        place = spool(tmp_path / str(size), {3: sealed([A], options=options, key=KEY), 4: last})
        assert is_key_proven(OsFiles(), place / "4.seg", KEY)
        assert not is_key_proven(OsFiles(), place / "4.seg", OTHER_KEY)
        notes: list[str] = []
        assert opened(place, notes) == [A]
        # Set aside and not cut: nothing that a wrong key could have made unreadable is lost.
        kept = {name: data for name, data in contents(place).items() if name != "3.seg"}
        head_only = options & Options.COMPRESSED and size == 35  # a whole LZ4 head: nothing is torn
        assert kept[("4.seg" if head_only else "4.seg.damaged")][8:] == last[8:]
        assert len(notes) == (not head_only)


@pytest.mark.parametrize("options", ENCRYPTED, ids=str)
def test_a_torn_segment_alone_is_refused_and_kept(tmp_path: Path, options: Options) -> None:
    place = spool(tmp_path / "spool", {0: torn(sealed([A], options=options, key=KEY), 60)})
    before = contents(place)
    with pytest.raises(CorruptData) as caught:
        opened(place, [])
    assert caught.value.reason == "no frame can be read: torn, or another key"
    assert contents(place) == before


@pytest.mark.parametrize("options", ENCRYPTED, ids=str)
@pytest.mark.parametrize("size", [40, 100, None])
def test_a_segment_under_another_key_than_its_neighbours_is_never_touched(
    tmp_path: Path, options: Options, size: int | None
) -> None:
    other = sealed([A, B], options=options, key=OTHER_KEY)
    other = other if size is None else torn(other, size)
    place = spool(tmp_path / "spool", {0: sealed([A], options=options, key=KEY), 1: other})
    before = contents(place)
    with pytest.raises(CorruptData):
        opened(place, [])
    assert contents(place) == before


def test_only_encrypted_neighbours_prove_a_key(tmp_path: Path) -> None:
    last = torn(sealed([A], options=Options.ENCRYPTED, key=KEY), 60)
    place = spool(tmp_path / "spool", {0: PLAIN, 1: sealed([A], options=Options(2)), 2: last})
    assert not is_key_proven(OsFiles(), place / "2.seg", KEY)


def test_zeros_that_a_power_cut_left_are_torn_too(tmp_path: Path) -> None:
    whole = sealed([A], options=Options.ENCRYPTED, key=KEY)
    last = torn(whole, 28) + bytes(4096)
    place = spool(tmp_path / "spool", {0: whole, 1: last})
    assert opened(place, []) == [A]
    assert contents(place)["1.seg.damaged"] == last


@pytest.mark.parametrize("options", [Options(1), Options(3)], ids=str)
def test_zeros_behind_a_few_bytes_of_a_first_frame_do_not_lock_the_others(
    tmp_path: Path, options: Options
) -> None:
    whole = sealed([A], options=options, key=KEY)
    for size in range(29, 60):
        last = torn(whole, size) + bytes(4096)
        place = spool(tmp_path / str(size), {0: whole, 1: last})
        assert opened(place, []) == [A], size
        assert contents(place)["1.seg.damaged"] == last


@pytest.mark.parametrize("options", [Options(1), Options(3)], ids=str)
def test_zeros_behind_a_frame_of_another_key_do_not_prove_the_key(
    tmp_path: Path, options: Options
) -> None:
    other = torn(sealed([A], options=options, key=OTHER_KEY), 48) + bytes(4096)
    place = spool(tmp_path / "spool", {0: sealed([A], options=options, key=KEY), 1: other})
    before = contents(place)
    with pytest.raises(CorruptData):
        opened(place, [])
    assert contents(place) == before


def test_our_own_mark_proves_the_key_of_a_segment_that_is_alone(tmp_path: Path) -> None:
    whole = sealed([A], options=Options.ENCRYPTED, key=KEY)
    data = whole[:12] + new_iv(KEY) + bytes(30)  # any bytes: the mark alone decides
    place = spool(tmp_path / "spool", {0: data})
    assert is_key_proven(OsFiles(), place / "0.seg", KEY)
    assert not is_key_proven(OsFiles(), place / "0.seg", OTHER_KEY)


class CountingFiles(OsFiles):
    """Keeps which files were opened."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: Path, *, write: bool, create: bool = False) -> OsFile:
        self.opened.append(path.name)
        return super().open(path, write=write, create=create)


def test_a_wrong_key_asks_a_bounded_number_of_neighbours(tmp_path: Path) -> None:
    whole = sealed([A], options=Options.ENCRYPTED, key=OTHER_KEY)
    segments: dict[int | str, bytes] = dict.fromkeys(range(1, 100), whole)
    last = torn(sealed([A], options=Options.ENCRYPTED, key=KEY), 60)
    place = spool(tmp_path / "spool", segments | {100: last})
    files = CountingFiles()
    assert not is_key_proven(files, place / "100.seg", KEY)
    assert len(files.opened) == 1 + 2 * WITNESSES_MAX
    assert "99.seg" in files.opened  # the nearest
