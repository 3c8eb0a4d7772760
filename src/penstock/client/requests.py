"""Arguments as requests: what a caller wrote is checked here, before a byte is sent. Pure.

All functions raise ``InvalidValue`` with what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.client.values import (
    checked_key,
    checked_queue,
    lease_ms,
    optional_ms,
    wait_ms,
    whole_number,
)
from penstock.errors import InvalidValue
from penstock.model import INT32_MAX, INT64_MAX, Implementation, KeyRange, Policy
from penstock.protocol.version2 import (
    BATCH_MAX,
    ChangeMembers,
    Create,
    Dequeue,
    MemberChange,
    MemberStep,
    Nack,
    Peek,
    QueueStat,
    Read,
    Subscribe,
    Transfer,
)

IMPLEMENTATIONS: Final = {one.name.lower(): one for one in Implementation}

FOLLOW_WAIT_MS: Final = 10_000
"""How long one read waits for entries that are not there yet; the next one follows at once."""


def create_request(
    queue: str,
    *,
    implementation: str,
    size_max: int | None,
    payload_size_max: int | None,
    keys: tuple[int, int] | None,
    lease: float | None,
    attempts_max: int | None,
    dead_letter: str | None,
) -> Create:
    if implementation not in IMPLEMENTATIONS:
        raise InvalidValue(
            f"implementation is one of {', '.join(IMPLEMENTATIONS)}, not {implementation!r}"
        )
    policy = Policy(
        implementation=IMPLEMENTATIONS[implementation],
        size_max=_limit(size_max, "size_max"),
        payload_size_max=_limit(payload_size_max, "payload_size_max"),
        keys=None if keys is None else _key_range(keys),
    )
    if attempts_max is not None:
        whole_number(attempts_max, "attempts_max", lowest=1, highest=INT32_MAX)
    return Create(
        checked_queue(queue),
        policy,
        lease_ms(lease),
        attempts_max,
        None if dead_letter is None else checked_queue(dead_letter),
    )


def _limit(value: int | None, what: str) -> int | None:
    return None if value is None else whole_number(value, what, lowest=0, highest=INT32_MAX)


def _key_range(keys: tuple[int, int]) -> KeyRange:
    try:
        lowest, highest = keys
    except (TypeError, ValueError):
        raise InvalidValue(
            f"keys is a pair such as (0, 9), lowest and highest, not {keys!r}"
        ) from None
    return KeyRange(lowest=checked_key(lowest), highest=checked_key(highest))


def is_as_asked(stat: QueueStat, create: Create) -> bool:
    """Return whether a queue is what this request would have made."""
    options = stat.options
    return (
        stat.policy == create.policy
        and create.lease_ms in (0, options.lease_ms)
        and options.attempts_max == create.attempts_max
        and options.dead_letter == create.dead_letter
    )


def dequeue_request(queue: str, *, count: int, wait: float, lease: float | None) -> Dequeue:
    count = whole_number(count, "count", lowest=1, highest=BATCH_MAX)
    return Dequeue(checked_queue(queue), count, 0, wait_ms(wait), lease_ms(lease))


def nack_request(delay: float | None, key: int | None) -> Nack:
    """Return a nack of no tokens yet."""
    return Nack((), optional_ms(delay, "delay"), None if key is None else checked_key(key))


def peek_request(queue: str, count: int) -> Peek:
    return Peek(checked_queue(queue), whole_number(count, "count", lowest=1, highest=BATCH_MAX))


def subscribe_request(queue: str, *, prefetch: int, lease: float | None) -> Subscribe:
    prefetch = whole_number(prefetch, "prefetch", lowest=1, highest=BATCH_MAX)
    return Subscribe(checked_queue(queue), prefetch, lease_ms(lease))


def read_request(first: int, *, follow: bool) -> Read:
    first = whole_number(first, "first", lowest=0, highest=INT64_MAX)
    return Read(first, 0, FOLLOW_WAIT_MS if follow else 0)


def change_request(
    voters: Mapping[int, str], learners: Mapping[int, str], remove: Iterable[int]
) -> ChangeMembers:
    steps = [(MemberStep.VOTER, *each) for each in voters.items()]
    steps += [(MemberStep.LEARNER, *each) for each in learners.items()]
    steps += [(MemberStep.REMOVE, node, "") for node in remove]
    for _, node, address in steps:
        _checked_node(node)
        if not isinstance(address, str):
            raise InvalidValue(f'node {node} needs an address such as "host:2702", not {address!r}')
    return ChangeMembers([MemberChange(*step) for step in steps])


def transfer_request(to: int) -> Transfer:
    return Transfer(_checked_node(to))


def _checked_node(node: int) -> int:
    return whole_number(node, "a node's number", lowest=1, highest=INT32_MAX)
