"""Values that JSON and CSV have no form for, as text: bytes in base64, times in ISO 8601, maps as JSON objects."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_encode = json.JSONEncoder(separators=(",", ":")).encode


def json_lines(batch: pa.RecordBatch) -> str:
    """Return the rows as lines of JSON objects."""
    names = batch.schema.names
    columns = [values_of(column) for column in batch.columns]
    rows = zip(*columns, strict=True)
    return "".join([_encode(dict(zip(names, row, strict=True))) + "\n" for row in rows])


def values_of(column: pa.Array) -> list[Any]:
    """Return the values of a column as JSON has them."""
    import pyarrow.types as kinds

    values: list[Any] = column.to_pylist()
    if kinds.is_integer(column.type) or kinds.is_string(column.type):
        return values
    if kinds.is_map(column.type):
        return [None if pairs is None else _mapping(pairs) for pairs in values]
    return [plain(value) for value in values]


def text_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows as CSV has them: every column that is neither a number nor text becomes text."""
    import pyarrow as pa
    import pyarrow.types as kinds

    made = [
        column
        if kinds.is_integer(column.type) or kinds.is_string(column.type)
        else pa.array(map(_text, values_of(column)), pa.string())
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(made, names=batch.schema.names)


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else _encode(value)


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    match value:
        case None | bool() | int() | str():
            return value
        case bytes():
            return b64encode(value).decode("ascii")
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case dict():
            return {str(name): plain(each) for name, each in value.items()}
        case list():
            return [plain(each) for each in value]
        case _:
            return str(value)


def _mapping(pairs: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    return {name if isinstance(name, str) else str(plain(name)): plain(v) for name, v in pairs}
