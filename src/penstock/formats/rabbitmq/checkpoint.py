"""What Penstock adds to the files of classic queues: ``penstock.checkpoint``, and seals in journals.

A checkpoint says how long every file was at a moment when all of them were on the disk. A seal is a
record at the end of what one sync made durable: an ack of a number that no message has, which every
reader passes over, with a checksum of all that was written to the journal since the seal before
(docs/formats/paged.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct, iter_unpack
from typing import Final

from penstock.binary import UINT32, UINT64, Bytes, Reader, checksum, hexadecimal
from penstock.errors import CorruptData, InvalidValue, UnsupportedVersion
from penstock.formats.rabbitmq.journal import SEQUENCE_MAX, Kind

FILE_NAME: Final = "penstock.checkpoint"
NEXT_FILE_NAME: Final = "penstock.checkpoint.next"
"""One that counts if the snapshot of its mark came into place, and else never."""

MARKER: Final = b"PSCP"
VERSION: Final = 1
NO_MARK: Final = -1
NAME_SIZE_MAX: Final = 2**16 - 1

_HEAD: Final = Struct(">4siqQII")
_FILE: Final = Struct(">QQ")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How long every file was when the state was that of ``mark``."""

    mark: int = NO_MARK
    next_store_file: int = 0  # no store file has had this number or a higher one
    store_files: dict[int, int] = field(default_factory=dict)  # number to length
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
    pieces.extend(_FILE.pack(*item) for item in checkpoint.store_files.items())
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
        pieces.extend(_FILE.pack(*item) for item in queue.segments.items())
    data = b"".join(pieces)
    return data + UINT32.pack(checksum(data))


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
    if version != VERSION:
        raise UnsupportedVersion(
            "a checkpoint of another version", offset=4, expected=str(VERSION), found=str(version)
        )
    (stored,) = UINT32.unpack(data[reader.end :])
    if stored != checksum(data[: reader.end]):
        raise CorruptData("the checksum of the checkpoint is wrong", offset=reader.end)
    store_files = _files(reader, file_count)
    queues = tuple(_queue(reader) for _ in range(queue_count))
    if reader.remaining:
        raise CorruptData("bytes behind the last queue of a checkpoint", offset=reader.offset)
    return Checkpoint(
        mark=mark, next_store_file=next_store_file, store_files=store_files, queues=queues
    )


def _files(reader: Reader, count: int) -> dict[int, int]:
    return dict(iter_unpack(_FILE.format, reader.take(count * _FILE.size, "the lengths of files")))


def _queue(reader: Reader) -> QueueLengths:
    head = reader.take(_QUEUE.size, "a queue of a checkpoint")
    number, name_size, next_sequence, length, chain, generation, count = _QUEUE.unpack(head)
    return QueueLengths(
        number=number,
        name=reader.take(name_size, "the name of a queue"),
        next_sequence=next_sequence,
        journal_length=length,
        chain=chain,
        generation=generation,
        segments=_files(reader, count),
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
