"""Payloads as data: the text of a payload, and its JSON, where its bytes allow it. One rule for every family.

A payload is *text* if it is UTF-8 without control characters other than tab, line feed and carriage return. It is *JSON* if it
is text and a JSON object or array: a number or a word alone would make nearly every short payload JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from orjson import JSONDecodeError, loads

from penstock.binary import Bytes
from penstock.families.family import Row, encode_payload
from penstock.families.tables import PAYLOAD_JSON, PAYLOAD_TEXT

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters that no text has. Behind 0x7f they are two bytes of UTF-8 each."""

_CONTROL_BYTES: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

_OPENERS: Final = b"{[ \t\n\r"
"""Bytes that an object or an array can begin with."""

JSON_STARTS: Final = frozenset(_OPENERS.decode())
"""The same as characters."""


def text_of(payload: Bytes) -> str | None:
    """Return a payload as text; ``None`` if it is none."""
    if type(payload) is bytes and not payload.isascii() and _CONTROL_BYTES.search(payload):
        return None  # most bytes that are no text; quicker than an exception
    try:
        text = str(payload, "utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() or not _CONTROL.search(text) else None


def json_of(text: str | Bytes) -> Any:
    """Return the object or array that a text holds; ``None`` if it holds none."""
    try:
        found = loads(text)
    except JSONDecodeError:
        return None
    return found if type(found) is dict or type(found) is list else None


def payload_fields(payload: bytes) -> Row:
    """Return a payload as rows of tasks contain it: its bytes, and text and JSON where the bytes are that."""
    fields: Row = {"payload": encode_payload(payload)}
    text = text_of(payload)
    if text is not None:
        fields[PAYLOAD_TEXT] = text
        if text[:1] in JSON_STARTS and (value := json_of(text)) is not None:
            fields[PAYLOAD_JSON] = value
    return fields


def texts_of(payloads: Sequence[bytes]) -> list[str | None]:
    """Return ``text_of`` each payload. Payloads that are all printable ASCII are judged together, which is quick."""
    joined = b"".join(payloads)
    if joined.isascii() and joined.decode("ascii").isprintable():
        return [payload.decode("ascii") for payload in payloads]
    return [text_of(payload) for payload in payloads]


# --- columns -------------------------------------------------------------------------------------


def stored_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns that a family must read for some that are wanted: ``payload`` stands for what is made of it."""
    made = (PAYLOAD_TEXT, PAYLOAD_JSON)
    stored = [name for name in columns if name not in made]
    if len(stored) < len(columns) and "payload" not in stored:
        stored.append("payload")
    return stored


def with_payload_columns(
    batches: Iterator[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted columns of batches of ``stored_columns``."""
    import pyarrow as pa

    for batch in batches:
        text = text_column(batch.column("payload"))
        made = {PAYLOAD_TEXT: text}
        if PAYLOAD_JSON in columns:
            made[PAYLOAD_JSON] = json_column(text)
        arrays = [made[name] if name in made else batch.column(name) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def text_column(payloads: pa.Array) -> pa.Array:
    """Return payloads as text, null where one is none. Payloads that are ASCII are not copied."""
    import numpy as np
    import pyarrow as pa

    _, offsets, data = payloads.buffers()
    if not len(payloads) or data is None:
        return pa.nulls(len(payloads), pa.string()) if payloads.null_count else _retyped(payloads)
    ends = np.frombuffer(offsets, np.int32)[payloads.offset :][: len(payloads) + 1]
    found = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    is_text = np.ones(len(payloads), np.bool_)
    classes = _classes()[found]
    _mark(is_text, ends, np.flatnonzero(classes == 1))
    wide = np.unique(_rows_of(ends, np.flatnonzero(classes == 2)))
    view = memoryview(data)
    for row in wide[is_text[wide]].tolist():
        is_text[row] = text_of(view[ends[row] : ends[row + 1]]) is not None
    if is_text.all():
        return _retyped(payloads)
    import pyarrow.compute as pc

    kept = pc.if_else(pa.array(is_text), payloads, pa.scalar(None, pa.binary()))
    return _retyped(kept)


def json_column(text: pa.Array) -> pa.Array:
    """Return the texts that are JSON objects or arrays, null for the others."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    _, offsets, data = text.buffers()
    count = len(text)
    if not count or data is None:
        return pa.nulls(count, pa.string())
    ends = np.frombuffer(offsets, np.int32)[text.offset :][: count + 1]
    found = np.frombuffer(data, np.uint8)
    is_json = np.zeros(count, np.bool_)
    # A null has no bytes.
    rows = np.flatnonzero(ends[1:] > ends[:-1])
    rows = rows[np.isin(found[ends[rows]], np.frombuffer(_OPENERS, np.uint8))]
    view = memoryview(data)
    for row in rows.tolist():
        is_json[row] = json_of(view[ends[row] : ends[row + 1]]) is not None
    return pc.if_else(pa.array(is_json), text, pa.scalar(None, pa.string()))


def _classes() -> NDArray[np.uint8]:
    """Return what a byte is: 1 for a control character, 2 for a part of a wide one, 0 for any other."""
    import numpy as np

    classes = np.zeros(256, np.uint8)
    classes[128:] = 2
    classes[[byte for byte in range(128) if _CONTROL.match(chr(byte))]] = 1
    return classes


def _mark(is_text: NDArray[np.bool_], ends: NDArray[np.int32], places: NDArray[np.int64]) -> None:
    if len(places):
        is_text[_rows_of(ends, places)] = False


def _rows_of(ends: NDArray[np.int32], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows that bytes belong to, the first byte of all rows being 0."""
    import numpy as np

    return np.searchsorted(ends - ends[0], places, side="right") - 1


def _retyped(payloads: pa.Array) -> pa.Array:
    """Return bytes that are UTF-8 as a column of text over the same buffers."""
    import pyarrow as pa

    return pa.Array.from_buffers(
        pa.string(), len(payloads), payloads.buffers(), payloads.null_count, payloads.offset
    )
