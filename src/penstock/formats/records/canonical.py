"""Canonical JSON: RFC 8785 with integers only, so that equal values have equal bytes (docs/formats/records.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from penstock.binary import Bytes
from penstock.errors import BadRecord, InvalidValue

INTEGER_MAX: Final = 2**53
"""The largest integer, as every reader of JSON represents it exactly."""

DEPTH_MAX: Final = 32
"""Levels of objects and arrays: bounds the recursion of a reader."""

Json = Any
"""None, a bool, an int, a str, a list of them or a dict of them by str."""


def encode_canonical(value: Json) -> bytes:
    """Return the one text of a value. Raises ``InvalidValue`` for what canonical JSON has no text for."""
    try:
        text = json.dumps(_ordered(value, 0), ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidValue("canonical JSON has no text for half of a surrogate pair") from None


def decode_canonical(text: Bytes) -> Json:
    """Return the value of a canonical text. Raises ``BadRecord`` for any other text, also for other JSON."""
    raw = bytes(text)
    try:
        value = json.loads(raw.decode("utf-8"), parse_float=_refuse, parse_constant=_refuse)
        is_same = encode_canonical(value) == raw
    except (ValueError, RecursionError, InvalidValue) as error:
        raise BadRecord(f"not canonical JSON: {error}") from None
    if not is_same:
        raise BadRecord("JSON that is not canonical: order, spaces, escapes or a name twice")
    return value


def _refuse(number: str) -> NoReturn:
    raise InvalidValue(f"{number} is not an integer")


def _ordered(value: Json, depth: int) -> Json:
    """Return a value whose names are in the order of their UTF-16 code units, as RFC 8785 demands."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        if not -INTEGER_MAX <= value <= INTEGER_MAX:
            raise InvalidValue(f"{value} is beyond 2^53; canonical JSON holds it as a string")
        return value
    if depth >= DEPTH_MAX:
        raise InvalidValue(f"more than {DEPTH_MAX} levels of objects and arrays")
    if isinstance(value, list | tuple):
        return [_ordered(item, depth + 1) for item in value]
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        return {name: _ordered(value[name], depth + 1) for name in names}
    raise InvalidValue(f"canonical JSON has no text for {type(value).__name__}")
