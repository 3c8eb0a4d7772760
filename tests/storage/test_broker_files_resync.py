"""Behind damage in an index the scan goes on at the next record that its message proves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from penstock.families.damage import Damage
from penstock.families.rabbitmq.dump import dump
from penstock.families.rabbitmq.location import resolve
from penstock.families.rabbitmq.read import Wanted
from penstock.families.rabbitmq.repair import Repaired, repair
from penstock.families.rabbitmq.rows import tasks
from penstock.families.rabbitmq.verify import verify
from penstock.formats.rabbitmq import journal, segment
from penstock.formats.rabbitmq.journal import SequenceNumber
from penstock.formats.rabbitmq.names import encode_config
from penstock.formats.rabbitmq.terms import Atom, Map, encode_term
from penstock.storage import broker_files
from support.command import penstock
from support.damage import flipped
from support.rabbitmq_directories import Directory, journaled, publish, stored

NEVER = Wanted(as_of_us=0)
COUNT = 300
LENGTH = {"journal": 36, "segment": 30}  # offsets of the length in a publish record


def index(kind: str, *, delivered: bool = True, count: int = COUNT) -> list[bytes]:
    """Return the records of an index with ``count`` embedded messages: each publish, then each deliver."""
    records = []
    for number in range(count):
        record = publish(number, b"body %d" % number)
        sequence = SequenceNumber(number)
        if kind == "journal":
            records.append(journaled(number, record))
            deliver = journal.encode_deliver(sequence)
        else:
            records.append(segment.encode_publish(number, record))
            deliver = segment.encode_deliver_or_ack(number)
        if delivered:
            records.append(deliver)
    return records


def written(path: Path, kind: str, data: bytes) -> Path:
    made = Directory(path)
    (made.home / ".config").write_bytes(encode_config(16_384))
    queue = made.queue(b"orders")
    if kind == "journal":
        made.journal(queue, data)
    else:
        made.segment(queue, 0, data)
    return made.path


def listed(path: Path) -> tuple[list[int], list[Damage]]:
    """Return the numbers of the messages that are there, and what was told; both readers must agree."""
    met: list[Damage] = []
    rows = list(tasks(resolve(path), NEVER, report=met.append))
    told: list[Damage] = []
    assert list(tasks(resolve(path), NEVER, report=told.append, bulk_from=0)) == rows
    assert sorted(told, key=repr) == sorted(met, key=repr)
    return [row["seq"] for row in rows], met


@pytest.mark.parametrize(
    ("kind", "bit"), [("journal", 0), ("journal", 2), ("journal", 3), ("segment", 0)]
)
def test_one_flipped_bit_in_the_head_of_a_record_cost_all_messages_behind_it(
    tmp_path: Path, kind: str, bit: int
) -> None:
    records = index(kind)
    records[20] = flipped(records[20], 7 - bit)
    found, met = listed(written(tmp_path / "broker", kind, b"".join(records)))
    assert len(set(found) & set(range(COUNT))) >= COUNT - 1
    assert [number for number in range(COUNT) if number not in found] in ([], [10])
    assert any(not damage.is_harmless for damage in met)


@pytest.mark.parametrize("kind", ["journal", "segment"])
@pytest.mark.parametrize("bit", [0, 1, 5, 7, 9, 12, 15, 20, 31])
def test_one_flipped_bit_in_the_length_of_a_record_costs_nothing(
    tmp_path: Path, kind: str, bit: int
) -> None:
    records = index(kind)
    place = LENGTH[kind] + 3 - bit // 8
    records[20] = flipped(records[20], 8 * place + bit % 8)
    source = written(tmp_path / "broker", kind, b"".join(records))
    found, met = listed(source)
    assert found == list(range(COUNT))
    assert [(damage.status, damage.sequence) for damage in met] == [("bad-length", 10)]
    assert [row["status"] for row in dump(resolve(source)) if row["status"] != "ok"] == [
        "bad-length"
    ]
    result = Repaired()
    assert [row["status"] for row in repair(resolve(source), tmp_path / "out", result)] == [
        "bad-length"
    ]
    assert (result.messages, listed(tmp_path / "out")) == (COUNT, (found, []))


@pytest.mark.parametrize("falls", [False, True])
def test_the_entries_that_were_skipped_are_counted(tmp_path: Path, falls: bool) -> None:
    """Brokers write the messages of a flush from the last to the first."""
    records = index("segment", delivered=False)
    numbers = list(range(COUNT))
    if falls:
        records, numbers = records[::-1], numbers[::-1]
    lost = b"".join(records[10:15])
    data = b"".join(records[:10]) + bytes(len(lost)) + b"".join(records[15:])
    source = written(tmp_path / "broker", "segment", data)
    found, met = listed(source)
    assert found == sorted(numbers[:10] + numbers[15:])
    (damage,) = met
    offset = len(b"".join(records[:10]))
    assert (damage.status, damage.offset, damage.size) == ("bad-record", offset, len(lost))
    assert "5 entries skipped" in damage.reason
    outcome = penstock("verify", source)
    assert (outcome.code, [row["status"] for row in outcome.rows]) == (1, ["bad-record"])


def test_bytes_in_a_damaged_stretch_do_not_acknowledge_messages(tmp_path: Path) -> None:
    """What looks like two acks of message 3 stands between damage and the next record."""
    records = index("segment", delivered=False, count=8)
    acks = segment.encode_deliver_or_ack(3) * 2
    data = b"".join([*records[:5], acks, bytes(4), acks, *records[5:]])
    found, met = listed(written(tmp_path / "broker", "segment", data))
    assert found == list(range(8))
    (damage,) = met
    assert "2 delivers or acks before it are in doubt" in damage.reason


def test_acks_of_a_journal_count_before_damage(tmp_path: Path) -> None:
    records = index("journal", delivered=False, count=8)
    done = [journal.encode_deliver(SequenceNumber(3)), journal.encode_ack(SequenceNumber(3))]
    data = b"".join([*records[:5], *done, bytes(64), *records[5:]])
    found, _ = listed(written(tmp_path / "broker", "journal", data))
    assert found == [0, 1, 2, 4, 5, 6, 7]


def test_a_message_that_is_damaged_does_not_move_the_records_behind_it(tmp_path: Path) -> None:
    records = index("segment", count=8)
    place = segment.PUBLISH_SIZE + 1  # the tag of the message's term
    records[4] = flipped(records[4], 8 * place)
    acked = segment.encode_deliver_or_ack(1)
    data = b"".join([*records[:6], acked, *records[6:]])
    found, met = listed(written(tmp_path / "broker", "segment", data))
    assert found == [0, 3, 4, 5, 6, 7]
    assert [(damage.status, damage.sequence) for damage in met] == [("bad-message", 2)]


def test_messages_of_a_kind_that_is_not_read_are_no_damage_to_the_index(tmp_path: Path) -> None:
    term = encode_term((Atom("mc"), Atom("mc_other"), b"content", Map(())))
    other = [segment.encode_publish(n, replace(publish(n), embedded=term)) for n in range(10, 13)]
    records = index("segment", delivered=False, count=8)
    acks = segment.encode_deliver_or_ack(1) * 2
    data = b"".join([*records[:4], *other, acks, *records[4:]])
    found, met = listed(written(tmp_path / "broker", "segment", data))
    assert found == [0, 2, 3, 4, 5, 6, 7]
    assert {damage.sequence for damage in met} == {10, 11, 12}
    assert "bad-record" not in {damage.status for damage in met}


def test_a_message_in_place_of_another_was_called_harmless(tmp_path: Path) -> None:
    """One flipped bit in a relative number, and two messages have one number."""
    records = index("segment", delivered=False, count=8)
    records[4] = flipped(records[4], 8)  # the number 4 becomes 5
    records[4], records[5] = records[5], records[4]
    source = written(tmp_path / "broker", "segment", b"".join(records))
    found, met = listed(source)
    assert found == [0, 1, 2, 3, 5, 6, 7]
    assert [(damage.status, damage.is_harmless) for damage in met] == [("conflicting", False)]
    assert penstock("verify", source).code == 1


def test_messages_in_the_store_behind_damage_are_found_again(tmp_path: Path) -> None:
    records = index("segment", delivered=False, count=6)
    records.insert(4, segment.encode_publish(100, publish(100, b"large", stored=True)))
    records[1] = flipped(records[1], 7)
    path = written(tmp_path / "broker", "segment", b"".join(records))
    home = next(path.glob("msg_stores/vhosts/*"))
    (home / "msg_store_persistent" / "0.rdq").write_bytes(stored(100, b"large"))
    found, _ = listed(path)
    assert found == [0, 2, 3, 4, 5, 100]


@pytest.mark.parametrize("seed", range(40))
def test_random_flips_cost_the_message_that_they_hit_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    kind = random.choice(("journal", "segment"))
    monkeypatch.setattr(broker_files, "WINDOW", random.choice((256, 4096, 2**22)))
    data = b"".join(index(kind, delivered=False, count=60))
    data = flipped(data, random.randrange(8 * len(data)))
    path = written(tmp_path / "broker", kind, data)
    found, _ = listed(path)
    assert len(set(range(60)) - set(found)) <= 1, seed
    assert all(row["status"] == "ok" or row["reason"] for row in verify(resolve(path)))
