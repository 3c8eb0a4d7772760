"""Penstock's own tasks as events of a disk queue (docs/formats/beats.md): a spool holds nothing that Beats cannot read.

A task is an event with ``queue`` and ``key`` in its ``meta`` and the payload, as bytes, in its ``fields``; in protobuf, which
has no bytes, as ``{"base64": …}``. Events in CBOR are made by joining bytes, not by a general encoder: this is what a
producer waits for.
"""

from __future__ import annotations

from binascii import Error as NotBase64
from binascii import a2b_base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.formats.beats.event import (
    CBOR_BYTES,
    CBOR_MAP,
    Event,
    cbor_head,
    encode_cbor,
    encode_event,
)
from penstock.formats.beats.segment import PayloadFormat
from penstock.model import INT64_MAX, INT64_MIN

GUARANTEED: Final = 1
"""The flag of an event that must be sent until it is acknowledged."""


@dataclass(frozen=True, slots=True)
class SpooledTask:
    """A task that waits to be sent to a node."""

    queue: str
    key: int
    payload: bytes
    delay_ms: int | None = None
    ttl_ms: int | None = None


def encode_tasks(
    queue: str,
    payloads: Sequence[bytes],
    keys: Sequence[int],
    *,
    timestamp: int,
    delay_ms: int | None = None,
    ttl_ms: int | None = None,
    payload_format: PayloadFormat = PayloadFormat.CBOR,
) -> list[bytes]:
    """Return an event for each payload. ``timestamp``: nanoseconds since 1970, the same for all.

    Raises ``InvalidValue`` for what protobuf does not hold, and ``DependencyMissing``.
    """
    assert len(payloads) == len(keys)
    terms = [
        (name, ms) for name, ms in (("delay_ms", delay_ms), ("ttl_ms", ttl_ms)) if ms is not None
    ]
    if payload_format is PayloadFormat.CBOR:
        return _encode_cbor_tasks(queue, payloads, keys, timestamp, terms)
    return [
        encode_event(
            Event(
                timestamp,
                GUARANTEED,
                {"queue": queue, "key": key, **dict(terms)},
                {"payload": payload},
            ),
            payload_format,
        )
        for payload, key in zip(payloads, keys, strict=True)
    ]


def _encode_cbor_tasks(
    queue: str,
    payloads: Sequence[bytes],
    keys: Sequence[int],
    timestamp: int,
    terms: list[tuple[str, int]],
) -> list[bytes]:
    before = cbor_head(CBOR_MAP, 4) + encode_cbor("timestamp") + encode_cbor(timestamp)
    before += encode_cbor("flags") + encode_cbor(GUARANTEED)
    before += (
        encode_cbor("meta")
        + cbor_head(CBOR_MAP, 2 + len(terms))
        + encode_cbor("queue")
        + encode_cbor(queue)
        + encode_cbor("key")
    )
    after = b"".join(encode_cbor(name) + encode_cbor(ms) for name, ms in terms)
    after += encode_cbor("fields") + cbor_head(CBOR_MAP, 1) + encode_cbor("payload")
    # Keys and sizes repeat; what stands before a payload depends on nothing else.
    known: dict[tuple[int, int], bytes] = {}
    events = []
    for payload, key in zip(payloads, keys, strict=True):
        kind = (key, len(payload))
        start = known.get(kind)
        if start is None:
            start = known[kind] = (
                before + encode_cbor(key) + after + cbor_head(CBOR_BYTES, len(payload))
            )
        events.append(start + payload)
    return events


def task_of(event: Event) -> SpooledTask | None:
    """Return the task that an event is, or ``None`` for an event of somebody else."""
    queue, key = event.meta.get("queue"), event.meta.get("key")
    payload = _bytes_of(event.fields.get("payload"))
    terms = (event.meta.get("delay_ms"), event.meta.get("ttl_ms"))
    is_task = (
        type(queue) is str
        and type(key) is int
        and INT64_MIN <= key <= INT64_MAX
        and type(payload) is bytes
        and len(event.fields) == 1
        and all(ms is None or (type(ms) is int and 0 <= ms <= INT64_MAX) for ms in terms)
    )
    return SpooledTask(queue, key, payload, *terms) if is_task else None  # type: ignore[arg-type]


def _bytes_of(payload: Any) -> Any:
    """Return the bytes that a map ``{"base64": …}`` stands for, and anything else as it is."""
    if type(payload) is dict and len(payload) == 1 and type(payload.get("base64")) is str:
        try:
            return a2b_base64(payload["base64"], strict_mode=True)
        except (NotBase64, ValueError):
            return payload
    return payload
