"""What Penstock adds to the files of classic queues: ``penstock.checkpoint``, and seals in journals.

A checkpoint says how long every file was at a moment when all of them were on the disk, and which table of places
beside a file is the right one. A seal is a
record at the end of what one sync made durable: an ack of a number that no message has, which every
reader passes over, with a checksum of all that was written to the journal since the seal before
(docs/formats/paged.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct, iter_unpack
from typing import Final

from penstock.binary import UINT32, UINT64, Bytes, Reader, checksum, hexadecimal
from penstock.errors import CorruptData, InvalidValue, UnsupportedVersion
from penstock.formats.rabbitmq.journal import SEQUENCE_MAX, Kind
from penstock.formats.rabbitmq.places import TableMark

FILE_NAME: Final = "penstock.checkpoint"
NEXT_FILE_NAME: Final = "penstock.checkpoint.next"
"""One that counts if the snapshot of its mark came into place, and else never."""

MARKER: Final = b"PSCP"
VERSION: Final = 2
_WITHOUT_TABLES: Final = 1  # the version that knew none
NO_MARK: Final = -1
NAME_SIZE_MAX: Final = 2**16 - 1

_HEAD: Final = Struct(">4siqQII")
_FILE: Final = Struct(">QQII")  # number, length; size and checksum of its table, 0 if it has none
_FILE_WITHOUT_TABLE: Final = Struct(">QQ")
_QUEUE: Final = Struct(">QHQQIII")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLengths:
    """What a checkpoint says of a queue."""

    number: int
    name: bytes
    next_sequence: int  # numbers from here on were never given to a message
    journal_length: int
    chain: int  # the checksum that the next seal of the journal goes on from
    generation: int  # of the journal: the checksum that its first seal went on from
    segments: dict[int, int] = field(default_factory=dict)  # number to length
    tables: dict[int, TableMark] = field(default_factory=dict)  # of segments that have one


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How long every file was when the state was that of ``mark``."""

    mark: int = NO_MARK
    next_store_file: int = 0  # no store file has had this number or a higher one
    store_files: dict[int, int] = field(default_factory=dict)  # number to length
    store_tables: dict[int, TableMark] = field(default_factory=dict)  # of store files that have one
    queues: tuple[QueueLengths, ...] = ()


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    pieces = [
        _HEAD.pack(
            MARKER,
            VERSION,
            checkpoint.mark,
            checkpoint.next_store_file,
            len(checkpoint.store_files),
            len(checkpoint.queues),
        )
    ]
    pieces.extend(_encode_files(checkpoint.store_files, checkpoint.store_tables))
    for queue in checkpoint.queues:
        if len(queue.name) > NAME_SIZE_MAX:
            raise InvalidValue(f"a queue's name of {len(queue.name)} bytes; {NAME_SIZE_MAX} can be")
        pieces.append(
            _QUEUE.pack(
                queue.number,
                len(queue.name),
                queue.next_sequence,
                queue.journal_length,
                queue.chain,
                queue.generation,
                len(queue.segments),
            )
        )
        pieces.append(queue.name)
        pieces.extend(_encode_files(queue.segments, queue.tables))
    data = b"".join(pieces)
    return data + UINT32.pack(checksum(data))


def _encode_files(lengths: dict[int, int], tables: dict[int, TableMark]) -> Iterator[bytes]:
    assert tables.keys() <= lengths.keys(), "a table is that of a file"
    for number, length in lengths.items():
        table = tables.get(number)
        mark = (0, 0) if table is None else (table.size, table.checksum)
        yield _FILE.pack(number, length, *mark)


def decode_checkpoint(data: Bytes) -> Checkpoint:
    """Return what the file says. Raises ``BadData``."""
    reader = Reader(data, 0, max(0, len(data) - UINT32.size))
    marker, version, mark, next_store_file, file_count, queue_count = _HEAD.unpack(
        reader.take(_HEAD.size, "the head of a checkpoint")
    )
    if marker != MARKER:
        raise CorruptData(
            "not a checkpoint", offset=0, expected=hexadecimal(MARKER), found=hexadecimal(marker)
        )
    if version not in (VERSION, _WITHOUT_TABLES):
        raise UnsupportedVersion(
            "a checkpoint of another version", offset=4, expected=str(VERSION), found=str(version)
        )
    (stored,) = UINT32.unpack(data[reader.end :])
    if stored != checksum(data[: reader.end]):
        raise CorruptData("the checksum of the checkpoint is wrong", offset=reader.end)
    has_tables = version == VERSION
    store_files, store_tables = _files(reader, file_count, has_tables=has_tables)
    queues = tuple(_queue(reader, has_tables=has_tables) for _ in range(queue_count))
    if reader.remaining:
        raise CorruptData("bytes behind the last queue of a checkpoint", offset=reader.offset)
    return Checkpoint(
        mark=mark,
        next_store_file=next_store_file,
        store_files=store_files,
        store_tables=store_tables,
        queues=queues,
    )


def _files(
    reader: Reader, count: int, *, has_tables: bool
) -> tuple[dict[int, int], dict[int, TableMark]]:
    """Return the lengths of files, and the tables of those that have one."""
    form = _FILE if has_tables else _FILE_WITHOUT_TABLE
    rows = list(iter_unpack(form.format, reader.take(count * form.size, "the lengths of files")))
    lengths = {row[0]: row[1] for row in rows}
    tables = {row[0]: TableMark(size=row[2], checksum=row[3]) for row in rows if any(row[2:])}
    return lengths, tables


def _queue(reader: Reader, *, has_tables: bool) -> QueueLengths:
    head = reader.take(_QUEUE.size, "a queue of a checkpoint")
    number, name_size, next_sequence, length, chain, generation, count = _QUEUE.unpack(head)
    name = reader.take(name_size, "the name of a queue")
    segments, tables = _files(reader, count, has_tables=has_tables)
    return QueueLengths(
        number=number,
        name=name,
        next_sequence=next_sequence,
        journal_length=length,
        chain=chain,
        generation=generation,
        segments=segments,
        tables=tables,
    )


# --- seals ---------------------------------------------------------------------------------------

SEQUENCE_END: Final = SEQUENCE_MAX + 1 - 2**32
"""The numbers from here on are those of seals; no queue gets that far."""

SEAL_SIZE: Final = UINT64.size


def encode_seal(chain: int) -> bytes:
    """Return the record that seals what a journal holds before it."""
    return UINT64.pack(Kind.ACK << 62 | SEQUENCE_END | chain)


def seal_checksum(sequence: int) -> int:
    """Return the checksum in an ack record with this number, which is a seal's."""
    assert sequence >= SEQUENCE_END
    return sequence - SEQUENCE_END
