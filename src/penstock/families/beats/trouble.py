"""What is odd or damaged in a spool, with its place. Told to whoever reads, never raised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import PathRefused
from penstock.formats.beats.event import DEPTH_MAX

TORN: Final = "torn"  # the file ends inside a frame or its header
BAD_CHECKSUM: Final = "bad-checksum"
GAP: Final = "gap"  # bytes that are no frame, and frames behind them
BAD_END: Final = "bad-end"  # a whole frame, but the length at its end is another
BAD_BODY: Final = "bad-body"  # what is compressed cannot be taken apart any further
BAD_EVENT: Final = "bad-event"  # a whole frame whose payload is no event
TOO_DEEP: Final = "too-deep"  # a whole frame whose event is nested deeper than we decode
BAD_STATE: Final = "bad-state"
OFF_BOUNDARY: Final = "off-boundary"  # the position is inside a frame, or counts others before it
PAST_END: Final = "past-end"  # the position is behind the end of its segment
MISSING: Final = "missing"  # frames that the header counts
NO_KEY: Final = "no-key"
WRONG_KEY: Final = "wrong-key"
UNSUPPORTED: Final = "unsupported"  # a version or an option that we do not know
UNREADABLE: Final = "unreadable"  # the system does not let the file be read
DUPLICATE: Final = "duplicate"  # a second file with the number of another
TOO_LARGE: Final = "too-large"  # for a node
NOT_ENCODABLE: Final = "not-encodable"  # in a way that Beats reads
GONE: Final = "gone"  # removed by the owner since the directory was listed

LEFT_OUT: Final = {
    TOO_LARGE: "no node takes tasks so large",
    NOT_ENCODABLE: "Beats could not read them",
}
"""Why whole events are not taken along."""

_HARMLESS: Final = frozenset((PAST_END, GONE, TOO_DEEP))
_LOSSLESS: Final = frozenset((BAD_END, BAD_STATE, OFF_BOUNDARY, *_HARMLESS))
_SAID: Final = frozenset(
    (BAD_STATE, OFF_BOUNDARY, NO_KEY, WRONG_KEY, UNSUPPORTED, UNREADABLE, DUPLICATE)
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One oddity: its file, where in the segment's logical stream it begins, and what it is."""

    path: Path
    offset: int | None
    size: int | None
    status: str
    reason: str
    segment: int | None = None  # its number
    index: int | None = None  # frames of the segment before it
    data: bytes = b""  # the first of its bytes
    is_expected: bool = False  # a torn tail where a writer is at work, or was when it died

    @property
    def is_damage(self) -> bool:
        """Return whether the files are not as a writer leaves them, alive or killed."""
        return not self.is_expected and self.status not in _HARMLESS

    @property
    def is_loss(self) -> bool:
        """Return whether an event may be missing from what is read."""
        return self.is_damage and self.status not in _LOSSLESS

    @property
    def is_counted(self) -> bool:
        """Return whether it is one of many places; the others, of which there are few, are worth a line each."""
        return self.is_damage and self.status not in _SAID

    @property
    def words(self) -> str:
        """The oddity in one line for people."""
        where = f"{self.path}" if self.offset is None else f"{self.path}, offset {self.offset}"
        size = "" if self.size is None else f", {self.size} bytes"
        return f"{where}{size}: {self.reason}"


def too_deep_words(count: int) -> str:
    """Return a line about events that are nested deeper than we decode."""
    return f"{count} events are nested more than {DEPTH_MAX} levels deep and were not decoded"


Tell = Callable[[Trouble], None]
"""How a reading tells what it meets."""


def words_of(error: OSError | PathRefused) -> str:
    """Return why a file cannot be read; its path is told beside."""
    return str((error.strerror if isinstance(error, OSError) else None) or error)
