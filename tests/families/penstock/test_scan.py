"""Walking over a log of generation 4: whole, torn, damaged, swapped, missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.families.damage import Damage, Severity
from penstock.families.penstock.location import detect, resolve
from penstock.families.penstock.read import queue_names, survey
from penstock.families.penstock.scan import Entry, Found, Sealed, scan
from support.record_directories import Changes, Entries, sample, write_directory, write_sync_point

SEGMENT = "log/00000000000000000001.log"


def found(root: Path) -> list[Found]:
    return list(scan(survey(resolve(root))))


def indexes(root: Path) -> list[int]:
    return [each.header.index for each in found(root) if isinstance(each, Entry)]


def damage(root: Path) -> list[tuple[str, str]]:
    all_found = found(root)
    return [(each.status, str(each.severity)) for each in all_found if isinstance(each, Damage)]


def offsets(root: Path) -> list[int]:
    return [each.offset for each in found(root) if isinstance(each, Entry)]


def change_file(path: Path, at: int, data: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(whole)


def flip(path: Path, at: int) -> None:
    change_file(path, at, bytes((path.read_bytes()[at] ^ 1,)))


def adds(*payloads: bytes) -> Entries:
    """Return a log of a queue with one add for each payload, as entries 3, 4 …"""
    made = Changes()
    made.begin()
    queue = made.queue("mail")
    for payload in payloads:
        made.add(queue, [payload])
    return made.entries


def test_a_whole_log_has_its_entries_and_footers(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", sample().entries, segment_size=1000, zeros=4096)
    assert detect(root)
    assert damage(root) == []
    assert indexes(root) == list(range(1, 15))
    assert sum(isinstance(each, Sealed) for each in found(root)) == 3
    assert queue_names(survey(resolve(root))) == {1: "mail", 2: "dead", 3: "gone", 4: ""}


@pytest.mark.parametrize("part", ["log", SEGMENT])
def test_a_part_of_a_directory_is_read_alone(tmp_path: Path, part: str) -> None:
    root = write_directory(tmp_path / "node", sample().entries, segment_size=1000)
    assert detect(root / part)
    assert indexes(root / part) == list(range(1, 15 if part == "log" else 6))


def test_other_files_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000001.log").write_bytes(b"no log")
    (tmp_path / "identity.json").write_bytes(b"{}\n")
    assert not detect(tmp_path)
    assert not detect(tmp_path / "00000000000000000001.log")
    assert not detect(tmp_path / "missing")


def test_a_damaged_magic_leaves_the_markers_of_the_records(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", sample().entries)
    flip(root / SEGMENT, 0)
    assert detect(root / SEGMENT)
    assert damage(root) == [("bad-header", "damaged")]
    assert indexes(root) == list(range(1, 15))


def test_a_torn_tail_is_harmless_behind_the_sync_point_and_lost_before_it(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", adds(b"a", b"b", b"c"), synced=4, zeros=4096)
    last = offsets(root)[-1]
    flip(root / SEGMENT, last + 70)
    assert damage(root) == [("torn", "harmless")]
    assert indexes(root) == [1, 2, 3, 4]
    write_sync_point(root, index=5, commit_floor=5)
    assert damage(root) == [("bad-checksum", "lost")]


def test_a_tail_without_a_sync_point_is_not_called_harmless(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", adds(b"a", b"b", b"c"), synced=4)
    (root / "sync-point").unlink()
    flip(root / SEGMENT, offsets(root)[-1] + 70)
    assert damage(root) == [("torn", "lost")]


def test_a_torn_batch_lacks_a_sector(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", adds(b"a", bytes([7]) * 2000, b"c"), synced=3)
    at = offsets(root)[3]
    flip(root / SEGMENT, at + 1000)
    assert damage(root) == [("bad-checksum", "lost")]  # nothing is missing: bits turned over
    change_file(root / SEGMENT, at - at % 512 + 1024, bytes(512))
    assert damage(root) == [("torn", "harmless")]
    assert indexes(root) == [1, 2, 3]


def test_bytes_behind_the_end_that_nobody_was_promised_are_harmless(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", adds(b"a"), zeros=4096)
    size = (root / SEGMENT).stat().st_size
    change_file(root / SEGMENT, size - 100, b"rest")
    assert damage(root) == [("leftover", "harmless")]


@pytest.mark.parametrize("at", [0, 4, 8, 9, 12, 13, 16, 24, 40, 44, 60, 70])
def test_behind_a_damaged_entry_the_log_goes_on(tmp_path: Path, at: int) -> None:
    root = write_directory(tmp_path / "node", adds(b"a", b"b", b"c", b"d"))
    flip(root / SEGMENT, offsets(root)[3] + at)
    (only,) = [each for each in found(root) if isinstance(each, Damage)]
    assert (only.severity, only.index) == (Severity.LOST, 4)
    assert indexes(root) == [1, 2, 3, 5, 6]


def test_records_inside_a_payload_are_not_taken_for_entries(tmp_path: Path) -> None:
    inner = write_directory(tmp_path / "inner", adds(*([b"forged"] * 20)))
    copy = (inner / SEGMENT).read_bytes()[64:]
    root = write_directory(tmp_path / "node", adds(b"a", copy, b"c"))
    for at in (0, 4, 8, 12, 16, 40, 44, 70):
        path = root / SEGMENT
        whole = path.read_bytes()
        flip(path, offsets(root)[3] + at)
        assert indexes(root) == [1, 2, 3, 5]
        path.write_bytes(whole)
    # The same payload in the last entry, wiped out at its beginning.
    last = write_directory(tmp_path / "last", adds(b"a", copy))
    change_file(last / SEGMENT, offsets(last)[3], bytes([7]) * 96)
    assert indexes(last) == [1, 2, 3]


def test_a_header_that_was_wiped_out_does_not_hide_the_entries_behind_it(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", adds(b"a", b"b", b"c", b"d"))
    change_file(root / SEGMENT, offsets(root)[3], bytes([7]) * 64)
    assert damage(root) == [("bad-record", "lost")]
    assert indexes(root) == [1, 2, 3, 5, 6]


def test_swapped_entries_are_found(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", adds(b"a", b"b", b"c", b"d"))
    path, at = root / SEGMENT, offsets(root)
    data = path.read_bytes()
    swapped = data[: at[3]] + data[at[4] : at[5]] + data[at[3] : at[4]] + data[at[5] :]
    path.write_bytes(swapped)
    assert damage(root) == [("bad-chain", "lost"), ("missing", "lost")]
    assert indexes(root) == [1, 2, 3, 4, 6]


def test_a_missing_entry_is_found(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", adds(b"a", b"b", b"c", b"d"))
    path, at = root / SEGMENT, offsets(root)
    data = path.read_bytes()
    path.write_bytes(data[: at[3]] + data[at[4] :])
    assert damage(root) == [("missing", "lost")]
    assert indexes(root) == [1, 2, 3, 5, 6]


def test_a_stale_entry_is_found(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", adds(b"a", b"b", b"c", b"d"))
    path, at = root / SEGMENT, offsets(root)
    data = path.read_bytes()
    path.write_bytes(data[: at[5]] + data[at[3] : at[4]] + data[at[5] :])
    assert damage(root) == [("bad-chain", "lost")]
    assert indexes(root) == [1, 2, 3, 4, 5, 6]


def test_a_missing_segment_is_found(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", sample().entries, segment_size=1000)
    (root / "log/00000000000000000006.log").unlink()
    assert damage(root) == [("missing", "lost")]


def test_a_damaged_footer_costs_nothing(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", sample().entries, segment_size=1000)
    path = root / SEGMENT
    for back in (1, 40, 200):
        whole = path.read_bytes()
        flip(path, len(whole) - back)
        assert damage(root) == [("bad-footer", "damaged")]
        assert indexes(root) == list(range(1, 15))
        path.write_bytes(whole)
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"PSK4")])  # a missing one is rebuilt
    assert damage(root) == []


def test_a_file_of_an_impossible_size_is_not_loaded(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", adds(b"a"))
    with (root / SEGMENT).open("r+b") as file:
        file.truncate(20 * 2**30)
    assert damage(root) == []
    with (root / SEGMENT).open("r+b") as file:
        file.seek(20 * 2**30 - 1)
        file.write(b"x")
    assert damage(root) == [("bad-segment", "lost")]
