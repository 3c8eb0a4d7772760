"""Fields of an index that cannot be: reported as damage, and their messages are kept."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from penstock.families.rabbitmq.location import resolve
from penstock.families.rabbitmq.read import Wanted
from penstock.families.rabbitmq.repair import Repaired, repair
from penstock.families.rabbitmq.rows import tasks
from penstock.families.rabbitmq.verify import verify
from penstock.formats.rabbitmq import journal
from penstock.formats.rabbitmq.journal import SequenceNumber
from support.command import penstock
from support.damage import flipped
from support.rabbitmq_directories import ENTRY_COUNT, Directory, journaled, publish, unpacked

WANTED = Wanted(as_of_us=time.time_ns() // 1000)
EXPIRY, BODY_SIZE = 24, 32  # offsets in a publish record of a journal
DAY_US = 86_400 * 1_000_000


def listed(path: Path) -> list[tuple[int, int | None]]:
    """Return sequence number and expiry of what the queues hold; both readers must agree."""
    rows = list(tasks(resolve(path), WANTED, report=lambda _: None))
    assert list(tasks(resolve(path), WANTED, report=lambda _: None, bulk_from=0)) == rows
    return [(row["seq"], row["expiry_us"]) for row in rows]


def damage(path: Path) -> list[tuple[str, int]]:
    return [(row["status"], row["seq"]) for row in verify(resolve(path))]


def made_of(path: Path, *records: bytes) -> Path:
    made = Directory(path)
    made.journal(made.queue(b"orders"), *records)
    return made.path


def repaired(path: Path, out: Path) -> tuple[list[dict[str, Any]], Repaired]:
    result = Repaired()
    return list(repair(resolve(path), out, result)), result


def test_a_flipped_bit_made_an_expiry_in_year_11103_that_killed_the_brokers_queue(
    tmp_path: Path,
) -> None:
    record = flipped(journaled(1, publish(1)), 8 * EXPIRY + 2)  # 2**58 microseconds
    source = made_of(tmp_path / "broker", journaled(0, publish(0)), record)
    assert damage(source) == [("bad-expiry", 1)]
    assert listed(source) == [(0, None), (1, None)]

    rows, result = repaired(source, tmp_path / "out")
    assert [(row["status"], row["seq"]) for row in rows] == [("bad-expiry", 1)]
    assert "11103" in rows[0]["reason"]
    assert (result.messages, result.left, result.mended) == (2, 0, {"bad-expiry": 1})
    assert damage(tmp_path / "out") == []
    (written,) = (tmp_path / "out").rglob("0.idx")
    assert (1 << 58).to_bytes(8, "big") not in written.read_bytes()
    outcome = penstock("repair", source, "--out", tmp_path / "by-command")
    assert outcome.code == 1
    assert "1 messages had an impossible expiry" in outcome.err


@pytest.mark.parametrize("bit", [0, 30, 49, 51, 52, 57, 58, 63])
def test_a_flipped_bit_in_no_expiry_made_a_message_expire(tmp_path: Path, bit: int) -> None:
    source = made_of(tmp_path / "broker", journaled(0, publish(0, expiry_us=1 << bit)))
    assert damage(source) == [("bad-expiry", 0)]
    assert listed(source) == [(0, None)]


def test_expiries_that_brokers_write_are_believed(tmp_path: Path) -> None:
    now = time.time_ns() // 1000
    soon, later = now + DAY_US, now + 3650 * DAY_US
    source = made_of(
        tmp_path / "broker",
        journaled(0, publish(0, expiry_us=soon)),
        journaled(1, publish(1, expiry_us=later)),
        journaled(2, publish(2, expiry_us=1_200_000_000_000_000)),  # expired in 2008
    )
    assert damage(source) == []
    assert listed(source) == [(0, soon), (1, later)]


def test_a_message_that_was_acknowledged_may_have_had_any_expiry(tmp_path: Path) -> None:
    done = [journal.encode_deliver(SequenceNumber(0)), journal.encode_ack(SequenceNumber(0))]
    source = made_of(tmp_path / "broker", journaled(0, publish(0, expiry_us=2**63)), *done)
    assert damage(source) == []


def test_an_impossible_expiry_in_version_2_is_damage(tmp_path: Path) -> None:
    source = unpacked("c7_queue_v2_kill9", tmp_path / "broker")
    count = len(listed(source))
    index = next(
        path for path in sorted(source.rglob("*.qi")) if listed(path.parent) and path.stem == "0"
    )
    data = bytearray(index.read_bytes())
    first = next(at for at in range(64, len(data), 32) if data[at])
    data[first + 24] ^= 0x04  # 2**58 microseconds
    index.write_bytes(bytes(data))
    assert [status for status, _ in damage(source)] == ["bad-expiry"]
    assert len(listed(source)) == count


def test_another_body_size_in_the_index_is_damage_and_the_message_is_kept(tmp_path: Path) -> None:
    record = flipped(journaled(0, publish(0, b"body")), 8 * BODY_SIZE)  # 2 GiB more
    source = made_of(tmp_path / "broker", record, journaled(1, publish(1)))
    assert damage(source) == [("bad-size", 0)]
    assert listed(source) == [(0, None), (1, None)]
    rows, result = repaired(source, tmp_path / "out")
    assert (len(rows), result.messages, result.mended) == (1, 2, {"bad-size": 1})
    assert damage(tmp_path / "out") == []


def test_an_impossible_sequence_number_is_damage_and_the_message_goes_to_the_end(
    tmp_path: Path,
) -> None:
    far = 2**61 + 5
    source = made_of(
        tmp_path / "broker",
        journaled(far, publish(9, b"far")),
        journaled(ENTRY_COUNT - 1, publish(1)),
        journal.encode_deliver(SequenceNumber(far)),
        journal.encode_ack(SequenceNumber(2**60)),
    )
    # Files are told from the first segment to the last.
    assert damage(source) == [("bad-ack", 2**60), ("bad-sequence", far)]
    assert listed(source) == [(ENTRY_COUNT - 1, None), (far, None)]
    _, result = repaired(source, tmp_path / "out")
    assert (result.messages, result.mended, result.left) == (2, {"bad-sequence": 1}, 1)
    assert listed(tmp_path / "out") == [(ENTRY_COUNT - 1, None), (ENTRY_COUNT, None)]
    assert damage(tmp_path / "out") == []
