"""The statuses of damage in a spool, and the severity of each."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.families.damage import Damage, Severity
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
_DAMAGED: Final = frozenset((BAD_END, BAD_STATE, OFF_BOUNDARY))  # every event is still read
_NAMED: Final = frozenset(
    (BAD_STATE, OFF_BOUNDARY, NO_KEY, WRONG_KEY, UNSUPPORTED, UNREADABLE, DUPLICATE)
)


def damage_at(
    path: Path,
    status: str,
    reason: str,
    *,
    offset: int | None = None,
    size: int | None = None,
    segment: int | None = None,
    index: int | None = None,
    data: bytes = b"",
    is_expected: bool = False,
) -> Damage:
    """Return a damage of a spool; ``offset`` is logical.

    ``is_expected``: a torn tail where a writer is at work, or was when it died.
    """
    return Damage(
        path=path,
        offset=offset,
        size=size,
        status=status,
        reason=reason,
        severity=Severity.HARMLESS if is_expected else severity_of(status),
        segment=segment,
        index=index,
        data=data,
    )


def severity_of(status: str) -> Severity:
    """Return what a status costs, except for a torn tail that a crash leaves."""
    if status in _HARMLESS:
        return Severity.HARMLESS
    return Severity.DAMAGED if status in _DAMAGED else Severity.LOST


def is_counted(damage: Damage) -> bool:
    """Return whether people get a count of such damage; of the others there are few, and each gets a line."""
    return not damage.is_harmless and damage.status not in _NAMED


def too_deep_words(count: int) -> str:
    """Return a line about events that are nested deeper than we decode."""
    return f"{count} events are nested more than {DEPTH_MAX} levels deep and were not decoded"
