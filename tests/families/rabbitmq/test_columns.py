"""Reading in columns gives what reading one by one gives: the same messages, rows and found_damage."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.families.damage import Damage
from penstock.families.rabbitmq import columns, read
from penstock.families.rabbitmq.columns import Messages, read_columns
from penstock.families.rabbitmq.location import Location, resolve
from penstock.families.rabbitmq.read import Bodies, Held, Wanted, read_queue
from penstock.families.rabbitmq.rows import tasks
from penstock.formats.rabbitmq import journal, segment
from penstock.formats.rabbitmq.journal import Publish, SequenceNumber
from penstock.formats.rabbitmq.message_scan import routing_keys
from penstock.formats.rabbitmq.messages import Content
from penstock.formats.rabbitmq.properties import Header, Kind, Properties, Value, encode_properties
from penstock.formats.rabbitmq.terms import Atom, Map
from penstock.storage.broker_files import scan_index_columns
from penstock.storage.files import OpenFiles, opened
from support.damage import random_damage
from support.rabbitmq_directories import (
    ENTRY_COUNT,
    NAMES,
    Directory,
    journaled,
    message,
    message_id,
    publish,
    stored,
    unpacked,
)
from support.rabbitmq_reading import JOURNAL, SEGMENT, damaged, rows_of, scan_segment_columns

NEVER = Wanted(as_of_us=0)
WANTED = [
    NEVER,
    Wanted(as_of_us=2**62, transient=True),
    Wanted(as_of_us=10**15 + 150, expired=True),
]

Seen = tuple[Any, ...]


def seen(held: Held) -> Seen:
    indexed, found = held
    return (
        indexed.sequence, indexed.path, indexed.offset, indexed.is_persistent,
        indexed.is_delivered, indexed.expiry_us, found.vhost, found.exchange, found.routing_keys,
        found.content.property_block, found.content.body, found.id,
    )  # fmt: skip


def seen_in_columns(messages: Messages) -> Iterator[Seen]:
    """Yield what the columns say of each message."""
    data, parts = messages.data.tobytes(), messages.parts

    def stretch(name: str, row: int) -> bytes:
        offset = int(getattr(parts, f"{name}_offset")[row])
        return data[offset : offset + int(getattr(parts, f"{name}_length")[row])]

    for row in range(len(messages)):
        delivered = int(messages.delivered[row])
        id_offset = int(parts.id_offset[row])
        yield (
            int(messages.sequence[row]),
            messages.paths[int(messages.path[row])],
            int(messages.offset[row]),
            bool(messages.is_persistent[row]),
            None if delivered < 0 else bool(delivered),
            int(messages.expiry_us[row]),
            None if parts.vhost_length[row] < 0 else stretch("vhost", row),
            stretch("exchange", row),
            routing_keys(messages.data, parts, row),
            stretch("properties", row),
            stretch("body", row),
            None if id_offset < 0 else data[id_offset : id_offset + 16],
        )


def check(
    location: Location, wanted: Wanted, files: type[OpenFiles] = OpenFiles
) -> tuple[list[Seen], list[Damage]]:
    """Hold columns to what is read one by one; return what both find."""
    found: list[Seen] = []
    found_damage: list[Damage] = []
    expected: list[Seen] = []
    expected_damage: list[Damage] = []
    for vhost in location.vhosts:
        # What is told of the stores themselves is told when the first message is looked for.
        of_stores: tuple[list[Damage], list[Damage]] = ([], [])
        with files() as one, files() as other:
            bodies = Bodies(vhost=vhost, files=one, report=of_stores[0].append)
            again = Bodies(vhost=vhost, files=other, report=of_stores[1].append)
            for queue in vhost.queues:
                read = read_queue(queue, bodies, wanted, report=expected_damage.append)
                expected += map(seen, read)
                for batch in read_columns(queue, again, wanted, report=found_damage.append):
                    assert len(batch) > 0
                    found += seen_in_columns(batch)
        assert of_stores[0] == of_stores[1]
    assert found == expected
    assert found_damage == expected_damage
    return found, found_damage


def check_rows(location: Location, wanted: Wanted) -> None:
    """Rows out of columns are those of messages that are read one by one, and the same is reported."""
    expected: list[Damage] = []
    rows = list(tasks(location, wanted, report=expected.append, bulk_from=location.size + 1))
    met: list[Damage] = []
    found = list(tasks(location, wanted, report=met.append, bulk_from=0))
    assert found == rows
    assert [list(row) for row in found] == [list(row) for row in rows]  # also the order of names
    # A batch is read before its rows are made, so properties are reported later than one by one.
    assert sorted(met, key=repr) == sorted(expected, key=repr)


# --- what real brokers left ----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_real_directory_is_read_alike(tmp_path: Path, name: str) -> None:
    location = resolve(unpacked(name, tmp_path))
    for wanted in WANTED:
        check(location, wanted)
        check_rows(location, wanted)


@pytest.mark.parametrize("name", ["c4_props_ttl_priority_kill9", "c8_damage_torn_segment"])
def test_small_batches_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(columns, "BATCH_SIZE", 1000)
    monkeypatch.setattr(columns, "BATCH_ROWS", 10)
    monkeypatch.setattr(columns, "GAP_MAX", 0)
    location = resolve(unpacked(name, tmp_path))
    check(location, NEVER)
    check_rows(location, NEVER)


# --- directories by seed -------------------------------------------------------------------------


def random_properties(random: Random) -> bytes | Properties:
    """Return properties: plain ones, such that need thought, a term, or damage."""
    table = (
        Header(b"key", Value(Kind.INT64, random.getrandbits(40))),
        Header(b"caf\xc3\xa9", Value(Kind.TEXT, random.choice((b"plain", b'"', b"\xff")))),
        Header(b"rate", Value(Kind.FLOAT, 0.1)),
    )
    found = Properties(
        headers=random.choice((None, table[:1], table)),
        delivery_mode=random.choice((None, 2)),
        message_id=random.choice((None, b"m-1", "für".encode())),
        timestamp=random.choice((None, 1_700_000_000)),
    )
    if random.random() < 0.2:
        return found
    block = encode_properties(found)
    return block[:-1] if random.random() < 0.1 else block


def random_publish(random: Random, number: int) -> tuple[Publish, bytes]:
    """Return what an index says of a message, and the record of a store if it is in one."""
    body = random.randbytes(random.choice((0, 1, 2, 3, 50, random.randrange(300))))
    fragments = (body,) if random.random() < 0.8 else (body[:5], body[5:])
    content = Content(stored_properties=random_properties(random), fragments=fragments)
    changes: dict[str, Any] = {
        "content": content,
        "exchange": random.choice((b"", b"topics", b"\xfe")),
        "routing_keys": tuple(random.choice(((b"orders",), (b"a", b"b\xff"), ()))),
        "is_persistent": random.random() < 0.8,
    }
    if random.random() < 0.1:
        annotations = Map(((Atom("x"), b"topics"), (Atom("id"), message_id(number))))
        changes |= {"vhost": None, "annotations": annotations}
    is_stored = random.random() < 0.3
    record = publish(
        number,
        body,
        expiry_us=random.choice((0, 0, 10**15 + 100, 10**15 + 200, 100, 2**64 - 1)),
        stored=is_stored,
        **changes,
    )
    return record, stored(number, body, **changes) if is_stored else b""


def random_queue(made: Directory, random: Random, first: int, *, store: list[bytes]) -> None:
    """Write a queue with journal and segments; its messages in the store are added to it."""
    queue = made.queue(b"q%d" % first, priority=random.choice((None, 0, 3)))
    segments: dict[int, list[bytes]] = {}
    records: list[bytes] = []
    for sequence in sorted(random.sample(range(8 * ENTRY_COUNT), random.randrange(60))):
        record, term = random_publish(random, first + sequence)
        store.append(term)
        words = random.choice(("p", "pd", "pd", "pda"))
        flushed = random.randint(0, len(words))
        number = SequenceNumber(sequence)
        relative = sequence % ENTRY_COUNT
        for at, word in enumerate(words):
            if at < flushed or (at == flushed and random.random() < 0.03):
                segments.setdefault(sequence // ENTRY_COUNT, []).append(
                    segment.encode_publish(relative, record)
                    if word == "p"
                    else segment.encode_deliver_or_ack(relative)
                )
            if at >= flushed:
                records.append(
                    journaled(number, record)
                    if word == "p"
                    else journal.encode_deliver(number)
                    if word == "d"
                    else journal.encode_ack(number)
                )
    for number_, found in segments.items():
        data = b"".join(found)
        if random.random() < 0.1:
            data = random_damage(random, data, start=0)
        made.segment(queue, number_, data)
    data = b"".join(records)
    if random.random() < 0.2:
        data = random_damage(random, data, start=0)
    made.journal(queue, data)


def random_directory(path: Path, random: Random) -> Location:
    """Write a directory in which some things are missing, damaged, or of a rare shape."""
    made = Directory(path)
    store: list[bytes] = []
    for first in (0, 1000):
        random_queue(made, random, first, store=store)
    random.shuffle(store)
    store = store[: len(store) - random.randrange(3)]
    half = len(store) // 2
    data = b"".join(store[:half])
    if random.random() < 0.2:
        data = random_damage(random, data, start=0)
    made.store("0.rdq", data)
    made.store("1.rdq", *store[half:], *store[:2])
    made.store("0.rdq", *store[:half], kind="transient")
    return resolve(path)


@pytest.mark.parametrize("seed", range(25))
def test_a_random_directory_is_read_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    location = random_directory(tmp_path / "node", random)
    monkeypatch.setattr(columns, "BATCH_SIZE", random.choice((200, 2000, 2**20)))
    monkeypatch.setattr(columns, "BATCH_ROWS", random.choice((1, 20, 16_384)))
    monkeypatch.setattr(columns, "PARTS_MAX", random.choice((1, 2, 1024)))
    for wanted in WANTED:
        check(location, wanted)
        check_rows(location, wanted)


# --- while somebody writes -----------------------------------------------------------------------


class CutFiles(OpenFiles):
    """Files that were cut behind their first 500 bytes since they were scanned."""

    def read(self, path: Path, offset: int, size: int) -> bytes:
        return super().read(path, offset, max(0, min(size, 500 - offset)))


class GoneFiles(OpenFiles):
    """Files that cannot be read any more."""

    def read(self, path: Path, offset: int, size: int) -> bytes:
        raise FileNotFoundError(f"{size} bytes at {offset} of {path}")


class OtherFiles(OpenFiles):
    """Files in which other records stand now than when they were scanned."""

    def read(self, path: Path, offset: int, size: int) -> bytes:
        data = bytearray(super().read(path, offset, size))
        for at in range(offset, offset + len(data)):
            data[at - offset] ^= at % 97 == 13
        return bytes(data)


@pytest.mark.parametrize("files", [CutFiles, GoneFiles, OtherFiles])
@pytest.mark.parametrize("name", ["c1_small_embedded_live", "c6_fanout_refcount_kill9"])
def test_files_that_change_meanwhile_are_read_alike(
    tmp_path: Path, name: str, files: type[OpenFiles]
) -> None:
    location = resolve(unpacked(name, tmp_path))
    _, found_damage = check(location, NEVER, files)
    assert found_damage


# --- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 5, 63, 64])
def test_more_records_than_are_held_are_left_out_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    for module in (columns, read):
        monkeypatch.setattr(module, "RECORDS_MAX", most)
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    published = [segment.encode_publish(n, publish(n)) for n in range(ENTRY_COUNT)]
    made.segment(queue, 0, *published, bytes(7))
    made.journal(queue, *(journaled(ENTRY_COUNT + n, publish(n)) for n in range(64)), b"\x80torn")
    found, found_damage = check(resolve(made.path), NEVER)
    assert len(found) == min(most, 16) + min(most, 64)
    of_segment = "zeros" if most >= ENTRY_COUNT else "too-many"
    of_journal = "torn" if most == 64 else "too-many"
    assert [damage.status for damage in found_damage] == [of_journal, of_segment]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("window", [48, 100])
def test_an_index_in_windows_is_the_same_in_columns(tmp_path: Path, seed: int, window: int) -> None:
    forms = ((JOURNAL, journal.scan_journal_columns), (SEGMENT, scan_segment_columns))
    for form, scan in forms:
        data = damaged(form, Random(seed))
        path = tmp_path / "file"
        path.write_bytes(data)
        rows: list[tuple[int, ...]] = []
        progressed: list[int] = []
        with opened(path) as file:
            for each in scan_index_columns(file, scan, window=window, progress=progressed.append):
                rows += [(each.base + row[0], *row[1:]) for row in rows_of(each.pieces)]
        assert rows == [tuple(map(int, piece[:-1])) for piece in form.scan(data)]
        assert sum(progressed) <= len(data)


def test_a_long_end_of_zeros_and_a_giant_length_are_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    record = journaled(0, publish(0))
    # With another id, so that its message does not prove another length.
    giant = record[:8] + bytes(15) + b"\x02" + record[24:36] + b"\x7f\xff\xff\xff" + record[40:]
    for data, status in ((record, "zeros"), (record + giant, "bad-record")):
        path.write_bytes(data)
        os.truncate(path, 2**40)  # a hole: the file takes no room
        with opened(path) as file:
            *_, last = scan_index_columns(file, journal.scan_journal_columns, window_max=2**23)
        assert last.base == len(record)
        assert last.pieces.size.tolist() == [2**40 - len(record)]
        assert journal.Status(int(last.pieces.status[0])).word == status


# --- what a batch holds --------------------------------------------------------------------------


def batches(path: Path, wanted: Wanted = NEVER) -> list[Messages]:
    (vhost,) = resolve(path).vhosts
    with OpenFiles() as files:
        bodies = Bodies(vhost=vhost, files=files, report=_refuse)
        return [
            batch
            for queue in vhost.queues
            for batch in read_columns(queue, bodies, wanted, report=_refuse)
        ]


def _refuse(damage: Damage) -> None:
    raise AssertionError(damage)


def test_messages_of_several_segments_come_together_but_not_too_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    for number in range(4):
        made.segment(
            queue,
            number,
            *(segment.encode_publish(n, publish(n, bytes(1000))) for n in range(ENTRY_COUNT)),
        )
    (batch,) = batches(made.path)
    assert batch.sequence.tolist() == list(range(4 * ENTRY_COUNT))
    assert [path.name for path in batch.paths[:4]] == ["0.idx", "1.idx", "2.idx", "3.idx"]
    monkeypatch.setattr(columns, "BATCH_SIZE", 5000)
    found = batches(made.path)
    assert sum(map(len, found)) == 4 * ENTRY_COUNT
    assert all(len(batch.data) < 5000 + 1200 for batch in found)


def test_messages_that_only_the_transient_store_has_come_in_batches_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    bodies = [bytes([n]) * 1000 for n in range(ENTRY_COUNT)]
    for store, is_persistent in (("transient", False), ("persistent", True)):
        made.journal(
            queue,
            *(
                journaled(n, publish(n, body, stored=True, is_persistent=is_persistent))
                for n, body in enumerate(bodies)
            ),
        )
        made.store("0.rdq", *(stored(n, body) for n, body in enumerate(bodies)), kind=store)
        monkeypatch.setattr(columns, "BATCH_SIZE", 5000)
        found = batches(made.path, Wanted(as_of_us=0, transient=True))
        assert [row[10] for batch in found for row in seen_in_columns(batch)] == bodies
        assert all(len(batch.data) < 5000 + 1200 for batch in found)


def test_stored_messages_are_put_back_into_the_order_of_the_queue(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    numbers = list(range(ENTRY_COUNT))
    queue = made.queue(b"orders")
    made.journal(queue, *(journaled(n, publish(n, b"%d" % n, stored=True)) for n in numbers))
    Random(3).shuffle(numbers)
    for name, half in (("0.rdq", numbers[::2]), ("5.rdq", numbers[1::2])):
        made.store(name, *(stored(n, b"%d" % n) for n in half))
    (batch,) = batches(made.path)
    assert [row[10] for row in seen_in_columns(batch)] == [b"%d" % n for n in sorted(numbers)]
    assert not batch.decoded


def test_a_queue_without_a_name_takes_the_vhost_of_its_messages(tmp_path: Path) -> None:
    queue = tmp_path / "old" / "queues" / "ABC"
    queue.mkdir(parents=True)
    (tmp_path / "old" / "msg_store_persistent").mkdir()
    annotations = Map(((Atom("id"), message_id(2)),))
    container = message(2, b"body", vhost=None, annotations=annotations)
    records = [
        journaled(0, publish(0, vhost=b"one")),
        journaled(1, publish(1, vhost=b"\xfftwo")),
        journaled(2, publish(2, vhost=None, annotations=annotations)),
    ]
    assert container in records[2]
    (queue / "journal.jif").write_bytes(b"".join(records))
    check_rows(resolve(tmp_path / "old"), NEVER)


# --- rows ----------------------------------------------------------------------------------------


def test_messages_without_kernels_are_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = resolve(unpacked("c1_small_embedded_live", tmp_path))
    rows = list(tasks(location, NEVER, report=_refuse))
    monkeypatch.setitem(sys.modules, "numba", None)
    assert list(tasks(location, NEVER, report=_refuse, bulk_from=0)) == rows


def test_an_error_in_mid_reading_reaches_whoever_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: Any) -> bytes:
        raise MemoryError

    location = resolve(unpacked("c1_small_embedded_live", tmp_path))
    monkeypatch.setattr(OpenFiles, "read", read)
    with pytest.raises(MemoryError):
        list(tasks(location, NEVER, report=_refuse, bulk_from=0))


def test_progress_adds_up_to_the_files_that_were_read(tmp_path: Path) -> None:
    location = resolve(unpacked("c3_large_store_limit1m_kill9", tmp_path))
    one: list[int] = []
    other: list[int] = []
    assert list(tasks(location, NEVER, report=_refuse, progress=one.append))
    assert list(tasks(location, NEVER, report=_refuse, progress=other.append, bulk_from=0))
    assert sum(one) == sum(other) > 0
