"""The frames of a segment in columns, as long as they are flawless; ``reading`` judges what is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from penstock.errors import BadData, PathRefused
from penstock.formats.beats.body import BodyDecoder
from penstock.formats.beats.frame_scan import FrameColumns, FrameScanner
from penstock.formats.beats.segment import Header, Options, PayloadFormat, decode_header
from penstock.formats.beats.state import Position
from penstock.storage.files import File
from penstock.tools.beats.location import Segment
from penstock.tools.beats.reading import HEADER_SIZE_MAX, HOLE_MIN, is_transformed
from penstock.tools.history import Progress, no_progress
from penstock.tools.target import opened

PIECE_SIZE: Final = 2**20
"""Bytes of a file that are read at a time."""


class FlawlessReading:
    """Reads the frames of a segment whose events are in CBOR, up to the first that is not as it should be."""

    def __init__(self, segment: Segment, *, key: bytes | None, start: Position | None) -> None:
        """``start`` must be a true boundary; ``None`` is the segment's start."""
        self._segment = segment
        self._key = key
        self._place = Position(segment.number) if start is None else start
        self._is_whole = False

    @property
    def rest(self) -> Position | None:
        """From where on ``read_segment`` is to be asked, once the frames are used up; ``None``: nothing is left."""
        return None if self._is_whole else self._place

    def frames(self, progress: Progress = no_progress) -> Iterator[FrameColumns]:
        """Yield good frames. Needs numpy and numba."""
        try:
            with opened(self._segment.path) as file:
                yield from self._frames(file, progress)
        except (OSError, PathRefused, BadData):
            self._is_whole = False  # whoever goes on from here meets it again, and tells it

    def _frames(self, file: File, progress: Progress) -> Iterator[FrameColumns]:
        header = decode_header(file.read(0, HEADER_SIZE_MAX))
        is_locked = bool(header.options & Options.ENCRYPTED) and self._key is None
        if header.payload_format is not PayloadFormat.CBOR or is_locked:
            return
        first = max(self._place.offset, header.size)
        if is_transformed(header):
            scanner = FrameScanner(header.size, first=first)
            pieces = self._decoded(header, file, progress)
        else:
            scanner = FrameScanner(first, index=self._place.index)
            pieces = self._plain(first, file, progress)
        for piece in pieces:
            for columns in scanner.feed(piece):
                good = _good(columns)
                if len(good):
                    behind = int(good.offset[-1] + good.size[-1])
                    self._place = Position(self._segment.number, behind, int(good.index[-1]) + 1)
                    yield good
                if len(good) < len(columns):
                    self._is_whole = False
                    return
        self._is_whole = self._is_whole and scanner.is_drained

    def _plain(self, position: int, file: File, progress: Progress) -> Iterator[bytes]:
        while True:
            data_at = file.next_data(position)
            if data_at is None or data_at - position > HOLE_MIN:
                self._is_whole = data_at is None and file.size() <= position
                return
            data = file.read(position, PIECE_SIZE)
            position += len(data)
            progress(len(data))
            yield data

    def _decoded(self, header: Header, file: File, progress: Progress) -> Iterator[bytes]:
        decoder = BodyDecoder(header.options, key=self._key)
        for piece in self._plain(header.size, file, progress):
            yield from decoder.feed(piece)
        self._is_whole = self._is_whole and decoder.finish() is None and decoder.torn_size == 0


def _good(columns: FrameColumns) -> FrameColumns:
    """Return the frames before the first that is not flawless."""
    odd = columns.verdict.nonzero()[0]
    if not len(odd):
        return columns
    end = int(odd[0])
    return replace(
        columns,
        offset=columns.offset[:end],
        size=columns.size[:end],
        index=columns.index[:end],
        verdict=columns.verdict[:end],
        payload_start=columns.payload_start[:end],
        payload_size=columns.payload_size[:end],
    )
