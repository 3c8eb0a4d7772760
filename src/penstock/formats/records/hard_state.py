"""The file ``hard-state``: term and vote of a node (docs/formats/records.md).

Replaced and synced whenever one of them changes. Nothing else is in it: an unsynced write must not destroy a vote.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.binary import Bytes, hexadecimal
from penstock.errors import (
    BadRecord,
    InvalidValue,
    TruncatedData,
    UnknownFormat,
    UnsupportedVersion,
)
from penstock.formats.records.checksum import crc32c
from penstock.model import HardState, NodeId, Term

SIZE: Final = 32
MARKER: Final = b"PSH4"
VERSION: Final = 1
_NO_VOTE: Final = -1
_FIELDS: Final = Struct("<4sIqqI")  # marker, version, term, vote, 0
_CHECKSUM: Final = Struct("<I")


def encode_hard_state(state: HardState) -> bytes:
    """Return the file of a node's term and vote."""
    vote = _NO_VOTE if state.vote is None else state.vote
    fields = _FIELDS.pack(MARKER, VERSION, state.term, vote, 0)
    return fields + _CHECKSUM.pack(crc32c(fields))


def decode_hard_state(data: Bytes) -> HardState:
    """Return term and vote. Raises ``BadData``: a node that guesses its vote could vote twice."""
    raw = bytes(data[: SIZE + 1])
    if raw[:4] != MARKER[: len(raw)]:
        raise UnknownFormat(
            "not a hard state", offset=0, expected=hexadecimal(MARKER), found=hexadecimal(raw[:4])
        )
    if len(raw) != SIZE:
        error = TruncatedData if len(raw) < SIZE else BadRecord
        raise error(
            "hard state of an impossible size",
            offset=len(raw),
            expected=f"{SIZE} bytes",
            found=str(len(data)),
        )
    _, version, term, vote, zero = _FIELDS.unpack_from(raw)
    (stored,) = _CHECKSUM.unpack_from(raw, _FIELDS.size)
    actual = crc32c(raw[: _FIELDS.size])
    if stored != actual:
        raise BadRecord(
            "checksum of the hard state does not match",
            offset=_FIELDS.size,
            expected=f"{actual:08X}",
            found=f"{stored:08X}",
        )
    if version != VERSION:
        raise UnsupportedVersion(
            "unsupported version of the hard state",
            offset=4,
            expected=str(VERSION),
            found=str(version),
        )
    try:
        state = HardState(term=Term(term), vote=None if vote == _NO_VOTE else NodeId(vote))
    except InvalidValue as error:
        raise BadRecord(str(error), offset=8) from None
    if zero:
        raise BadRecord("a reserved field of the hard state is not 0", offset=24)
    return state
