"""What is odd or damaged in a broker's files, with its place. Told to whoever reads, never raised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import PathRefused
from penstock.families.columns import MISSING, MISSING_REASON
from penstock.formats.rabbitmq import journal, message_store, queue_v2
from penstock.formats.rabbitmq.merge import Anomaly


class Trouble(NamedTuple):
    """One oddity: its file, where it begins, and what it is."""

    path: Path
    offset: int | None
    size: int | None
    status: str
    reason: str
    sequence: int | None = None

    @property
    def is_damage(self) -> bool:
        """Return whether something may be lost; the rest is what a crash leaves and a broker mends.

        Zeros behind records were never written. A file of nothing else was, and its contents are gone.
        """
        is_whole_file = self.status == Anomaly.ZEROS.word and self.offset == 0
        return is_whole_file or self.status not in HARMLESS


Tell = Callable[[Trouble], None]
"""How a reading tells what it meets."""

HARMLESS: Final = frozenset(
    anomaly.word
    for anomaly in (
        Anomaly.ZEROS,
        Anomaly.FLUSHED,
        Anomaly.ORPHAN,
        Anomaly.REPEATED,
        Anomaly.REPLACED,
        Anomaly.UNDELIVERED,
    )
)

UNREADABLE: Final = "unreadable"  # the system does not let the file be read
BAD_MESSAGE: Final = "bad-message"  # what should be a message is none

REASONS: Final[dict[str, str]] = {
    Anomaly.BAD_MESSAGE.word: "the message does not begin like one",
    Anomaly.BAD_RECORD.word: "no record begins here, and none can be found behind it",
    Anomaly.TORN.word: "the file ends inside a record",
    Anomaly.ZEROS.word: "zeros up to the end: never written",
    Anomaly.FLUSHED.word: "the journal repeats what a segment says: a flush was interrupted",
    Anomaly.ORPHAN.word: "of a message that no file publishes: its segment is deleted",
    Anomaly.REPEATED.word: "the file says this twice",
    Anomaly.REPLACED.word: "a second publish of the message; the later one counts",
    Anomaly.CONFLICTING.word: "two messages with one sequence number: one of them is lost; the segment's counts, in a"
    " segment the later one",
    Anomaly.UNDELIVERED.word: "an ack of a message that was never delivered",
    message_store.Status.BAD_MARKER.word: "the end marker is not there",
    message_store.Status.BAD_LENGTH.word: "an impossible length",
    message_store.Status.LEFTOVER.word: "bytes behind the end that are no records",
    queue_v2.SlotStatus.BAD_STATUS.word: "neither a message nor an empty slot",
    queue_v2.SlotStatus.BAD_LOCATION.word: "a location that there is not",
    queue_v2.RecordStatus.BAD_CHECKSUM.word: "the message does not match its checksum",
    MISSING: MISSING_REASON,
}

HOLE: Final = "zeros: room that was never filled, or a hole"


def reason_of(status: journal.Status | message_store.Status | queue_v2.SlotStatus) -> str:
    """Return what a status that is not ``OK`` means, in words."""
    return HOLE if status is message_store.Status.ZEROS else REASONS[status.word]


def words_of(error: OSError | PathRefused) -> str:
    """Return why a file cannot be read; its path is told beside."""
    return str((error.strerror if isinstance(error, OSError) else None) or error)


def ignore(trouble: Trouble) -> None:
    """Tell nobody: what is wrong in a store matters to some readers only if a message is missing."""
    del trouble
