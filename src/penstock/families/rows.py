"""Rows: what the commands print of records, tasks and damage, as plain dictionaries.

The names are a contract for every family (docs/formats/damage.md): ``family``, ``kind``, ``path``, ``offset``,
``size`` and ``status`` are in every row about a place in a file; bytes are base64 in ``payload``.
"""

from __future__ import annotations

from binascii import b2a_base64
from pathlib import Path
from typing import Any, Final

from penstock.binary import Bytes

Row = dict[str, Any]

LEFT_OUT: Final = "left-out"


def encode_payload(payload: Bytes) -> str:
    """Return bytes as rows contain them."""
    return b2a_base64(payload, newline=False).decode("ascii")


def place_row(
    family: str, path: Path, kind: str, offset: int | None, size: int | None, status: str
) -> Row:
    """Return the names that every row about a place has, in their order."""
    return {
        "family": family,
        "kind": kind,
        "path": str(path),
        "offset": offset,
        "size": size,
        "status": status,
    }
