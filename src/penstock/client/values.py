"""What a caller gives and gets: deliveries, peeked tasks, and the checks on arguments.

Times are seconds at this surface and milliseconds on the wire; the conversion is here and only here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.errors import InvalidValue, PayloadTooLarge
from penstock.model import INT64_MAX, INT64_MIN, LEASE_MS_MAX, QueueName
from penstock.protocol.version1 import PAYLOAD_SIZE_MAX
from penstock.protocol.version2 import MILLISECONDS_MAX, Delivered, Peeked

WAIT_MS_MAX: Final = 3_600_000
"""An hour: a longer wait is a loop, or a subscription."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A task that is leased to this program until it is acknowledged or returned, or its lease ends."""

    queue: str
    id: int
    key: int
    payload: bytes
    attempt: int  # 1 plus the number of earlier attempts
    token: int  # identifies the lease on this connection
    connection: int
    deadline: float  # end of the lease on this machine's time.monotonic(); approximate

    def __repr__(self) -> str:
        size = len(self.payload)
        return f"<Delivery of task {self.id} from {self.queue!r}, key {self.key}, {size} bytes, attempt {self.attempt}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekedTask:
    """A waiting task as ``peek`` returned it."""

    id: int
    key: int
    payload: bytes
    attempts: int  # earlier deliveries whose task was started and not acknowledged


def deliveries(
    answer: Delivered, *, queue: str, connection: int, received: float
) -> list[Delivery]:
    """Return what a node delivered at the monotonic time ``received``."""
    deadline = received + answer.lease_ms / 1000
    rows = zip(answer.ids, answer.keys, answer.attempts, answer.payloads, strict=True)
    return [
        Delivery(
            queue=queue,
            id=task_id,
            key=key,
            payload=payload,
            attempt=attempt,
            token=token,
            connection=connection,
            deadline=deadline,
        )
        for token, (task_id, key, attempt, payload) in enumerate(rows, answer.token)
    ]


def peeked_tasks(answer: Peeked) -> list[PeekedTask]:
    rows = zip(answer.ids, answer.keys, answer.payloads, answer.attempts, strict=True)
    return [PeekedTask(id=i, key=k, payload=p, attempts=a) for i, k, p, a in rows]


def as_list(given: Delivery | Iterable[Delivery]) -> list[Delivery]:
    """Return one delivery or many as a list. Raises ``InvalidValue`` for anything else."""
    many = [given] if isinstance(given, Delivery) else list(given)
    for each in many:
        if not isinstance(each, Delivery):
            raise InvalidValue(
                f"ack, nack and extend take what dequeue delivered, not {type(each).__name__}"
            )
    return many


def milliseconds(
    seconds: float, what: str, *, lowest: int = 0, highest: int = MILLISECONDS_MAX
) -> int:
    """Return seconds as whole milliseconds, rounded up. Raises ``InvalidValue`` beyond the limits."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidValue(f"{what} is a number of seconds, not {seconds!r}")
    if not math.isfinite(seconds) or not lowest <= math.ceil(seconds * 1000) <= highest:
        raise InvalidValue(
            f"{what} of {seconds} s is not within {lowest / 1000:g} to {highest / 1000:g} s"
        )
    return math.ceil(seconds * 1000)


def optional_ms(seconds: float | None, what: str) -> int | None:
    return None if seconds is None else milliseconds(seconds, what)


def lease_ms(lease: float | None) -> int:
    """Return a lease for the wire, where 0 means: as the queue says."""
    return 0 if lease is None else milliseconds(lease, "lease", lowest=1, highest=LEASE_MS_MAX)


def wait_ms(wait: float) -> int:
    return milliseconds(wait, "wait", highest=WAIT_MS_MAX)


def whole_number(value: int, what: str, *, lowest: int, highest: int) -> int:
    """Return ``value`` if it is within the limits. Raises ``InvalidValue``."""
    if type(value) is not int or not lowest <= value <= highest:
        raise InvalidValue(f"{what} is a whole number from {lowest} to {highest}, not {value!r}")
    return value


def checked_key(key: int) -> int:
    return whole_number(key, "key", lowest=INT64_MIN, highest=INT64_MAX)


def checked_payload(payload: bytes) -> bytes:
    """Return a payload as bytes. Raises ``InvalidValue`` for text, ``PayloadTooLarge`` above 16 MiB."""
    if isinstance(payload, str):
        raise InvalidValue("a payload is bytes, not str; write payload.encode()")
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidValue(f"a payload is bytes, not {type(payload).__name__}; serialize it first")
    # A copy of what can change: a retry must send the bytes that were given.
    payload = bytes(payload)
    if len(payload) > PAYLOAD_SIZE_MAX:
        raise PayloadTooLarge(
            f"a payload of {len(payload)} bytes is above {PAYLOAD_SIZE_MAX};"
            " store it elsewhere and enqueue where it is"
        )
    return payload


def checked_queue(name: str) -> QueueName:
    if not isinstance(name, str):
        raise InvalidValue(f"a queue's name is a str, not {name!r}")
    return QueueName(name)
