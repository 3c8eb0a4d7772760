"""What ``verify`` checks beyond checksums: footers, snapshots, the small files, changes without effect."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from penstock.formats.records.changes import DeleteQueue
from penstock.formats.records.hard_state import encode_hard_state
from penstock.formats.records.header import HEADER_SIZE, encode_record, head_checksum
from penstock.formats.records.identity import Identity, encode_identity
from penstock.formats.records.segment import FileHeader, encode_file_header
from penstock.formats.records.writer import record_of
from penstock.model import HardState, Term
from support.record_directories import (
    CLUSTER,
    INCARNATION,
    Changes,
    sample,
    write_directory,
    write_sync_point,
)
from support.record_listing import dumped, listed, verified

SEGMENT = "log/00000000000000000001.log"


def found(root: Path) -> list[tuple[str, str]]:
    return [(row["status"], row["severity"]) for row in verified(root)]


def raw_log(root: Path, *records: bytes) -> Path:
    """Write a directory whose only segment has these records behind the members."""
    made = Changes()
    made.begin()
    write_directory(root, made.entries, synced=0)
    with (root / SEGMENT).open("ab") as file:
        file.write(b"".join(records))
    return root


def record(kind: int, body: bytes = b"", *, previous: int, index: int = 2, **fields: int) -> bytes:
    return encode_record(kind, body, index=index, term=1, time_ms=2**41, previous=previous, **fields)  # fmt: skip


def last_checksum(root: Path) -> int:
    data = (root / SEGMENT).read_bytes()
    return head_checksum(data[64:])


def test_an_unknown_kind_that_may_be_skipped_is_harmless(tmp_path: Path) -> None:
    root = raw_log(tmp_path / "node")
    with (root / SEGMENT).open("ab") as file:
        file.write(record(77, bytes(8), previous=last_checksum(root), flags=0x80))
    assert found(root) == [("unknown-kind", "harmless")]
    assert listed(root) == []


def test_another_unknown_kind_is_damage_and_the_rest_is_read(tmp_path: Path) -> None:
    root = raw_log(tmp_path / "node")
    unknown = record(77, bytes(8), previous=last_checksum(root))
    empty = record(0, previous=head_checksum(unknown), index=3)
    with (root / SEGMENT).open("ab") as file:
        file.write(unknown + empty)
    assert found(root) == [("bad-change", "lost")]
    assert [row["op"] for row in dumped(root) if row["kind"] == "entry" and row["status"] == "ok"] == ["members", "empty"]  # fmt: skip


def test_a_change_without_effect_is_harmless(tmp_path: Path) -> None:
    made = sample()
    made.append(DeleteQueue(99))
    made.remove(1, range(50, 53))
    root = write_directory(tmp_path / "node", made.entries)
    assert found(root) == [("no-effect", "harmless")] * 2


def test_falling_terms_and_times_are_damage(tmp_path: Path) -> None:
    root = raw_log(tmp_path / "node")
    later = record(0, previous=last_checksum(root))
    earlier = encode_record(0, b"", index=3, term=0, time_ms=5, previous=head_checksum(later))  # fmt: skip
    with (root / SEGMENT).open("ab") as file:
        file.write(later + earlier)
    assert found(root) == [("falling-term", "damaged"), ("falling-time", "damaged")]


def test_a_footer_that_says_something_else_is_found(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", sample().entries, segment_size=1000)
    path = root / SEGMENT
    data = path.read_bytes()
    at = data.rindex(b"PSK4")
    header = data[at : at + HEADER_SIZE]
    body = bytearray(data[at + HEADER_SIZE :])
    body[8] += 1  # the number of entries
    index, term, time_ms = struct.unpack_from("<qqq", header, 16)
    (previous,) = struct.unpack_from("<I", header, 44)
    forged = encode_record(131, bytes(body), index=index, term=term, time_ms=time_ms, previous=previous)  # fmt: skip
    path.write_bytes(data[:at] + forged)
    assert found(root) == [("bad-footer", "damaged")]


def test_a_snapshot_of_another_state_is_found(tmp_path: Path) -> None:
    name = "snapshots/00000000000000000006.snap"
    root = write_directory(tmp_path / "node", sample().entries, snapshots=(6,))
    other = sample()
    other.entries[3] = other.entries[3][0], other.entries[4][1]
    write_directory(tmp_path / "other", other.entries, snapshots=(6,))
    (root / name).write_bytes((tmp_path / "other" / name).read_bytes())
    assert found(root) == [("disagreement", "damaged")] * 2  # its last entry and its state


def test_a_hard_state_behind_the_log_is_found(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", sample().entries)
    (root / "hard-state").write_bytes(encode_hard_state(HardState(term=Term(1))))
    assert found(root) == [("disagreement", "damaged")]


def test_a_sync_point_beyond_the_log_is_lost_entries(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", sample().entries)
    write_sync_point(root, index=20, commit_floor=20)
    assert found(root) == [("missing", "lost")]


def test_a_directory_of_another_cluster_is_found(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", sample().entries)
    other = Identity(node=1, incarnation=INCARNATION, cluster_id=bytes(16))
    (root / "identity.json").write_bytes(encode_identity(other))
    assert found(root) == [("disagreement", "damaged")]


def test_entries_between_snapshot_and_log_that_are_missing_are_lost(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", sample().entries, snapshots=(6,), first=9)
    assert found(root) == [("missing", "lost")]


def test_a_torn_sector_of_the_sync_point_is_harmless(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", sample().entries)
    path = root / "sync-point"
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    assert found(root) == [("torn", "harmless")]


@pytest.mark.parametrize("content", [b"", bytes(4096)])
def test_a_segment_that_was_prepared_ahead_is_harmless(tmp_path: Path, content: bytes) -> None:
    root = write_directory(tmp_path / "node", sample().entries)
    (root / "log/00000000000000000015.log").write_bytes(content)
    assert found(root) == [("bad-header", "harmless")]
    assert len(listed(root)) == 8


def test_a_log_that_begins_elsewhere_must_continue_its_snapshot(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", sample().entries, snapshots=(6,), first=7)
    assert found(root) == []
    stamp, change = sample().entries[6]
    data = encode_file_header(FileHeader(first_index=7, cluster_id=CLUSTER))
    (root / "log/00000000000000000007.log").write_bytes(data + record_of(change, stamp, 77))
    write_sync_point(root, index=7, commit_floor=7)
    assert found(root)[0] == ("bad-chain", "lost")
