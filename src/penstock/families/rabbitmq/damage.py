"""The statuses of damage in a broker's files, what each means, and its severity."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.families.damage import Damage, Severity
from penstock.families.tables import MISSING, MISSING_REASON
from penstock.formats.rabbitmq import journal, message_store, queue_v2
from penstock.formats.rabbitmq.merge import Anomaly

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
BAD_PROPERTIES: Final = "bad-properties"  # the message is whole, its properties cannot be read

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


def damage_at(
    path: Path,
    status: str,
    reason: str,
    *,
    offset: int | None = None,
    size: int | None = None,
    sequence: int | None = None,
) -> Damage:
    """Return a damage of a broker's files."""
    return Damage(
        path=path,
        offset=offset,
        size=size,
        status=status,
        reason=reason,
        severity=severity_of(status, offset),
        sequence=sequence,
    )


def severity_of(status: str, offset: int | None) -> Severity:
    """Return what a status costs: nothing if a crash leaves it and a broker handles it at its next start.

    Zeros behind records were never written. A file of nothing else was, and its contents are gone.
    """
    is_whole_file = status == Anomaly.ZEROS.word and offset == 0
    is_harmless = status in HARMLESS and not is_whole_file
    return Severity.HARMLESS if is_harmless else Severity.LOST
