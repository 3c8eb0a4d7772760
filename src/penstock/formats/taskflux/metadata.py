"""Metadata: the term and the vote of a node (docs/formats/metadata.md).

Six layouts, told apart by marker, size and checksum; ``variant`` says which one a directory gets.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final

from penstock.binary import Bytes, checksum, hexadecimal
from penstock.errors import (
    CannotConvert,
    CorruptData,
    ForeignWrite,
    InvalidValue,
    TruncatedData,
    UnknownFormat,
    UnsupportedVersion,
)
from penstock.formats.taskflux.generation import Generation
from penstock.model import INT32_MAX, HardState, NodeId, Term

MARKER_1: Final = bytes.fromhex("2F6F0F2F")
MARKER_1A: Final = bytes.fromhex("2F0F6F2F")
MARKER: Final = bytes.fromhex("5A6EA012")
VERSION: Final = 1
SIZE_MAX: Final = 24

_STALE: Final = (
    ": another program wrote here since Penstock did, or the file is damaged. If TaskFlux ran on this directory, cut the"
    " file to its first 16 bytes and start again; if not, restore it"
)


class MetadataLayout(Enum):
    """A layout: generation, variant name, fields after the marker, and whether a checksum follows."""

    ONE_A = (Generation.ONE, "1a", MARKER_1A, "<ii?i", False)
    ONE_FLAG = (Generation.ONE, "1", MARKER_1, ">ii?i", False)
    ONE_B = (Generation.ONE, "1b", MARKER_1, ">iii", False)
    TWO_SEED = (Generation.TWO, "seed", MARKER, ">iii", True)
    TWO_CODE = (Generation.TWO, "code", MARKER, ">iii", False)
    THREE = (Generation.THREE, "3", MARKER, ">iqi", True)

    def __init__(
        self, generation: Generation, variant: str, marker: bytes, fields: str, checked: bool
    ) -> None:
        self.generation = generation
        self.variant = variant
        self.marker = marker
        self.fields = Struct(fields)
        self.checked = checked
        self.has_flag = "?" in fields
        self.size = 4 + self.fields.size + 4 * checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """A decoded metadata file."""

    layout: MetadataLayout
    state: HardState


def encode_metadata(state: HardState, layout: MetadataLayout) -> bytes:
    """Return the file of a node's state. Raises ``CannotConvert`` for what the layout cannot hold."""
    if layout is not MetadataLayout.THREE and state.term > INT32_MAX:
        raise CannotConvert(
            f"term {state.term} does not fit generation {layout.generation}; its terms end at {INT32_MAX}"
        )
    if layout is not MetadataLayout.THREE and not layout.has_flag and state.vote == 0:
        raise CannotConvert(
            "a vote for node 0 cannot be told from no vote in these files; use node ids from 1 on"
        )
    absent = -1 if layout is MetadataLayout.THREE else 0
    vote = absent if state.vote is None else state.vote
    values = (VERSION, state.term, state.vote is not None, vote)
    body = layout.fields.pack(*(values if layout.has_flag else values[:2] + values[3:]))
    return layout.marker + body + (checksum(body).to_bytes(4, "big") if layout.checked else b"")


def decode_metadata(data: Bytes) -> Metadata:
    """Return the state in a whole, non-empty metadata file. Raises ``BadData``."""
    layout = _detect(data)
    body = bytes(data[4 : 4 + layout.fields.size])
    version, term, *rest = layout.fields.unpack(body)
    if version != VERSION:
        raise UnsupportedVersion(
            "unsupported metadata version", offset=4, expected=str(VERSION), found=str(version)
        )
    vote = _vote(layout, rest)
    try:
        return Metadata(layout=layout, state=HardState(term=Term(term), vote=vote))
    except InvalidValue as error:
        raise CorruptData(str(error), offset=8) from None


def _vote(layout: MetadataLayout, rest: list[int]) -> NodeId | None:
    if layout.has_flag:
        return NodeId(rest[1]) if rest[0] else None
    absent = -1 if layout is MetadataLayout.THREE else 0
    return None if rest[0] == absent else NodeId(rest[0])


def _detect(data: Bytes) -> MetadataLayout:
    marker, size = bytes(data[:4]), len(data)
    if size < 4 and any(known.startswith(marker) for known in (MARKER, MARKER_1, MARKER_1A)):
        raise TruncatedData("the file ends inside the marker", offset=size)
    known = [layout for layout in MetadataLayout if layout.marker == marker]
    if not known:
        raise UnknownFormat(
            "not a metadata file",
            offset=0,
            expected=f"{hexadecimal(MARKER)} or {hexadecimal(MARKER_1)}",
            found=hexadecimal(marker),
        )
    for layout in known:
        if size == layout.size and layout.checked:
            stored = int.from_bytes(data[-4:], "big")
            actual = checksum(data[4:-4])
            if stored != actual:
                # TaskFlux of generation 2 has no checksum: it rewrites the first 16 bytes of a longer file in place.
                is_theirs = layout is MetadataLayout.TWO_SEED
                raise (ForeignWrite if is_theirs else CorruptData)(
                    f"metadata checksum does not match{_STALE if is_theirs else ''}",
                    offset=size - 4,
                    expected=f"{actual:08X}",
                    found=f"{stored:08X}",
                )
            return layout
        if size == layout.size:
            return layout
    sizes = " or ".join(str(size) for size in sorted({layout.size for layout in known}))
    error = TruncatedData if size < max(layout.size for layout in known) else CorruptData
    raise error(
        "metadata of an impossible size", offset=size, expected=f"{sizes} bytes", found=str(size)
    )
