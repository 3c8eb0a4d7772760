"""What a classic queue holds: its journal and its segments together (docs/formats/rabbitmq.md).

A flush appends the journal to the segments and then empties it, so a crash in between leaves facts
twice, or acks of messages whose segment is gone. ``merge`` joins what all files say: a message is
published, delivered or acked if any file says so. It never fails. What a broker's own files
should not hold is a ``Finding``, with its place, and a caller may refuse it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, assert_never

from penstock.formats.rabbitmq.checkpoint import SEQUENCE_END
from penstock.formats.rabbitmq.journal import Kind, Piece, SequenceNumber, Status


class Place(NamedTuple):
    """Where a record begins: the number of its segment, or ``None`` for the journal, and the offset."""

    segment: int | None
    offset: int


class Entry(NamedTuple):
    """A message that was published, and what became of it."""

    sequence: SequenceNumber
    message_id: bytes
    is_persistent: bool
    expiry_us: int
    body_size: int
    length: int  # of the embedded message; 0 if it is in the message store
    place: Place  # of the publish record: the segment's, if there is one
    size: int  # of the publish record; the embedded message is its last part
    is_delivered: bool
    is_acked: bool


class Anomaly(IntEnum):
    """What a finding says of a record, or of a stretch of a file. The first four and the last are statuses."""

    BAD_MESSAGE = 1  # a publish record whose embedded message is none; it counts as published
    BAD_RECORD = 2  # the rest of the file is no record
    TORN = 3  # the file ends inside a record
    ZEROS = 4  # the rest of the file was never written
    FLUSHED = 5  # the journal repeats what a segment says: a flush was interrupted
    ORPHAN = (
        6  # a deliver or ack of a message that no file publishes; mostly its segment is deleted
    )
    REPEATED = 7  # a record that says again what its own file says
    REPLACED = 8  # a second publish record of one message in a segment; the later one counts
    # Two publish records of one number with different ids. The segment's counts, in a segment the later one.
    CONFLICTING = 9
    UNDELIVERED = 10  # an ack of a message that was never delivered; it counts
    BAD_LENGTH = 11  # a publish record whose message proves another length than it says; it counts

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


class Finding(NamedTuple):
    """Something that a broker's own files should not hold, or only after a crash."""

    anomaly: Anomaly
    place: Place
    sequence: SequenceNumber | None  # none for a stretch that is no record


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Every message that was published, in queue order; and what was odd, by file and offset."""

    entries: list[Entry]
    findings: list[Finding]


def is_live(entry: Entry) -> bool:
    """Return whether the message is still in the queue, waiting or handed out."""
    return not entry.is_acked


def merge(journal: Iterable[Piece], segments: Mapping[int, Iterable[Piece]]) -> Merged:
    """Return what the pieces of a journal and of segments, by number, add up to.

    Every piece that a scan yields is taken, those that are no records too: they become findings.
    """
    findings: list[Finding] = []
    flushed: dict[SequenceNumber, _State] = {}
    for segment in sorted(segments):
        _collect_segment(segment, segments[segment], flushed, findings)
    journaled = _collect_journal(journal, flushed, findings)
    entries = []
    for sequence in sorted(flushed.keys() | journaled.keys()):
        states = [s[sequence] for s in (flushed, journaled) if sequence in s]
        entry = _entry(sequence, states, findings)
        if entry is not None:
            entries.append(entry)
    findings.sort(key=_order)
    return Merged(entries=entries, findings=findings)


class _State:
    """What one file says of a message so far: the place of each of its three records."""

    __slots__ = ("acked", "delivered", "publish", "published")

    def __init__(self) -> None:
        self.publish: Piece | None = None
        self.published: Place | None = None
        self.delivered: Place | None = None
        self.acked: Place | None = None


def _collect_segment(
    segment: int,
    pieces: Iterable[Piece],
    states: dict[SequenceNumber, _State],
    findings: list[Finding],
) -> None:
    for piece in pieces:
        place = Place(segment, piece.offset)
        _note_status(piece, place, findings)
        if piece.kind is Kind.NONE:
            continue
        state = states.setdefault(piece.sequence, _State())
        if piece.kind in (Kind.PUBLISH_PERSISTENT, Kind.PUBLISH_TRANSIENT):
            if state.published or state.delivered:
                is_same = state.publish is None or state.publish.message_id == piece.message_id
                anomaly = Anomaly.REPLACED if is_same else Anomaly.CONFLICTING
                findings.append(Finding(anomaly, place, piece.sequence))
            state = states[piece.sequence] = _State()
            state.publish, state.published = piece, place
        elif state.delivered is None:
            state.delivered = place
        elif state.acked is None:
            state.acked = place
        else:
            findings.append(Finding(Anomaly.REPEATED, place, piece.sequence))


def _collect_journal(
    pieces: Iterable[Piece],
    flushed: Mapping[SequenceNumber, _State],
    findings: list[Finding],
) -> dict[SequenceNumber, _State]:
    """Return what the journal says that the segments do not, or say otherwise."""
    states: dict[SequenceNumber, _State] = {}
    nothing = _State()
    for piece in pieces:
        place = Place(None, piece.offset)
        _note_status(piece, place, findings)
        sequence = piece.sequence
        before = flushed.get(sequence, nothing)
        state = states.get(sequence, nothing)
        anomaly: Anomaly | None = None
        match piece.kind:
            case Kind.NONE:
                continue
            case Kind.PUBLISH_PERSISTENT | Kind.PUBLISH_TRANSIENT:
                anomaly = _publish_anomaly(piece, before, state)
            case Kind.DELIVER:
                anomaly = _anomaly(before.delivered, state.delivered)
            case Kind.ACK:
                anomaly = _anomaly(before.acked, state.acked)
            case Kind.DELIVER_OR_ACK:
                raise AssertionError("a journal tells delivers from acks")
            case _ as never:
                assert_never(never)
        if anomaly is not None:
            findings.append(Finding(anomaly, place, sequence))
            continue
        _note(states.setdefault(sequence, _State()), piece, place)
    return states


def _note(state: _State, piece: Piece, place: Place) -> None:
    """Take down what a journal's record is the first to say."""
    match piece.kind:
        case Kind.PUBLISH_PERSISTENT | Kind.PUBLISH_TRANSIENT:
            state.publish, state.published = piece, place
        case Kind.DELIVER:
            state.delivered = place
        case _:
            state.acked = place


def _anomaly(flushed: Place | None, journaled: Place | None) -> Anomaly | None:
    if journaled is not None:
        return Anomaly.REPEATED
    return Anomaly.FLUSHED if flushed is not None else None


def _publish_anomaly(piece: Piece, flushed: _State, journaled: _State) -> Anomaly | None:
    """Return what is odd about a publish record in the journal; the first one that was met counts."""
    for earlier in (flushed.publish, journaled.publish):
        if earlier is not None and earlier.message_id != piece.message_id:
            return Anomaly.CONFLICTING
    return _anomaly(flushed.published, journaled.published)


def _note_status(piece: Piece, place: Place, findings: list[Finding]) -> None:
    if piece.status is not Status.OK:
        sequence = None if piece.kind is Kind.NONE else piece.sequence
        findings.append(Finding(Anomaly[piece.status.name], place, sequence))


def _entry(sequence: SequenceNumber, states: list[_State], findings: list[Finding]) -> Entry | None:
    """Return what segment and journal together say of a message, or ``None`` if none publishes it."""
    delivered = [state.delivered for state in states if state.delivered]
    acked = [state.acked for state in states if state.acked]
    publish, place = next(
        ((s.publish, s.published) for s in states if s.publish and s.published), (None, None)
    )
    if publish is None or place is None:
        if sequence >= SEQUENCE_END and not delivered:
            return None  # a seal of a paged queue's journal
        findings.extend(Finding(Anomaly.ORPHAN, p, sequence) for p in delivered + acked)
        return None
    if not delivered:
        findings.extend(Finding(Anomaly.UNDELIVERED, p, sequence) for p in acked)
    return Entry(
        sequence=sequence,
        message_id=publish.message_id,
        is_persistent=publish.kind is Kind.PUBLISH_PERSISTENT,
        expiry_us=publish.expiry_us,
        body_size=publish.body_size,
        length=publish.length,
        place=place,
        size=publish.size,
        is_delivered=bool(delivered),
        is_acked=bool(acked),
    )


def _order(finding: Finding) -> tuple[int, int, int]:
    """Return the sort key: segments by number, the journal behind them, then offsets."""
    segment, offset = finding.place
    return (segment is None, segment or 0, offset)
