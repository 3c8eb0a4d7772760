"""Tables of spools in tests: what the tools say of the same files in the tables' columns, and spools made by seed."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from random import Random
from struct import pack
from typing import Any, Final

from penstock.errors import BadData
from penstock.families.beats.location import resolve
from penstock.families.beats.rows import dump, tasks
from penstock.formats.beats.event import timestamp_text
from penstock.formats.beats.frame import read_frames
from penstock.formats.beats.segment import Header, Options, decode_header
from penstock.formats.beats.state import Position, State, encode_state
from penstock.formats.beats.task_event import encode_tasks
from support.beats_spools import KEY, payloads_of, sealed, some_events, spool
from support.damage import random_damage

Row = dict[str, Any]

PLAIN: Final = Options(0)
ALL_OPTIONS: Final = tuple(Options(bits) for bits in range(8))


# --- what the tools say --------------------------------------------------------------------------


def dumped(path: Path, key: bytes | None = KEY) -> list[Row]:
    """Return what ``penstock dump`` says of frames and damage, in columns of the table of entries."""
    rows = (row for row in dump(resolve(path), key=key) if row["kind"] not in ("segment", "state"))
    return [_entry(path, row) for row in rows]


def _entry(source: Path, row: Row) -> Row:
    is_frame = row["kind"] == "frame"
    is_numbered = is_frame or row["status"] == "bad-checksum"
    return {
        "kind": row["kind"],
        "path": Path(row["path"]).name,
        "offset": row["offset"],
        "size": row["size"],
        "log_index": (row["segment"] << 32) + row["index"] if is_numbered else None,
        "op": "add" if is_frame else None,
        "payload": b64decode(row["payload"]) if "payload" in row else None,
        "status": row["status"],
        "severity": row.get("severity"),
        "event": row.get("event"),
    }


def as_said(row: Row) -> Row:
    """Return a row of the table as the tools say it."""
    properties = dict(row["properties"] or ())
    event = None
    if "meta" in properties:
        event = {
            "timestamp": timestamp_text(int(properties["timestamp_ns"])),
            "flags": int(properties["flags"]),
            "meta": json.loads(properties["meta"]),
            "fields": json.loads(properties["fields"]),
        }
        seconds = int(properties["timestamp_ns"]) / 10**9
        assert abs(row["event_time"].timestamp() - seconds) < 10**-5
    names = ("kind", "path", "offset", "size", "log_index", "op", "payload", "status", "severity")
    return {name: row.get(name) for name in names} | {"event": event}


def waiting(path: Path, key: bytes | None = KEY) -> list[Row]:
    """Return what ``penstock tasks`` says, in columns of the table of tasks."""
    return [
        {
            "queue": row["queue"],
            "key": row["key"],
            "task_id": (row["segment"] << 32) + row["seq"],
            "offset": row["offset"],
            "payload": b64decode(row["payload"]),
        }
        for row in tasks(resolve(path), key=key, report=lambda _: None)
    ]


WAITING: Final = ("queue", "key", "task_id", "offset", "payload")


# --- spools by seed ------------------------------------------------------------------------------


def random_spool(
    random: Random, place: Path, *, damage: bool, options: tuple[Options, ...] = ALL_OPTIONS
) -> Path:
    """Write a spool with segments of all kinds, tasks of ours among the events, and a position."""
    segments: dict[int | str, bytes] = {}
    number = random.randrange(3)
    for _ in range(random.randrange(1, 5)):
        segments[number] = random_segment(random, options)
        if damage and random.random() < 0.7:
            segments[number] = random_damage(
                random, segments[number], start=random.choice((0, 12, 12))
            )
        number += random.choice((1, 1, 2))
    return spool(place, segments, random_state(random, segments))


def random_segment(random: Random, options: tuple[Options, ...]) -> bytes:
    version = random.choice((0, 1, 2, 2, 2))
    chosen = random.choice(options) if version == 2 else PLAIN
    header = Header(version, 0, chosen)
    payloads = payloads_of(some_events(random.randrange(12), first=random.randrange(99)), header)
    if version and not chosen & Options.PROTOBUF:
        keys = [random.randrange(-3, 3) for _ in range(random.randrange(5))]
        bodies = [random.randbytes(random.randrange(30)) for _ in keys]
        queue = random.choice(("orders", "mail", "tr\u00e4ge"))
        payloads += encode_tasks(queue, bodies, keys, timestamp=1_704_164_645_678_901_234)
        random.shuffle(payloads)
    if random.random() < 0.3:
        payloads.insert(random.randrange(len(payloads) + 1), random.randbytes(20))
    count = random.choice((None, 0)) if version else 0
    return sealed(payloads, version=version, options=chosen, count=count, key=KEY)


def random_state(random: Random, segments: Mapping[int | str, bytes]) -> bytes | None:
    """Return a position: mostly a true one, sometimes one that was never right, or none."""
    numbers = [number for number in segments if isinstance(number, int)]
    number = random.choice((*numbers, max(numbers) + 1))
    wrong = (random.randrange(400), random.randrange(4))
    boundaries = _boundaries(segments.get(number, b""))
    offset, index = random.choice((*boundaries, *boundaries, (0, 0), (10**6, 99), wrong))
    state = encode_state(State(Position(number, offset, index)))
    if random.random() < 0.2:
        state = pack("<IQQ", 0, number, max(0, offset - 4))
    return random.choice((state, state, state, state, b"", bytes(9), None))


def _boundaries(segment: bytes) -> list[tuple[int, int]]:
    """Return the offset and index of every frame in a segment whose body is plain."""
    try:
        header = decode_header(segment)
    except BadData:
        return []
    if header.options & (Options.ENCRYPTED | Options.COMPRESSED):
        return [(12 + 89, 1)]
    pieces = list(read_frames(segment[header.size :], header.size))
    return [(piece.offset, piece.index) for piece in pieces] + [(len(segment), len(pieces))]
