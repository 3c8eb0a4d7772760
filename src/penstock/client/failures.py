"""Refusals as exceptions: each says what happened and what to do next, and carries what a program needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from penstock.client.values import Delivery
from penstock.errors import (
    Compacted,
    ConnectionFailed,
    ConnectionLost,
    InvalidValue,
    KeyOutOfRange,
    LeaseLost,
    LimitReached,
    NotLeader,
    PayloadTooLarge,
    PenstockError,
    PolicyViolated,
    ProtocolBroken,
    QueueExists,
    QueueFull,
    QueueInUse,
    QueueMissing,
    RequestRefused,
    SequenceForgotten,
    Unreachable,
)
from penstock.protocol.version2 import (
    Create,
    Enqueue,
    Enqueued,
    Failed,
    Failure,
    Outcome,
    Request,
)

E = TypeVar("E", bound=PenstockError)


def failure(failed: Failed, request: Request) -> PenstockError:
    """Return the exception for a request that the node refused as a whole."""
    queue, text = getattr(request, "queue", None), failed.text
    match failed.code:
        case Failure.INVALID:
            return InvalidValue(text)
        case Failure.QUEUE_MISSING:
            return _queue_missing(request)
        case Failure.QUEUE_EXISTS:
            return QueueExists(
                f"queue {queue!r} exists already; pass exist_ok=True to use it as it is"
            )
        case Failure.QUEUE_IN_USE:
            return QueueInUse(text)
        case Failure.NOT_LEADER:
            leader = failed.detail if failed.detail >= 0 else None
            who = "no node leads now" if leader is None else f"node {leader} leads"
            words = f"{who}; give connect() the addresses of all nodes"
            return carry(NotLeader(words), leader=leader, address=failed.text or None)
        case Failure.LIMIT:
            return LimitReached(text)
        case Failure.COMPACTED:
            words = f"the node has dropped the entries before {failed.detail}; read from there on"
            return carry(Compacted(words), first=failed.detail)
        case Failure.SEQUENCE_FORGOTTEN:
            return SequenceForgotten(
                f"{text}; the tasks were or were not taken: look before enqueueing them again"
            )
        case Failure.STOPPING:
            return Unreachable("the node is stopping; try again when it is back")
        case Failure.OUTCOME_UNKNOWN:
            return ConnectionLost(text)
        case Failure.CHANGE_REFUSED:
            return RequestRefused(text)
        case Failure.UNKNOWN_REQUEST:
            return ProtocolBroken(f"{text}; the node is older than this client: upgrade it")
        case _:
            return RequestRefused(text)


def _queue_missing(request: Request) -> QueueMissing:
    """Return the exception that names the missing queue.

    The queue that a Create names is new, so the queue that it misses is the one for dead letters.
    """
    if isinstance(request, Create):
        queue, kind = request.dead_letter, "dead-letter queue"
    else:
        queue, kind = getattr(request, "queue", None), "queue"
    words = (
        f"there is no {kind} {queue!r}; create it with create_queue({queue!r}),"
        " or see what queues() lists"
    )
    return carry(QueueMissing(words), queue=queue)


def task_ids(answer: Enqueued, request: Enqueue) -> list[int | None]:
    """Return the id of each task of an enqueue, ``None`` where it was refused. Raises ``ProtocolBroken``."""
    ids: list[int | None] = []
    for run in answer.runs:
        if run.outcome == Outcome.ACCEPTED:
            ids.extend(range(run.first, run.first + run.count))
        else:
            ids.extend([None] * run.count)
        if len(ids) > len(request.payloads):
            break
    if len(ids) != len(request.payloads):
        raise ProtocolBroken(
            f"the node answered for {len(ids)} tasks and was sent {len(request.payloads)}"
        )
    return ids


def refusal(answer: Enqueued, request: Enqueue) -> PolicyViolated | None:
    """Return the exception for the first run of tasks that was refused, ``None`` if all were taken.

    A node judges a batch as a whole, so which task of it was at fault is not known here.
    """
    for run in answer.runs:
        if run.outcome != Outcome.ACCEPTED:
            return _refusal(run.outcome, request.queue)
    return None


def _refusal(outcome: int, queue: str) -> PolicyViolated:
    match outcome:
        case Outcome.QUEUE_FULL:
            return QueueFull(f"queue {queue!r} is full; retry when tasks have been consumed")
        case Outcome.KEY_OUT_OF_RANGE:
            return KeyOutOfRange(
                f"a key is outside the range of queue {queue!r}; see stat({queue!r}).policy.keys"
            )
        case Outcome.PAYLOAD_TOO_LARGE:
            return PayloadTooLarge(
                f"a payload is larger than queue {queue!r} takes;"
                f" see stat({queue!r}).policy.payload_size_max and node().payload_size_max"
            )
        case _:
            return PolicyViolated(f"queue {queue!r} refused a task for reason {outcome}")


def lease_lost(lost: Sequence[Delivery]) -> LeaseLost:
    """Return the exception for leases that had ended; ``error.deliveries`` are those."""
    which = ", ".join(str(each.id) for each in lost[:5]) + (", …" if len(lost) > 5 else "")
    error = LeaseLost(
        f"the lease of task {which} had ended: it is back in its queue or with another consumer;"
        " ask for a longer lease, or extend() it while you work"
    )
    return carry(error, deliveries=tuple(lost))


def outcome_unknown(error: PenstockError, request: Request) -> ConnectionLost:
    """Return the exception for a request that was sent and never answered."""
    what = type(request).__name__.lower()
    return ConnectionLost(
        f"{error}; whether the {what} took effect is unknown: look before repeating it"
    )


def closed() -> ConnectionFailed:
    return ConnectionFailed("this client is closed; connect() a new one")


def carry(error: E, **details: object) -> E:
    """Return the exception with attributes for a program to react to."""
    error.__dict__.update(details)
    return error
