"""The end of a spool at which it grows: a batch goes into as many segments as it needs, all of it or none.

One at a time writes. A segment is sealed and durable before the next is begun, so that a crash can tear only the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import SpoolFull
from penstock.formats.beats.frame import FRAMING
from penstock.formats.beats.segment import segment_name
from penstock.storage.files import NO_ROOM, Files
from penstock.storage.spool_segments import Place, SegmentWriter
from penstock.storage.spool_values import SpoolSettings


@dataclass(frozen=True, slots=True)
class Written:
    """How far a segment is durable."""

    number: int
    path: Path
    size: int  # of the file
    count: int
    is_sealed: bool


class SpoolWriter:
    """Writes the segments of a spool. After an ``OSError`` it must not be used again, save for ``close``."""

    def __init__(
        self, files: Files, directory: Path, settings: SpoolSettings, *, next_number: int
    ) -> None:
        self._files = files
        self._directory = directory
        self._settings = settings
        self._next_number = next_number
        self._growing: SegmentWriter | None = None

    def write(self, payloads: Sequence[bytes]) -> list[Written]:
        """Return when all payloads are durable, with the segments that changed, oldest first.

        Raises ``SpoolFull`` if the disk has no room; then nothing is kept, and ``written`` tells what changed.
        """
        growing = [] if self._growing is None else [self._growing]
        places = [one.place() for one in growing]
        try:
            while payloads:
                fitting = self._fitting(growing[-1], payloads) if growing else 0
                if fitting == 0:
                    if growing:
                        growing[-1].seal()
                    growing.append(self._begin(self._next_number + len(growing) - len(places)))
                    continue
                growing[-1].append(payloads[:fitting] if fitting < len(payloads) else payloads)
                payloads = payloads[fitting:]
        except BaseException as error:
            # Whatever else it was, such as Ctrl-C: a body that is half written must not be gone on with.
            if isinstance(error, OSError) and error.errno not in NO_ROOM:
                raise
            self._take_back(growing, places)
            if isinstance(error, OSError):
                raise SpoolFull(
                    f"{self._directory}: {error.strerror}; nothing of this was kept, make room and try again"
                ) from None
            raise
        self._next_number += len(growing) - len(places)
        for one in growing[:-1]:
            one.close()
        self._growing = growing[-1]
        first = self._next_number - len(growing)
        return [
            self._written(first + place, one, is_sealed=one is not growing[-1])
            for place, one in enumerate(growing)
        ]

    def seal(self) -> Written | None:
        """End the segment that is being written. Return it, if there was one."""
        growing, self._growing = self._growing, None
        if growing is None:
            return None
        growing.seal()
        growing.close()
        return self._written(self._next_number - 1, growing, is_sealed=True)

    def close(self) -> None:
        """Let the file go as it is, after a failure."""
        if self._growing is not None:
            self._growing.close()
            self._growing = None

    def _begin(self, number: int) -> SegmentWriter:
        path = self._directory / segment_name(number)
        return SegmentWriter(self._files, path, self._settings.options, self._settings.key)

    def _fitting(self, writer: SegmentWriter, payloads: Sequence[bytes]) -> int:
        """Return how many of these payloads go into a segment that is being written."""
        room = self._settings.size_of_segment - max(writer.logical_size, writer.durable_size)
        if sum(map(len, payloads)) + FRAMING * len(payloads) <= room:
            return len(payloads)
        for count, payload in enumerate(payloads):
            room -= len(payload) + FRAMING
            if room < 0:
                return count
        return len(payloads)

    def _take_back(self, growing: list[SegmentWriter], places: list[Place]) -> None:
        """Undo writes for which the disk had no room. A segment that was cut ends there."""
        for one in reversed(growing[len(places) :]):
            one.remove()
        if places:
            growing[0].cut_back(places[0])

    def _written(self, number: int, writer: SegmentWriter, *, is_sealed: bool) -> Written:
        return Written(number, writer.path, writer.durable_size, writer.count, is_sealed)
