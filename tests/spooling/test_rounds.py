"""A round is cut the same way whenever the same frames are given: what makes a repetition count once."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.batches import BATCH_COUNT_MAX, BATCH_SIZE_MAX
from penstock.errors import InvalidQueueName, InvalidValue
from penstock.formats.beats.state import Position
from penstock.formats.beats.task_event import SpooledTask
from penstock.protocol.version2 import Producer
from penstock.spooling.rounds import (
    GRAIN_NS,
    REQUESTS_MAX,
    ROUND_COUNT_MAX,
    SEGMENT_MAX,
    Parcel,
    Round,
    checked_target,
)
from penstock.spooling.task_reader import Outgoing

START = Position(3, 500, 7)
PRODUCER = bytes(16)
MS = 1_000_000

terms = st.one_of(st.none(), st.integers(0, 3))
tasks = st.lists(
    st.builds(
        Outgoing,
        st.builds(
            SpooledTask,
            st.sampled_from(["orders", "mail", "", "no name", "!penstock.x"]),
            st.integers(-2, 2),
            st.binary(max_size=4),
            terms,
            terms,
        ),
        st.integers(0, 5 * GRAIN_NS),
    ),
    max_size=25,
)


def round_of(given_: list[Outgoing], *, start: Position = START, parts: int = 1) -> Round:
    round_ = Round(start)
    size = max(1, -(-len(given_) // parts))
    for first in range(0, len(given_), size):
        round_.add(given_[first : first + size])
    return round_


def plain(queue: str, payload: bytes = b"x", key: int = 0) -> Outgoing:
    return Outgoing(SpooledTask(queue, key, payload), 1)


@given(tasks, st.integers(1, 9))
def test_the_same_frames_are_cut_into_the_same_requests_however_they_were_read(
    given_: list[Outgoing], parts: int
) -> None:
    once, again = round_of(given_), round_of(given_, parts=parts)
    assert once.parcels == again.parcels
    assert once.waves() == again.waves()
    assert once.unsendable == again.unsendable
    now_ns = 10**18
    assert [p.request(PRODUCER, now_ns=now_ns) for p in once.parcels] == [
        p.request(PRODUCER, now_ns=now_ns) for p in again.parcels
    ]


@given(tasks)
def test_every_task_is_in_one_request_or_told_and_numbers_name_its_place(
    given_: list[Outgoing],
) -> None:
    round_ = round_of(given_)
    places = [place for parcel in round_.parcels for place in parcel.places]
    assert sorted(places + list(round_.unsendable)) == list(range(len(given_)))
    for parcel in round_.parcels:
        assert parcel.number == (3 << 32) + 7 + parcel.places[0]
        for place, key, payload in zip(parcel.places, parcel.keys, parcel.payloads, strict=True):
            task = given_[place].task
            assert (task.queue, task.key, task.payload) == (parcel.queue, key, payload)
            assert (task.delay_ms, task.ttl_ms) == (parcel.terms.delay_ms, parcel.terms.ttl_ms)
            if parcel.terms.timestamp is not None:
                assert 0 <= given_[place].timestamp - parcel.terms.timestamp <= GRAIN_NS
    assert len({parcel.number for parcel in round_.parcels}) == len(round_.parcels)


@given(tasks)
def test_the_tasks_of_a_queue_stay_in_order_over_the_waves(given_: list[Outgoing]) -> None:
    sent: dict[str, list[int]] = defaultdict(list)
    for wave in round_of(given_).waves():
        assert len({parcel.queue for parcel in wave}) == len(wave)
        for parcel in wave:
            sent[parcel.queue] += parcel.places
    for places in sent.values():
        assert places == sorted(places)


@given(tasks)
def test_a_request_that_is_divided_has_the_same_tasks_with_the_numbers_of_their_places(
    given_: list[Outgoing],
) -> None:
    for parcel in round_of(given_).parcels:
        singles = list(parcel.singles())
        assert [s.places[0] for s in singles] == parcel.places
        assert [s.keys + s.payloads for s in singles] == [
            [key, payload] for key, payload in zip(parcel.keys, parcel.payloads, strict=True)
        ]
        for single in singles:
            assert single.number == (3 << 32) + 7 + single.places[0]
            assert (single.queue, single.terms, single.size) == (
                parcel.queue,
                parcel.terms,
                len(single.payloads[0]),
            )


def test_requests_keep_within_count_and_size() -> None:
    parcels = round_of([plain("q")] * (2 * BATCH_COUNT_MAX + 1)).parcels
    assert [len(p) for p in parcels] == [BATCH_COUNT_MAX, BATCH_COUNT_MAX, 1]
    half = bytes(BATCH_SIZE_MAX // 2)
    parcels = round_of([plain("q", half)] * 3 + [plain("q", bytes(2 * BATCH_SIZE_MAX))]).parcels
    assert [len(p) for p in parcels] == [2, 1, 1]


def test_a_round_is_full_by_count_by_size_and_by_requests() -> None:
    assert not round_of([plain("q")] * (ROUND_COUNT_MAX - 1)).is_full
    assert round_of([plain("q")] * ROUND_COUNT_MAX).is_full
    assert round_of([plain("q", bytes(2**20))] * 8).is_full
    assert not round_of([plain(f"q{n}") for n in range(REQUESTS_MAX - 1)]).is_full
    assert round_of([plain(f"q{n}") for n in range(REQUESTS_MAX)]).is_full


def test_delay_and_ttl_count_from_the_moment_of_spooling() -> None:
    task = SpooledTask("q", 0, b"x", 5000, 60_000)
    (parcel,) = round_of([Outgoing(task, 10**18)]).parcels

    def left(passed_ms: int) -> tuple[int | None, int | None]:
        request = parcel.request(PRODUCER, now_ns=10**18 + passed_ms * MS)
        assert request.producer == Producer(PRODUCER, parcel.number)
        return request.delay_ms, request.ttl_ms

    assert left(0) == (5000, 60_000)
    assert left(1500) == (3500, 58_500)
    assert left(5000) == (None, 55_000)
    # So much of ttl stays that the same tasks are sent again.
    assert left(10**9) == (None, 1)
    assert left(-3000) == (5000, 60_000)  # a clock that was set back


def test_tasks_without_terms_go_together_whenever_they_were_spooled() -> None:
    given_ = [Outgoing(SpooledTask("q", 0, b"x"), n * 10**12) for n in range(5)]
    assert len(round_of(given_).parcels) == 1
    given_ = [Outgoing(SpooledTask("q", 0, b"x", ttl_ms=9), n * GRAIN_NS) for n in range(4)]
    assert [p.places for p in round_of(given_).parcels] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (SpooledTask("no name", 0, b""), "queue name 'no name' holds ' '"),
        (SpooledTask("!penstock.x", 0, b""), "names that begin with '!penstock.'"),
        (
            SpooledTask("q", 0, bytes(16 * 2**20 + 1)),
            "a payload of 16777217 bytes is above 16777216",
        ),
        (SpooledTask("q", 0, b"", 2**62), "a delay or ttl is above 3162240000000 ms"),
        (SpooledTask("q", 0, b"", None, 2**62), "a delay or ttl is above 3162240000000 ms"),
    ],
)
def test_what_no_node_could_take_is_told(task: SpooledTask, reason: str) -> None:
    round_ = round_of([plain("q"), Outgoing(task, 1), plain("q")])
    assert round_.unsendable[1].startswith(reason)
    assert [p.places for p in round_.parcels] == [[0, 2]]


def test_a_place_that_no_number_can_name_is_refused() -> None:
    assert Round(Position(SEGMENT_MAX, 12, 0)).count == 0
    for start in (Position(SEGMENT_MAX + 1), Position(0, 12, 2**32 - 1)):
        with pytest.raises(InvalidValue, match="no numbers are left"):
            Round(start)


def test_reserved_names_are_no_targets() -> None:
    assert checked_target("orders") == "orders"
    with pytest.raises(InvalidQueueName, match="are those of no queue"):
        checked_target("!penstock.notes")


def test_a_parcel_has_as_many_tasks_as_places() -> None:
    parcel: Parcel = round_of([plain("q"), plain("r"), plain("q")]).parcels[0]
    assert len(parcel) == 2
