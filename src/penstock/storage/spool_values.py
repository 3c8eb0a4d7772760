"""What a spool is told and what it tells: settings, batches, how it stands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.errors import InvalidValue
from penstock.formats.beats.frame import FRAME_MAX, FRAMING
from penstock.formats.beats.segment import KEY_SIZE, Header, Options, PayloadFormat
from penstock.formats.beats.state import Position
from penstock.storage.spool_segments import HEADER_MAX, WRITTEN_VERSION

SEGMENT_SHARE: Final = 10
"""A segment is this part of the whole, unless said otherwise."""

SEGMENT_MIN: Final = 4096

SEGMENT_OVERHEAD: Final = 64
"""Bytes of a segment beside its frames, at most: header, vector, head and end of the LZ4 frame, a block's length."""

BLOCK: Final = 2**22
BLOCK_OVERHEAD: Final = 4
"""What LZ4 adds to a block that it cannot make smaller."""

PLAIN: Final = Options(0)
"""Neither compressed nor encrypted: what every Beats since 8.4 reads."""


NEEDS_KEY: Final = (
    "encryption needs a key; give one by --key-file, --password-file or PENSTOCK_SPOOL_KEY"
)


class WhenFull(StrEnum):
    """What becomes of a task for which there is no room."""

    BLOCK = "block"  # its producer waits
    REFUSE = "refuse"
    DROP_OLDEST = "drop-oldest"  # the oldest segment goes, sent or not


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolSettings:
    """How large a spool may grow, and what it does then."""

    max_size: int = 2**30  # bytes on the disk
    segment_size: int | None = None  # a tenth of max_size
    write_ahead: int = 2048  # frames that wait for the write under way
    when_full: WhenFull = WhenFull.BLOCK
    options: Options = PLAIN  # of the segments that are written
    key: bytes | None = None
    ack_window: int = 8192  # frames whose acknowledgement a crash may forget

    def __post_init__(self) -> None:
        """Raise ``InvalidValue`` for settings that no spool can keep."""
        size = self.size_of_segment
        if not SEGMENT_MIN <= size <= FRAME_MAX:
            raise InvalidValue(
                f"a segment holds {SEGMENT_MIN} to {FRAME_MAX} bytes, not {size}; it is a tenth of the whole unless"
                " it is given"
            )
        if self.max_size < 2 * size:
            raise InvalidValue(
                f"a spool of {self.max_size} bytes has no room for two segments of {size}"
            )
        if self.write_ahead < 1 or self.ack_window < 0:
            raise InvalidValue("write_ahead is at least 1, and ack_window at least 0")
        if self.key is not None and len(self.key) != KEY_SIZE:
            raise InvalidValue(f"a key has {KEY_SIZE} bytes, not {len(self.key)}")
        if self.options & Options.ENCRYPTED and self.key is None:
            raise InvalidValue(NEEDS_KEY)

    @property
    def payload_format(self) -> PayloadFormat:
        """What payloads must be written as."""
        return Header(WRITTEN_VERSION, 0, self.options).payload_format

    @property
    def size_of_segment(self) -> int:
        if self.segment_size is not None:
            return self.segment_size
        return min(FRAME_MAX, self.max_size // SEGMENT_SHARE)

    @property
    def payload_max(self) -> int:
        """The largest payload that fits in a segment, and at once."""
        return min(self.size_of_segment - HEADER_MAX, self.publication_max) - FRAMING

    @property
    def publication_max(self) -> int:
        """The most bytes, framing included, that can be published at once.

        The newest segment stays until there is a newer one, so more room there may never be.
        """
        overhead = self.cost(self.max_size) - self.max_size
        return self.max_size - self.cost(self.size_of_segment) - overhead

    def cost(self, size: int) -> int:
        """Return the bytes on the disk that frames of ``size`` bytes take at once, at most."""
        segments = size // self.size_of_segment + 2
        return size + segments * SEGMENT_OVERHEAD + size // BLOCK * BLOCK_OVERHEAD


@dataclass(frozen=True, slots=True)
class SpoolBatch:
    """Payloads that were handed out, all of one segment, from ``start`` to ``end``."""

    number: int  # of the batch, in the order of reading
    start: Position
    end: Position
    payload_format: PayloadFormat
    payloads: list[bytes]

    def __len__(self) -> int:
        return len(self.payloads)


@dataclass(frozen=True, slots=True)
class SpoolStat:
    """The size and the counters of a spool."""

    segments: int
    size: int  # bytes on the disk
    size_max: int
    published: int  # frames since the spool was opened
    acknowledged: int
    dropped: int  # frames that "drop-oldest" deleted unsent
    damaged: int  # damaged places that were skipped
    position: Position  # of the oldest frame that is not acknowledged
