"""Tasks that no node will take: a spool of the same kind within the spool, for a person to look at.

It is opened only while something is put there, so that others can look, and drain it once the reason is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.formats.beats.segment import Options, PayloadFormat
from penstock.storage.files import Files
from penstock.storage.spool import Spool, SpoolSettings, WhenFull

DIRECTORY_NAME: Final = "refused"

REASONS_TOLD: Final = 5
"""Different reasons that are told of one round; the tasks are all kept."""

_MARGIN: Final = 64
"""Bytes beside the payload that a segment needs for its only frame."""


def set_aside(
    files: Files,
    directory: Path,
    settings: SpoolSettings,
    payloads: Sequence[bytes],
    payload_format: PayloadFormat,
) -> None:
    """Return when payloads are durable among the refused ones of the spool in ``directory``.

    Raises ``SpoolFull`` when there are too many of these, ``DirectoryLocked`` while somebody looks, ``StorageFailed``.
    """
    size = max(settings.size_of_segment, max(map(len, payloads)) + _MARGIN)
    options = settings.options & ~Options.PROTOBUF
    if payload_format is PayloadFormat.PROTOBUF:
        options |= Options.PROTOBUF
    # Room for all of a round at once, which is at most a segment.
    roomy = replace(
        settings,
        max_size=max(settings.max_size, 4 * size),
        segment_size=size,
        when_full=WhenFull.REFUSE,
        options=options,
    )
    with Spool(directory / DIRECTORY_NAME, roomy, files=files) as spool:
        spool.publish(payloads)


def tell_refused(
    tell: Callable[[str], None], directory: Path, reasons: Iterable[str], *, count: int
) -> None:
    """Say how many tasks were refused and why."""
    by_reason = Counter(reasons).most_common(REASONS_TOLD)
    words = "; ".join(f"{reason} ({times})" for reason, times in by_reason)
    tell(f"{count} tasks were refused and are kept in {directory / DIRECTORY_NAME}: {words}")
