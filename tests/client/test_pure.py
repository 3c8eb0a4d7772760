"""Addresses, arguments, batches, sequences, pauses: decisions without a connection."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import batches
from penstock.client.addresses import parse_addresses
from penstock.client.producer import SPREAD_MAX, Sequences, first_sequence, producer_id
from penstock.client.retries import PAUSE_FIRST, Backoff, patience, repeated
from penstock.client.running import Running, Settings
from penstock.client.values import Delivery, lease_ms, milliseconds
from penstock.errors import InvalidValue, PayloadTooLarge
from penstock.model import QueueName
from penstock.protocol import version2 as v2

QUEUE = QueueName("mail")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", ["localhost:2602"]),
        ("localhost:1", ["localhost:1"]),
        ("[::1]", ["[::1]:2602"]),
        ("[fe80::2]:99", ["[fe80::2]:99"]),
        ("a:1, b , [::1]:3", ["a:1", "b:2602", "[::1]:3"]),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, expected: list[str]) -> None:
    assert [str(address) for address in parse_addresses(text)] == expected


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "localhost:2602"),
        ("a,,b", "empty"),
        ("::1", r"\[::1\]:2602"),
        ("[::1", r"\[::1\]:2602"),
        ("[]:1", "brackets"),
        ("host:port", "host:2602"),
        ("host:", "host:2602"),
        ("host:0", "1 to 65535"),
        ("host:65536", "1 to 65535"),
        ("host:²", "1 to 65535"),
        (":2602", "localhost:2602"),
        ("http://host:1/x", 'write "host:1"'),
        (",".join(["h"] * 65), "65 addresses"),
    ],
)
def test_a_bad_address_says_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(InvalidValue, match=hint):
        parse_addresses(text)


def test_an_address_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidValue, match="str"):
        parse_addresses(2602)  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "expected"), [(0, 0), (0.0001, 1), (1.5, 1500), (2, 2000)])
def test_seconds_become_milliseconds_rounded_up(seconds: float, expected: int) -> None:
    assert milliseconds(seconds, "wait") == expected


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), 1e20, True, "5"])
def test_times_that_mean_nothing_are_refused(bad: float) -> None:
    with pytest.raises(InvalidValue):
        milliseconds(bad, "wait")


def test_a_lease_of_nothing_is_refused_since_0_means_the_queues_own() -> None:
    with pytest.raises(InvalidValue, match="lease"):
        lease_ms(0)
    assert lease_ms(None) == 0


@given(st.lists(st.integers(0, 400_000), max_size=60))
def test_batches_keep_order_and_limits(sizes: list[int]) -> None:
    payloads = [bytes(size) for size in sizes]
    cut = list(batches.cut(payloads, key=0, keys=range(len(payloads))))
    assert [payload for _, batch in cut for payload in batch] == payloads
    assert [key for keys, _ in cut for key in keys] == list(range(len(payloads)))
    for _, batch in cut:
        assert len(batch) <= batches.BATCH_COUNT_MAX
        assert len(batch) == 1 or sum(map(len, batch)) <= batches.BATCH_SIZE_MAX


def test_batches_read_no_further_ahead_than_one_frame() -> None:
    read = []

    def payloads() -> object:
        for n in range(5000):
            read.append(n)
            yield b"x"

    next(batches.cut(payloads(), key=0, keys=None))  # type: ignore[arg-type]
    assert len(read) == batches.BATCH_COUNT_MAX + 1


@pytest.mark.parametrize("keys", [[1], [1, 2, 3]])
def test_keys_and_payloads_of_different_number_are_refused(keys: list[int]) -> None:
    with pytest.raises(InvalidValue, match="different number"):
        list(batches.cut([b"a", b"b"], key=0, keys=keys))


@pytest.mark.parametrize("bad", ["text", 5, None, [b"x"]])
def test_a_payload_that_is_not_bytes_is_refused(bad: object) -> None:
    with pytest.raises(InvalidValue, match="bytes"):
        list(batches.cut([bad], key=0, keys=None))  # type: ignore[list-item]


def test_one_payload_given_to_many_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"\[payload\]"):
        list(batches.cut(b"abc", key=0, keys=None))  # type: ignore[arg-type]


def test_a_payload_beyond_16_mib_is_refused_before_it_is_sent() -> None:
    with pytest.raises(PayloadTooLarge):
        list(batches.cut([bytes(16 * 2**20 + 1)], key=0, keys=None))


@given(st.lists(st.integers(0, 1000), max_size=2000))
def test_no_sequence_is_far_ahead_of_the_oldest_open_one(picks: list[int]) -> None:
    sequences = Sequences(1)
    open_: list[int] = []
    for pick in picks:
        number = sequences.take()
        if number is None:
            sequences.release(open_.pop(pick % len(open_)))
            continue
        open_.append(number)
        assert number - min(open_) < SPREAD_MAX


def test_sequences_are_never_given_twice_and_never_skip() -> None:
    sequences, seen = Sequences(5), []
    for _ in range(1000):
        number = sequences.take()
        assert number is not None
        seen.append(number)
        sequences.release(number)
    assert seen == list(range(5, 1005))


def test_a_named_producer_is_the_same_after_a_restart_and_goes_on_counting() -> None:
    assert producer_id("billing") == producer_id("billing") != producer_id("mail")
    assert producer_id(None) != producer_id(None)
    assert len(producer_id("billing")) == len(producer_id(None)) == v2.PRODUCER_SIZE
    assert first_sequence("billing", now_ns=5_000_000) == 5000
    assert first_sequence(None, now_ns=5_000_000) == 1
    with pytest.raises(InvalidValue):
        producer_id("")


def test_only_what_is_safe_is_repeated() -> None:
    enqueue = v2.Enqueue(QUEUE, [0], [b""], producer=v2.Producer(bytes(16), 1))
    for safe in (enqueue, v2.Stat(), v2.Peek(QUEUE), v2.Read(0), v2.Node(), v2.Ping()):
        assert repeated(safe, elapsed=1) is safe
    for unsafe in (v2.Ack([1]), v2.Nack([1]), v2.Extend([1], 1), v2.Purge(QUEUE)):
        assert repeated(unsafe, elapsed=1) is None
    waiting = v2.Dequeue(QUEUE, 1, 0, 5000)
    assert repeated(waiting, elapsed=2) == v2.Dequeue(QUEUE, 1, 0, 3000)
    assert repeated(waiting, elapsed=9) == v2.Dequeue(QUEUE, 1, 0, 0)


def test_patience_counts_the_wait_that_was_asked_for() -> None:
    assert patience(v2.Ping(), 10) == 10
    assert patience(v2.Dequeue(QUEUE, 1, 0, 5000), 10) == 15
    assert patience(v2.Subscribe(QUEUE, 1), 10) is None


@given(st.floats(0, 1, exclude_max=True))
def test_pauses_double_up_to_a_limit_and_end_in_time(chance: float) -> None:
    now = 100.0
    backoff = Backoff(retry=30, clock=lambda: now, chance=lambda: chance)
    pauses = []
    while (pause := backoff.next_pause()) is not None:
        pauses.append(pause)
        now += pause
    assert now == pytest.approx(130)
    assert PAUSE_FIRST / 2 <= pauses[0] <= PAUSE_FIRST
    assert max(pauses) <= 2
    assert all(later >= earlier for earlier, later in pairwise(pauses[:7]))


def delivery(token: int, deadline: float) -> Delivery:
    return Delivery(
        queue="q", id=1, key=0, payload=b"", attempt=1, token=token, connection=1, deadline=deadline
    )


def test_a_running_task_is_extended_at_half_time_and_not_after_its_end() -> None:
    running, long, short = Running(60.0), delivery(1, 60.0), delivery(2, 60.0)
    running.begin(long)
    running.begin(short)
    assert running.due(29.0) == []
    running.end(short)
    assert running.due(30.0) == [long]
    running.extended([long], 30.0)
    assert running.due(45.0) == []
    assert running.due(60.0) == [long]
    running.lost([long])
    assert running.due(90.0) == []


def test_a_worker_backs_off_twice_as_long_each_time_up_to_an_hour() -> None:
    settings = Settings(queue="q", backoff=2.0)
    assert [settings.delay(n) for n in (1, 2, 3, 10_000)] == [2.0, 4.0, 8.0, 3600.0]
    assert Settings(queue="q").delay(3) is None
