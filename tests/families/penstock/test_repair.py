"""Salvage: what is whole is taken along exactly, what is not is a row, and the result is a whole directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import PathRefused
from penstock.families.penstock.location import resolve
from penstock.families.penstock.read import survey
from penstock.families.penstock.scan import Entry, scan
from support.record_directories import Changes, sample, write_directory
from support.record_listing import listed, repaired, verified

SEGMENT = "log/00000000000000000001.log"


def offsets(root: Path) -> list[int]:
    return [each.offset for each in scan(survey(resolve(root))) if isinstance(each, Entry)]


def records(root: Path) -> list[bytes]:
    return [each.record() for each in scan(survey(resolve(root))) if isinstance(each, Entry)]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def adds(*payloads: bytes) -> Changes:
    made = Changes()
    made.begin()
    queue = made.queue("mail")
    for payload in payloads:
        made.add(queue, [payload])
    return made


def payloads(root: Path) -> list[str]:
    return [row["payload_text"] for row in listed(root)]


def test_a_whole_directory_is_copied_record_by_record(tmp_path: Path) -> None:
    root = write_directory(
        tmp_path / "node", sample().entries, segment_size=1000, snapshots=(6, 10)
    )
    assert repaired(root, tmp_path / "out") == []
    assert records(tmp_path / "out") == records(root)
    assert verified(tmp_path / "out") == []
    assert listed(tmp_path / "out") == listed(root)


def test_a_torn_tail_is_left_behind(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", adds(b"a", b"b").entries, synced=3)
    path = root / SEGMENT
    path.write_bytes(path.read_bytes()[:-3])
    assert repaired(root, tmp_path / "out") == []
    assert payloads(tmp_path / "out") == ["a"]
    assert verified(tmp_path / "out") == []


@pytest.mark.parametrize("at", [0, 4, 8, 12, 40, 44, 70])
def test_all_but_the_damaged_entry_is_folded_into_a_snapshot(tmp_path: Path, at: int) -> None:
    root = write_directory(tmp_path / "node", adds(b"a", b"b", b"c").entries)
    flip(root / SEGMENT, offsets(root)[3] + at)
    (row,) = repaired(root, tmp_path / "out")
    assert (row["severity"], row["index"]) == ("lost", 4)
    assert payloads(tmp_path / "out") == ["a", "c"]
    assert verified(tmp_path / "out") == []


def test_damage_in_front_of_a_snapshot_costs_no_task(tmp_path: Path) -> None:
    made = adds(b"a", b"b", b"c", b"d")
    root = write_directory(tmp_path / "node", made.entries, snapshots=(5,))
    before = listed(root)
    flip(root / SEGMENT, offsets(root)[3] + 70)
    (row,) = repaired(root, tmp_path / "out")
    assert row["status"] == "bad-checksum"
    assert listed(tmp_path / "out") == before
    assert verified(tmp_path / "out") == []
    assert [path.name for path in (tmp_path / "out/log").iterdir()] == ["00000000000000000005.log"]


def test_tasks_of_a_queue_whose_creation_was_lost_are_kept(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", adds(b"a", b"b").entries)
    flip(root / SEGMENT, offsets(root)[1] + 70)
    assert [row["index"] for row in repaired(root, tmp_path / "out")] == [2]
    assert payloads(tmp_path / "out") == ["a", "b"]
    assert verified(tmp_path / "out") == []


def test_a_damaged_snapshot_gives_what_is_whole_of_it(tmp_path: Path) -> None:
    made = adds(b"a")
    other = made.queue("other")
    made.add(other, [b"kept"])
    made.add(other, [b"later"])
    root = write_directory(tmp_path / "node", made.entries, snapshots=(5,), first=6)
    path = root / "snapshots/00000000000000000005.snap"
    flip(path, path.read_bytes().index(b"a\x00\x00\x00\x00\x00\x00\x00PSK4"))
    (row,) = repaired(root, tmp_path / "out")
    assert row["status"] == "bad-snapshot"
    assert payloads(tmp_path / "out") == ["kept", "later"]
    assert verified(tmp_path / "out") == []


@pytest.mark.parametrize("name", ["identity.json", "hard-state", "sync-point"])
def test_a_missing_small_file_is_made_again(tmp_path: Path, name: str) -> None:
    root = write_directory(tmp_path / "node", sample().entries, snapshots=(10,))
    before = listed(root)
    (root / name).unlink()
    assert repaired(root, tmp_path / "out") == []
    assert verified(tmp_path / "out") == []
    assert listed(tmp_path / "out") == before


def test_every_damaged_byte_leaves_a_whole_directory_without_invented_tasks(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", adds(b"a", b"b").entries, snapshots=(3,))
    for path in (root / SEGMENT, root / "snapshots/00000000000000000003.snap"):
        whole = path.read_bytes()
        for at in range(len(whole)):
            flip(path, at)
            out = tmp_path / f"{path.name}-{at}"
            repaired(root, out)
            assert verified(out) == [], f"{path.name}, byte {at}"
            assert {"a", "b"} >= set(payloads(out)), f"{path.name}, byte {at}"
            assert "a" in payloads(out), f"{path.name}, byte {at}"  # snapshot or log has it
            path.write_bytes(whole)


def test_a_repair_is_never_in_place(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", sample().entries)
    with pytest.raises(PathRefused):
        repaired(root, root / "out")
    with pytest.raises(PathRefused):
        repaired(root, root)
