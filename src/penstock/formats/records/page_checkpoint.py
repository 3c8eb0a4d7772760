"""The body of kind 132: the checkpoint of a paged queue, in a local snapshot behind its end (docs/formats/records.md).

The content is that of the engine of paged queues (docs/formats/paged.md); records only carry it.
"""

from __future__ import annotations

from penstock.binary import Bytes
from penstock.errors import BadRecord
from penstock.formats.records.columns import TWO_U32, ColumnReader, padded


def decode_page_checkpoint(data: Bytes, start: int, end: int) -> bytes:
    """Return the content of the body in ``data[start:end]``. Raises ``BadRecord``."""
    reader = ColumnReader(data, start, end, 0)
    at = reader.take(TWO_U32.size, "a page checkpoint")
    size, zero = TWO_U32.unpack_from(data, at)
    content = reader.take(size, "a page checkpoint")
    if zero or reader.at != end:
        raise BadRecord("a page checkpoint does not fit its record", offset=at)
    return bytes(data[content : content + size])


def encode_page_checkpoint(content: bytes) -> bytes:
    """Return the body of a record."""
    return TWO_U32.pack(len(content), 0) + padded(content)
