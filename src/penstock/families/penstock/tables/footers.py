"""The footer of a sealed segment, found from the end of the file: a planner reads nothing else of it."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import BadData
from penstock.formats.records.footer import Footer, decode_footer
from penstock.formats.records.header import (
    HEADER_SIZE,
    MARKER,
    RECORD_SIZE_MAX,
    Kind,
    check_body,
    decode_header,
)
from penstock.formats.records.read import Chain
from penstock.formats.records.segment import FILE_HEADER_SIZE
from penstock.storage.files import File

_TAIL: Final = 2**16
"""Bytes that are read first: the footer of a full segment with a few hundred queues."""


class FoundFooter(NamedTuple):
    """A footer, where it begins, and what the entry behind the segment must continue."""

    offset: int
    footer: Footer
    chain: Chain


def find_footer(file: File, first_index: int | None, *, is_last: bool) -> FoundFooter | None:
    """Return the footer that a segment ends with, ``None`` if it has none that can be believed.

    The last segment of a log mostly has none: only the end of the file is looked at. It is believed as far as a plan goes: a split that does not begin and end where the footer says is read again without it.
    """
    size = file.size()
    tail = _TAIL
    while True:
        start = max(FILE_HEADER_SIZE, (size - tail) & ~7)
        data = file.read(start, size - start)
        found = _last_footer(data, start)
        if found is not None:
            marks = found.footer.marks
            fits = bool(marks) and marks[0].offset == FILE_HEADER_SIZE
            is_whole = fits and first_index in (None, marks[0].index)
            return found if is_whole and marks[-1].offset < found.offset else None
        if start == FILE_HEADER_SIZE or tail > RECORD_SIZE_MAX or is_last:
            return None
        tail *= 8


def _last_footer(data: bytes, base: int) -> FoundFooter | None:
    """Return the footer that ends the bytes, but for zeros; there is none that begins before them."""
    end = len(data.rstrip(b"\x00"))
    at = data.rfind(MARKER, 0, end)
    while at >= 0:
        if (base + at) % 8 == 0:
            found = _footer_at(data, at, end, base)
            if found is not None:
                return found
        at = data.rfind(MARKER, 0, at)
    return None


def _footer_at(data: bytes, at: int, end: int, base: int) -> FoundFooter | None:
    try:
        header = decode_header(data, at)
        if header.kind != Kind.FOOTER or at + header.size < end:
            return None
        check_body(data, at, header)
        footer = decode_footer(data, at + HEADER_SIZE, at + header.size)
    except BadData:
        return None
    return FoundFooter(base + at, footer, Chain(header.previous, header.index))
