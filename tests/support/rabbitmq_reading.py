"""Classic queues in tests: the ways to scan their files as plain tuples, and files made by seed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import fields
from random import Random
from typing import Any, NamedTuple

from hypothesis import strategies as st

from penstock.formats.rabbitmq import journal, message_store, segment
from penstock.formats.rabbitmq.journal import Publish, SequenceNumber
from support.damage import random_damage
from support.log_reading import exhausted

Row = tuple[int, ...]
"""The columns of a piece; its message id is left out."""


class Form(NamedTuple):
    """One of the three files that have both a plain scan and a kernel."""

    name: str
    scan: Callable[..., Generator[Any, None, int]]
    scan_columns: Callable[..., Generator[Any, None, int]]
    make: Callable[[Random, int], bytes]  # a file with so many records
    id_place: Callable[[Any], int]  # where the id of a piece must be


def scanned(form: Form, data: bytes, **window: int) -> tuple[list[Row], int]:
    """Return what the plain scanner finds, and where it stopped."""
    pieces, position = exhausted(form.scan(data, **window))
    for piece in pieces:
        place = form.id_place(piece)
        assert not piece.message_id or piece.message_id == data[place : place + 16]
    return [tuple(map(int, piece[:-1])) for piece in pieces], position


def scanned_in_columns(form: Form, data: bytes, **window: int) -> tuple[list[Row], int]:
    """Return what the bulk scanner finds, and where it stopped."""
    batches, position = exhausted(form.scan_columns(data, **window))
    return [row for batch in batches for row in rows_of(batch)], position


def rows_of(batch: Any) -> list[Row]:
    columns = (getattr(batch, field.name).tolist() for field in fields(batch))
    return list(zip(*columns, strict=True))


# --- by seed -------------------------------------------------------------------------------------


def random_message(random: Random) -> bytes:
    """Return a message that often holds zeros, markers, whole records of a store, or a part of one."""
    parts = [b"\x83h"]
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        match random.randrange(5):
            case 0:
                parts.append(random.choice((b"\xff", b"\x83", b"\x00\x00\x00\x11")))
            case 1:
                parts.append(bytes(random.randrange(24)))
            case 2:
                record = message_store.encode_record(random.randbytes(16), b"\x83hnner")
                parts.append(record[: random.choice((len(record), len(record), 24))])
            case _:
                parts.append(random.randbytes(random.randrange(40)))
    return b"".join(parts)


def random_publish(random: Random) -> Publish:
    return Publish(
        message_id=random.randbytes(16),
        is_persistent=random.random() < 0.7,
        expiry_us=random.choice((0, 0, random.getrandbits(50), random.getrandbits(64))),
        body_size=random.choice((0, 7, random.getrandbits(32))),
        embedded=random_message(random) if random.random() < 0.7 else b"",
    )


def random_journal(random: Random, records: int) -> bytes:
    parts = []
    for _ in range(records):
        sequence = SequenceNumber(random.getrandbits(random.choice((3, 20, 62))))
        match random.randrange(3):
            case 0:
                parts.append(journal.encode_deliver(sequence))
            case 1:
                parts.append(journal.encode_ack(sequence))
            case _:
                parts.append(journal.encode_publish(sequence, random_publish(random)))
    return b"".join(parts) + bytes(random.choice((0, 0, 3, 39, 40, 100)))


def random_segment(random: Random, records: int) -> bytes:
    parts = []
    for _ in range(records):
        relative = random.choice((random.randrange(8), random.randrange(2048)))
        if random.random() < 0.5:
            parts.append(segment.encode_deliver_or_ack(relative))
        else:
            parts.append(segment.encode_publish(relative, random_publish(random)))
    return b"".join(parts) + bytes(random.choice((0, 0, 1, 2, 100)))


def random_store(random: Random, records: int) -> bytes:
    parts = []
    for _ in range(records):
        parts.append(message_store.encode_record(random.randbytes(16), random_message(random)))
        if random.random() < 0.1:
            parts.append(bytes(random.randrange(60)))
    return b"".join(parts) + bytes(random.choice((0, 0, 3, 8, 100)))


def scan_segment(data: bytes, **window: int) -> Generator[journal.Piece, None, int]:
    return segment.scan(data, segment=3, entry_count=2048, **window)


def scan_segment_columns(data: bytes, **window: int) -> Generator[journal.PieceColumns, None, int]:
    return segment.scan_segment_columns(data, segment=3, entry_count=2048, **window)


JOURNAL = Form(
    "journal",
    journal.scan,
    journal.scan_journal_columns,
    random_journal,
    lambda piece: int(piece.offset) + 8,
)
SEGMENT = Form(
    "segment",
    scan_segment,
    scan_segment_columns,
    random_segment,
    lambda piece: int(piece.offset) + 2,
)
STORE = Form(
    "store",
    message_store.scan,
    message_store.scan_store_columns,
    random_store,
    lambda piece: int(piece.offset) + 8,
)

# --- by property ---------------------------------------------------------------------------------

messages = st.binary(max_size=40).map(lambda rest: b"\x83h" + rest)

publishes = st.builds(
    Publish,
    message_id=st.binary(min_size=16, max_size=16).filter(any),
    is_persistent=st.booleans(),
    expiry_us=st.integers(0, 2**64 - 1),
    body_size=st.integers(0, 2**32 - 1),
    embedded=st.just(b"") | messages,
)


# --- what holds for every scanner ----------------------------------------------------------------


def check_cover(form: Form, data: bytes) -> None:
    """Every byte of the file is in one piece, whatever it holds."""
    rows, position = scanned(form, data)
    covered = 0
    for offset, size, *_ in rows:
        assert offset == covered
        assert size > 0
        covered += size
    assert covered == position == len(data)


def damaged(form: Form, random: Random, *, records_max: int = 9) -> bytes:
    return random_damage(random, form.make(random, random.randrange(records_max)), start=0)


def check_columns(form: Form, data: bytes, batch_rows: int, **window: int) -> None:
    """The scan in columns, compiled, gives what the plain scan gives, which is interpreted."""
    expected = scanned(form, data, **window)
    found = scanned_in_columns(form, data, batch_rows=batch_rows, **window)
    assert found == expected, (data.hex(), window, found, expected)


def check_columns_in_a_window(form: Form, random: Random, beyond: int) -> None:
    """The data ends before the file: both scanners judge the same and wait at the same place."""
    data = damaged(form, random)
    window = data[: random.randint(0, len(data))]
    check_columns(form, window, 65_536, size=len(data) + beyond)


def check_columns_from_every_boundary(form: Form, random: Random) -> None:
    """From every place that a scan came by to any stop, both scanners find the same."""
    data = damaged(form, random)
    rows, _ = scanned(form, data)
    for start in [0, *(offset + size for offset, size, *_ in rows)]:
        check_columns(form, data, 2, start=start, stop=random.randint(0, len(data) + 4))


def check_growing_windows(form: Form, random: Random, step: int) -> None:
    """A reader that goes on where a window ended loses nothing and reads nothing twice."""
    data = damaged(form, random)
    rows: list[Row] = []
    position = 0
    for end in [*range(0, len(data), step), len(data)]:
        found, position = scanned(form, data[:end], start=position, size=len(data))
        rows += found
    assert (rows, position) == scanned(form, data)
