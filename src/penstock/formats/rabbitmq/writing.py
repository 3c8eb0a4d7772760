"""Many records at once, for whoever writes the files of a classic queue and its message store.

The layouts are those of ``journal``, ``segment`` and ``message_store``; property tests hold what is
encoded here to what those modules encode one by one (docs/formats/rabbitmq.md). No object is made for a
record: heads come from arrays, and messages are only joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.binary import Bytes
from penstock.formats.kernel import compiled
from penstock.formats.kernel_bytes import copy, put
from penstock.formats.rabbitmq import journal, message_store, segment
from penstock.formats.rabbitmq.journal import MESSAGE_ID_SIZE, Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PUBLISH_FIELDS: Final = [
    ("id", "V16"),
    ("expiry", ">u8"),
    ("size", ">u4"),
    ("length", ">u4"),
]
_JOURNAL_HEAD: Final = [("word", ">u8"), *_PUBLISH_FIELDS]
_SEGMENT_HEAD: Final = [("word", ">u2"), *_PUBLISH_FIELDS]
_SEGMENT_PUBLISH: Final = 0xC000  # a publish, and persistent
_STORE_HEAD: Final = [("counted", ">u8"), ("id", "V16")]
_END: Final = bytes((message_store.END_MARKER,))


def encode_publishes(
    first: int,
    ids: Sequence[bytes],
    messages: Sequence[bytes],
    *,
    lengths: NDArray[np.int64],
    sizes: NDArray[np.int64],
    expiries: NDArray[np.uint64],
) -> list[Bytes]:
    """Return the journal's publish records of consecutive numbers from ``first`` on, in pieces.

    ``lengths`` are those of the messages that are embedded, and 0 for the others. All are persistent. ``expiries`` may
    be a single number for all.
    """
    import numpy as np

    heads = np.zeros(len(ids), dtype=_JOURNAL_HEAD)
    heads["word"] = np.arange(first, first + len(ids), dtype=np.uint64)
    pieces = _publishes(heads, ids, messages, lengths=lengths, sizes=sizes, expiries=expiries)
    # The only record that a reader takes for the end: nobody gives out such an id.
    assert first or any(pieces[0][: journal.PUBLISH_SIZE]), "a journal cannot hold this record"
    return pieces


def encode_segment_publishes(
    first: int,
    ids: Sequence[bytes],
    messages: Sequence[bytes],
    *,
    lengths: NDArray[np.int64],
    sizes: NDArray[np.int64],
    expiries: NDArray[np.uint64],
) -> list[Bytes]:
    """Return a segment's publish records of consecutive relative numbers, else as ``encode_publishes``."""
    import numpy as np

    assert 0 <= first <= segment.ENTRY_COUNT_MAX - len(ids)
    heads = np.zeros(len(ids), dtype=_SEGMENT_HEAD)
    word = _SEGMENT_PUBLISH | first
    heads["word"] = np.arange(word, word + len(ids), dtype=np.uint16)
    return _publishes(heads, ids, messages, lengths=lengths, sizes=sizes, expiries=expiries)


def _publishes(
    heads: NDArray[np.void],
    ids: Sequence[bytes],
    messages: Sequence[bytes],
    *,
    lengths: NDArray[np.int64],
    sizes: NDArray[np.int64],
    expiries: NDArray[np.uint64],
) -> list[Bytes]:
    """Fill in the heads of publish records, and return them with their messages."""
    import numpy as np

    heads["id"] = np.frombuffer(_joined(ids), dtype="V16")
    heads["expiry"] = expiries
    heads["size"] = sizes
    heads["length"] = lengths
    raw, size = heads.tobytes(), heads.itemsize
    if not lengths.any():
        return [raw]
    # One behind the other without a step a message: this is where a paged queue spends its time.
    pieces: list[Bytes] = [b""] * (2 * len(ids))
    pieces[::2] = [raw[at : at + size] for at in range(0, len(raw), size)]
    if lengths.all():
        pieces[1::2] = messages
    else:
        pieces[1::2] = [
            message if length else b""
            for length, message in zip(lengths.tolist(), messages, strict=True)
        ]
    return pieces


def encode_actions(kind: Kind, sequences: NDArray[np.int64]) -> bytes:
    """Return the journal's deliver or ack records of these numbers."""
    import numpy as np

    assert kind in (Kind.DELIVER, Kind.ACK)
    return (sequences.astype(np.uint64) | np.uint64(kind << 62)).astype(">u8").tobytes()


def encode_segment_actions(relatives: NDArray[np.int64]) -> bytes:
    """Return the segment's records that are a message's deliver the first time, its ack the second."""
    import numpy as np

    return (relatives.astype(np.uint16) | np.uint16(0x4000)).astype(">u2").tobytes()


def encode_stored(ids: Sequence[bytes], messages: Sequence[bytes]) -> Iterator[Bytes]:
    """Yield the store's records of these messages, in pieces."""
    import numpy as np

    heads = np.zeros(len(ids), dtype=_STORE_HEAD)
    heads["id"] = np.frombuffer(_joined(ids), dtype="V16")
    heads["counted"] = np.fromiter(map(len, messages), np.int64, len(messages)) + MESSAGE_ID_SIZE
    raw = heads.tobytes()
    size = message_store.HEAD.size
    for at, message in enumerate(messages):
        yield raw[at * size : (at + 1) * size]
        yield message
        yield _END


def _joined(ids: Sequence[bytes]) -> bytes:
    joined = b"".join(ids)
    assert len(joined) == len(ids) * MESSAGE_ID_SIZE, "a message id has 16 bytes"
    return joined


def fill_segment_records(
    source: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    relatives: NDArray[np.int64],
    target: NDArray[np.uint8],
    places: NDArray[np.int64],
) -> None:
    """Make segment records of the journal's: ``source`` holds those at ``starts``, ``target`` gets them.

    ``lengths`` are those of the embedded messages, ``places`` where each record begins in the target.
    """
    compiled(_segment_records_kernel)(source, starts, lengths, relatives, target, places)


def segment_record_sizes(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how long segment records with embedded messages of these lengths are."""
    return lengths + segment.PUBLISH_SIZE


def _segment_records_kernel(
    source: Any, starts: Any, lengths: Any, relatives: Any, target: Any, places: Any
) -> None:
    """Copy records: two bytes of kind, persistence and number take the place of the first eight."""
    for i in range(len(starts)):
        to = places[i]
        persistent = 0 if source[starts[i]] >= 64 else 0x4000
        fields = put(target, to, 0x8000 + persistent + relatives[i], 2)
        copy(source, starts[i] + 8, target, fields, 32 + lengths[i])
