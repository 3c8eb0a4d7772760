"""Damage as rows: every flipped bit is a row or changes nothing; the three modes; torn tails; bodies that mean nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CorruptData
from penstock.families.damage import Damage
from penstock.families.penstock.location import resolve
from penstock.families.penstock.read import survey
from penstock.families.penstock.scan import Entry, scan
from penstock.formats.records.changes import Empty, Stamp
from penstock.formats.records.header import Kind, encode_record, head_checksum
from penstock.formats.records.writer import record_of
from penstock.tables import read
from support.record_directories import Changes, sample, write_directory

FIRST = "log/00000000000000000001.log"


def rows(path: Path, **how: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = read(path, "entries", options=how).read_all().to_pylist()
    return found


def expected(path: Path) -> tuple[list[Any], list[Any]]:
    """Return the entries that the plain reader finds, and its damage within segments.

    What is missing between two segments is no row of a split; the pipeline's table ``gaps`` has it.
    """
    found = list(scan(survey(resolve(path))))
    entries = [each.header.index for each in found if isinstance(each, Entry)]
    damage = [
        (each.offset, each.size, each.status, each.index, str(each.severity))
        for each in found
        if isinstance(each, Damage) and (each.offset, each.status) != (0, "missing")
    ]
    return entries, damage


def told(path: Path, **how: object) -> tuple[list[Any], list[Any]]:
    found = rows(path, **how)
    entries = [row["log_index"] for row in found if row["kind"] == "entry"]
    damage = [
        (row["offset"], row["size"], row["status"], row["log_index"], row["severity"])
        for row in found
        if row["kind"] == "damage"
    ]
    return list(dict.fromkeys(entries)), damage


@pytest.mark.parametrize("segment_size", [400, 2**20])
def test_every_flipped_bit_gives_the_rows_of_the_plain_reader(
    tmp_path: Path, segment_size: int
) -> None:
    node = write_directory(tmp_path / "node", sample().entries, segment_size=segment_size)
    for file in sorted((node / "log").iterdir()):
        whole = file.read_bytes()
        for place in range(0, len(whole), 5):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << (place % 8)
            file.write_bytes(damaged)
            assert told(node) == expected(node), (file.name, place)
        file.write_bytes(whole)


def test_every_truncation_gives_the_rows_of_the_plain_reader(tmp_path: Path) -> None:
    node = write_directory(tmp_path / "node", sample().entries, synced=4)
    file = node / FIRST
    whole = file.read_bytes()
    for size in range(64, len(whole), 24):
        file.write_bytes(whole[:size])
        assert told(node) == expected(node), size


def test_modes_report_leave_out_or_fail(tmp_path: Path) -> None:
    node = write_directory(tmp_path / "node", sample().entries)
    file = node / FIRST
    data = bytearray(file.read_bytes())
    data[760] ^= 1  # in the body of entry 5
    file.write_bytes(data)
    entries, (damage,) = told(node)
    assert damage[2:4] == ("bad-checksum", 5)
    assert entries == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert told(node, mode="DROPMALFORMED") == (entries, [])
    with pytest.raises(CorruptData):
        rows(node, mode="FAILFAST")
    # Damage behind what is wanted is not in the way.
    assert told(node, mode="FAILFAST", endingIndex=4) == ([1, 2, 3, 4], [])
    changes = read(node, "changes").read_all().column("log_index").to_pylist()
    assert 5 not in changes
    assert 6 in changes


def test_a_torn_tail_is_harmless_and_what_was_synced_is_not(tmp_path: Path) -> None:
    made = sample()
    for synced, severity in ((4, "harmless"), (14, "lost")):
        node = write_directory(tmp_path / f"node{synced}", made.entries, synced=synced)
        file = node / FIRST
        file.write_bytes(file.read_bytes()[:-40])
        _, (damage,) = told(node)
        assert damage[4] == severity


def test_a_body_that_means_nothing_is_damage_and_the_others_are_rows(tmp_path: Path) -> None:
    made = Changes()
    made.begin()
    queue = made.queue("mail")
    made.add(queue, [b"before"])
    node = write_directory(tmp_path / "node", made.entries)
    file = node / FIRST
    data = file.read_bytes()
    stamp = made.entries[-1][0]
    previous = head_checksum(data[data.rfind(b"PSK4") :])
    bad = encode_record(
        Kind.ADD, bytes(64), index=stamp.index + 1, term=stamp.term, time_ms=stamp.time_ms,
        previous=previous, queue_id=queue, first_id=2,
    )  # fmt: skip
    after = record_of(
        Empty(), Stamp(stamp.index + 2, stamp.term, stamp.time_ms), head_checksum(bad)
    )
    file.write_bytes(data + bad + after)
    entries, damage = told(node)
    assert entries == [1, 2, 3, 5]
    assert [(each[2], each[3]) for each in damage] == [("bad-record", 4)]


def test_a_damaged_snapshot_is_a_row(tmp_path: Path) -> None:
    node = write_directory(tmp_path / "node", sample().entries, snapshots=[9])
    (file,) = (node / "snapshots").iterdir()
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    assert [row["status"] for row in rows(node) if row["kind"] == "damage"] == ["bad-snapshot"]
