"""Bounds for fields of an index that no checksum covers: a value outside them is damage.

A flipped bit in an expiry makes a message expire at once, or never; one beyond the range of a broker's timers ends the
queue's process when a broker loads the message. A message with such a field is kept: its body is whole.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

EXPIRY_MIN_US: Final = 946_684_800_000_000
"""2000-01-01: no broker is as old."""

CLOCK_MIN_US: Final = 1_767_225_600_000_000
"""2026-01-01: a clock that is earlier is wrong, and must not make good expiries look impossible."""

TTL_MAX_US: Final = 10 * 366 * 86_400 * 1_000_000
"""Ten years: the longest time to live that is believed. Brokers up to 3.10 take 50 days at most."""

SEQUENCE_BELIEVED: Final = 2**48
"""The first sequence number that is not believed: a million messages a second reach it in nine years."""

BAD_EXPIRY: Final = "bad-expiry"
BAD_SIZE: Final = "bad-size"
BAD_SEQUENCE: Final = "bad-sequence"
BAD_ACK: Final = "bad-ack"  # of a message with an impossible sequence number


def expiry_end_us() -> int:
    """Return the first expiry that is not believed now."""
    return max(time.time_ns() // 1000, CLOCK_MIN_US) + TTL_MAX_US


def is_plausible_expiry(expiry_us: int, end_us: int) -> bool:
    """Return whether a message may have this expiry; 0 is never."""
    return expiry_us == 0 or EXPIRY_MIN_US <= expiry_us < end_us


def expiry_reason(expiry_us: int) -> str:
    """Return what is wrong with an expiry, and what is done about it."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=expiry_us)
        shown = moment.isoformat()
    except OverflowError:
        shown = f"year {1970 + expiry_us // (31_556_952 * 1_000_000)}"
    return f"an impossible expiry, {shown}: the message is read as one that never expires"


def size_reason(said: int, found: int) -> str:
    return f"the index says {said} bytes of body, the message has {found}"


def sequence_reason(sequence: int) -> str:
    return f"an impossible sequence number, {sequence}: its place in the queue is unknown"
