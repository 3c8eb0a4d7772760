"""Cutting many payloads into frames: the decisions of ``enqueue_many``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat, zip_longest
from typing import Any, Final

from penstock.client.values import checked_key, checked_payload
from penstock.errors import InvalidValue

BATCH_COUNT_MAX: Final = 1000
"""Tasks in a frame: beyond this a frame costs the node more pause than it saves in headers."""

BATCH_SIZE_MAX: Final = 2**20
"""Bytes of payload in a frame, unless one payload alone is larger: a frame is answered only when the
whole of it is synced, so larger ones trade latency for nothing."""

WINDOW_MAX: Final = 8
"""Frames in flight for one ``enqueue_many``: enough to keep the disk busy over the round trip, and at
most 8 MiB of a caller's memory."""

_MISSING: Final[Any] = object()

Batch = tuple[list[int], list[bytes]]
"""(keys, payloads) of one frame."""


def cut(payloads: Iterable[bytes], *, key: int, keys: Iterable[int] | None) -> Iterator[Batch]:
    """Yield the frames of ``payloads`` in order, reading no further ahead than the frame at hand.

    Raises ``InvalidValue`` for a payload or key that cannot be sent, or keys that are fewer or more.
    """
    if isinstance(payloads, str | bytes | bytearray | memoryview):
        raise InvalidValue("enqueue_many takes many payloads; for one write [payload], or enqueue")
    batch_keys: list[int] = []
    batch: list[bytes] = []
    size = 0
    for task_key, payload in _pairs(payloads, key, keys):
        if batch and (len(batch) == BATCH_COUNT_MAX or size + len(payload) > BATCH_SIZE_MAX):
            yield batch_keys, batch
            batch_keys, batch, size = [], [], 0
        batch_keys.append(task_key)
        batch.append(payload)
        size += len(payload)
    if batch:
        yield batch_keys, batch


def _pairs(
    payloads: Iterable[bytes], key: int, keys: Iterable[int] | None
) -> Iterator[tuple[int, bytes]]:
    if keys is None:
        yield from zip(repeat(checked_key(key)), map(checked_payload, payloads))
        return
    # Not zip(strict=True): its ValueError could as well be one of the caller's own iterator.
    for task_key, payload in zip_longest(keys, payloads, fillvalue=_MISSING):
        if task_key is _MISSING or payload is _MISSING:
            raise InvalidValue("enqueue_many got keys and payloads of different number")
        yield checked_key(task_key), checked_payload(payload)
