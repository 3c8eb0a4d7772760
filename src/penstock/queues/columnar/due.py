"""When the next delay of a queue ends and the next task expires.

Chunks and pages of the directory keep lower bounds, so there is no note for each task and nothing to drop when a task
is removed. A bound that has passed is computed again from the tasks that are there.
"""

from __future__ import annotations

from penstock.formats.records.columns import NONE
from penstock.queues.columnar.chunk import Chunk
from penstock.queues.columnar.columns import NEVER, Column
from penstock.queues.columnar.directory import Directory, Page, Slice


def next_delay(directory: Directory, now_ms: int) -> int | None:
    """Return the earliest end of a delay after ``now_ms``. The clock of the caller must not go back."""
    for page in directory.pages:
        if page.delay_ms <= now_ms:
            _renew_delays(page, now_ms)
    least = min([page.delay_ms for page in directory.pages], default=NEVER)
    return None if least >= NEVER else least


def next_expiry(directory: Directory, now_ms: int) -> int | None:
    """Return when the next task expires. Bounds that have passed without a task that expires are renewed."""
    for page in directory.pages:
        if page.expiry_ms <= now_ms:
            _renew_expiries(page, now_ms)
    least = min([page.expiry_ms for page in directory.pages], default=NEVER)
    return None if least >= NEVER else least


def due(directory: Directory, now_ms: int, chunks_max: int) -> list[Slice]:
    """Return tasks whose life is over, of up to ``chunks_max`` chunks."""
    found: list[Slice] = []
    for page in directory.pages:
        if page.expiry_ms > now_ms:
            continue
        for chunk in page.chunks:
            details = chunk.details
            if details is None or details.expiry_ms > now_ms:
                continue
            places = details.expired(chunk.alive(range(chunk.count)), now_ms - chunk.base_ms)
            if places:
                found.append((chunk, places))
                if len(found) == chunks_max:
                    return found
    return found


def _renew_delays(page: Page, now_ms: int) -> None:
    least = NEVER
    for chunk in page.chunks:
        details = chunk.details
        if details is not None:
            if details.delay_ms <= now_ms:
                details.delay_ms = _earliest_alive(chunk, details.not_before, now_ms)
            least = min(least, details.delay_ms)
    page.delay_ms = least


def _renew_expiries(page: Page, now_ms: int) -> None:
    least = NEVER
    for chunk in page.chunks:
        details = chunk.details
        if details is not None:
            if details.expiry_ms <= now_ms:
                details.expiry_ms = _earliest_alive(chunk, details.expires, -NEVER)
            least = min(least, details.expiry_ms)
    page.expiry_ms = least


def _earliest_alive(chunk: Chunk, column: Column | None, after_ms: int) -> int:
    """Return the earliest time behind a moment among the tasks that are there."""
    if column is None:
        return NEVER
    base_ms = chunk.base_ms
    if isinstance(column, int):
        return base_ms + column if column != NONE and base_ms + column > after_ms else NEVER
    after = after_ms - base_ms
    places = chunk.alive(range(chunk.count))
    times = [column[place] for place in places if column[place] != NONE and column[place] > after]
    return base_ms + min(times, default=NEVER - base_ms)
