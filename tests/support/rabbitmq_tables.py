"""Tables of a broker's directories in tests: what the tools say of the same files in the tables' columns, and
directories made by seed, with everything in them that such directories hold.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

from penstock.errors import CannotConvert
from penstock.families.rabbitmq.dump import dump
from penstock.families.rabbitmq.location import resolve, target_name
from penstock.families.rabbitmq.read import Wanted
from penstock.families.rabbitmq.rows import tasks
from penstock.formats.rabbitmq import journal, message_store, queue_v2, segment
from penstock.formats.rabbitmq.envelope import decode_envelope
from penstock.formats.rabbitmq.journal import Publish, SequenceNumber
from penstock.formats.rabbitmq.messages import Content, Message, encode_message
from penstock.formats.rabbitmq.properties import (
    Header,
    Kind,
    Properties,
    Value,
    encode_properties,
)
from support.damage import random_damage
from support.rabbitmq_directories import ENTRY_COUNT, Directory, message_id, truth
from support.rabbitmq_golden import holds_expiry

Row = dict[str, Any]

OPS = {"publish": "add", "deliver": "deliver", "ack": "remove"}

# --- what the tools say --------------------------------------------------------------------------


def dumped(path: Path) -> list[Row]:
    """Return what ``penstock dump`` says, in the columns of the table of entries."""
    location = resolve(path)
    keys = {file: -q.priority for v in location.vhosts for q in v.queues for file in q.files}
    turns: Counter[tuple[str, int]] = Counter()
    rows = []
    for row in dump(location):
        op = OPS.get(row.get("op", ""))
        if op == "add":
            turns[row["path"], row["seq"]] = 0
        if row.get("op") == "deliver-or-ack":
            turns[row["path"], row["seq"]] += 1
            op = "deliver" if turns[row["path"], row["seq"]] == 1 else "remove"
        op = "add" if row["kind"] == "slot" else op
        payload = row.get("payload", row.get("raw"))
        has_queue = "queue" in row
        rows.append(
            {
                "source": str(path),
                "family": "rabbitmq",
                "kind": row["kind"],
                "path": shown(path, row["path"]),
                "offset": row["offset"],
                "size": row["size"],
                "log_index": row.get("seq"),
                "term": None,
                "op": op,
                "queue": queue_name(row) if has_queue else None,
                "key": None if op is None else keys[Path(row["path"])],
                "task_id": None if op is None else row["seq"],
                "payload": None if payload is None else b64decode(payload),
                "properties": said(row, _BY_ENTRIES),
                "event_time": time_of(row),
                "status": row["status"],
                "reason": row.get("reason"),
                "severity": row.get("severity"),
            }
        )
    return rows


def listed(path: Path, wanted: Wanted) -> list[Row]:
    """Return what ``penstock tasks`` says, in columns of the table of tasks."""
    return [
        {
            "source": str(path),
            "family": "rabbitmq",
            "log_index": row["seq"],
            "task_id": row["seq"],
            "queue": queue_name(row),
            "key": row["key"],
            "payload": b64decode(row["payload"]),
            "properties": said(row, _BY_TASKS),
            "event_time": time_of(row),
        }
        for row in tasks(resolve(path), wanted, report=lambda _: None)
    ]


def as_said(row: Row) -> Row:
    """Return a row of a table with its properties as ``dumped`` and ``listed`` have them."""
    told = dict(row["properties"] or ())
    # The tools know the vhost of a queue, and not of a message in a store.
    if row.get("queue") is None:
        told.pop("vhost", None)
    for name in ("routing_keys", "properties"):
        if name in told:
            told[name] = json.loads(told[name])
    return row | {"properties": told}


_BY_ENTRIES = (
    "vhost", "persistent", "message_id", "expiry_us", "body_size", "location", "message_offset",
    "message_size", "exchange", "routing_keys", "properties",
)  # fmt: skip
_BY_TASKS = (
    "vhost", "persistent", "delivered", "expiry_us", "exchange", "routing_keys", "properties",
)  # fmt: skip


def said(row: Row, names: tuple[str, ...]) -> Row:
    """Return some fields of a tool's row as text, but for those that are JSON."""
    told = {name: row[name] for name in names if row.get(name) is not None}
    return {
        name: value if name in ("routing_keys", "properties") else as_text(value)
        for name, value in told.items()
    }


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def shown(source: Path, path: str) -> str:
    return Path(path).name if source.is_file() else str(Path(path).relative_to(source))


def queue_name(row: Row) -> str:
    vhost = None if row["vhost"] is None else as_bytes(row["vhost"])
    try:
        return target_name(vhost, as_bytes(row["queue"]))
    except CannotConvert:
        return as_text(row["queue"])


def as_bytes(name: str | Row) -> bytes:
    return name.encode() if isinstance(name, str) else b64decode(name["base64"])


def time_of(row: Row) -> datetime | None:
    seconds = (row.get("properties") or {}).get("timestamp")
    if seconds is None or seconds >= 253_402_300_800:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


# --- directories by seed -------------------------------------------------------------------------


def random_directory(random: Random, path: Path, *, damage: bool) -> Path:
    """Write a data directory: some vhosts with queues of both versions, and stores; damaged or not."""
    for vhost in random.sample([b"/", b"two words", b"\xff"], random.choice((1, 1, 2))):
        made = Directory(path, vhost)
        numbers = iter(range(10_000))
        stored: list[Publish] = []
        for name in random.sample([b"orders", b"my mail", b"\xfe~"], random.randrange(1, 3)):
            for priority in random.choice([(None,), (None,), (0, 3)]):
                version = random.choice((1, 1, 2))
                queue = made.queue(name, priority=priority, version=version)
                write = _write_version_1 if version == 1 else _write_version_2
                stored += write(random, made, queue, numbers)
        _write_stores(random, made, stored)
    if damage:
        _damage(random, path)
    return path


def _write_version_1(random: Random, made: Directory, queue: Path, numbers: Any) -> list[Publish]:
    stored = []
    sequence = random.choice((0, 0, 40))
    records: list[bytes] = []
    for _ in range(random.randrange(4)):
        number = sequence // ENTRY_COUNT
        flushed = []
        for relative in random.sample(range(ENTRY_COUNT), random.randrange(ENTRY_COUNT)):
            publish = random_message(random, next(numbers))
            stored += [] if publish.embedded else [publish]
            flushed.append(segment.encode_publish(relative, publish))
            flushed += [segment.encode_deliver_or_ack(relative)] * random.choice((0, 1, 1, 2))
            if random.random() < 0.1:
                records.append(journal.encode_ack(SequenceNumber(number * ENTRY_COUNT + relative)))
        made.segment(queue, number, *flushed)
        sequence = (number + random.choice((1, 1, 3))) * ENTRY_COUNT
    for at in range(sequence, sequence + random.randrange(30)):
        publish = random_message(random, next(numbers))
        stored += [] if publish.embedded else [publish]
        records.append(journal.encode_publish(SequenceNumber(at), publish))
        records += [journal.encode_deliver(SequenceNumber(at))] * random.choice((0, 1))
        records += [journal.encode_ack(SequenceNumber(at))] * random.choice((0, 0, 1))
    made.journal(queue, *records)
    return stored


def _write_version_2(random: Random, made: Directory, queue: Path, numbers: Any) -> list[Publish]:
    del made
    stored = []
    for number in range(random.randrange(3)):
        header = (queue_v2.VERSION, number * 8, number * 8 + 8)
        index = queue_v2.HEADER.pack(queue_v2.INDEX_MARKER, *header).ljust(64, b"\x00")
        store = queue_v2.HEADER.pack(queue_v2.STORE_MARKER, *header).ljust(64, b"\x00")
        for _ in range(random.randrange(9)):
            publish = random_message(random, next(numbers))
            term, place, location = publish.embedded, publish.message_id, 1
            if term:
                place, location = len(store).to_bytes(8, "big") + len(term).to_bytes(4, "big"), 2
                checked = random.random() < 0.7
                crc = crc32(term) & 0xFFFF if checked else 0
                store += queue_v2.RECORD_HEAD.pack(len(term), checked, crc, 0) + term
            else:
                stored.append(publish)
            there = random.random() < 0.8
            index += queue_v2.SLOT.pack(
                there, publish.is_persistent, 0, location, place.ljust(16, b"\x00"),
                publish.body_size, publish.expiry_us,
            )  # fmt: skip
        (queue / f"{number}.qi").write_bytes(index)
        (queue / f"{number}.qs").write_bytes(store)
    return stored


def _write_stores(random: Random, made: Directory, stored: list[Publish]) -> None:
    records: dict[str, list[bytes]] = {"persistent": [], "transient": []}
    for publish in stored:
        kind = "persistent" if publish.is_persistent else "transient"
        term = random_term(random, int.from_bytes(publish.message_id[:8], "big"))
        record = message_store.encode_record(publish.message_id, term)
        if random.random() < 0.95:
            records[kind].append(record)
        if random.random() < 0.1:
            records[kind].append(bytes(random.randrange(60)))
    for kind, found in records.items():
        for number in range(random.randrange(1, 3)):
            made.store(f"{number}.rdq", *found[number::2], kind=kind)


def random_message(random: Random, number: int) -> Publish:
    """Return what an index says of a message that is embedded, or in a store."""
    is_embedded = random.random() < 0.7
    return Publish(
        message_id=message_id(number),
        is_persistent=random.random() < 0.8,
        expiry_us=random.choice((0, 0, random.getrandbits(45), random.getrandbits(64))),
        body_size=random.randrange(100),
        embedded=random_term(random, number) if is_embedded else b"",
    )


def random_term(random: Random, number: int) -> bytes:
    """Return a message: mostly as brokers write them, sometimes of a rare shape, or none."""
    if random.random() < 0.05:
        return b"\x83h" + random.randbytes(random.randrange(9))
    fragments = [
        random.randbytes(random.choice((0, 3, 30))) for _ in range(random.choice((1, 1, 1, 0, 3)))
    ]
    # A whole record inside a body is no record.
    if fragments and random.random() < 0.1:
        fragments[0] = message_store.encode_record(random.randbytes(16), b"\x83hnner")
    return encode_message(
        Message(
            vhost=b"/",
            exchange=random.choice((b"", b"amq.direct", b"\xff")),
            routing_keys=tuple(
                random.sample((b"orders", b"k", b"\xc3\xa4", b"\xfe"), random.randrange(3))
            ),
            content=Content(
                stored_properties=_random_properties(random), fragments=tuple(fragments)
            ),
            id=message_id(number),
            is_persistent=random.random() < 0.9,
        )
    )


def _random_properties(random: Random) -> bytes | Properties:
    chosen = Properties(
        content_type=random.choice((None, b"text/plain", "ä".encode(), b"\xff")),
        headers=random.choice(
            (
                None,
                (),
                (Header(b"n", Value(Kind.INT64, random.getrandbits(40))),),
                (Header(b"t", Value(Kind.TABLE, (Header(b"x", Value(Kind.VOID, None)),))),),
            )
        ),
        delivery_mode=2,
        correlation_id=random.choice((None, b"c" * random.randrange(9))),
        timestamp=random.choice(
            (None, 0, random.getrandbits(31), random.getrandbits(45), random.getrandbits(64))
        ),
    )
    block = encode_properties(chosen)
    match random.randrange(12):
        case 0:
            return chosen
        case 1:
            return random_damage(random, block, start=0)
    return block


def _damage(random: Random, path: Path) -> None:
    found = sorted(each for each in path.rglob("*") if each.is_file())
    for file in random.sample(found, min(3, len(found))):
        file.write_bytes(random_damage(random, file.read_bytes(), start=0))


# --- what real directories must hold -------------------------------------------------------------


def check_truth(rows: list[Row], name: str) -> None:
    """Check that the tasks of a golden directory, with envelopes, are what its clients know must be there."""
    expected = truth(name)
    assert len(rows) == len(expected)
    for row, known in zip(rows, expected, strict=True):
        envelope, body = decode_envelope(row["payload"])
        assert envelope.vhost == known["vhost"].encode()
        assert envelope.queue == known["queue"].encode()
        assert row["queue"] == target_name(envelope.vhost, known["queue"].encode())
        assert (row["key"], row["task_id"]) == (-(known["bucket"] or 0), envelope.sequence)
        assert envelope.is_persistent is known["persistent"]
        assert envelope.exchange == known["exchange"].encode()
        assert [key.decode() for key in envelope.routing_keys] == known["routing_keys"]
        assert holds_expiry(envelope.expiry_us or 0, known)
        assert len(body) == known["body_len"]
        assert known.get("body_sha256") in (None, sha256(body).hexdigest())
        assert known.get("body_b64") in (None, b64encode(body).decode())
