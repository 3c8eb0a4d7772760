"""Runs of single enqueues are taken at once, and mean exactly what they mean one by one."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from penstock.model import INT64_MAX, INT64_MIN, QueueName
from penstock.protocol.frames import Frame, FrameReader
from penstock.protocol.version2 import (
    Enqueue,
    Enqueued,
    Outcome,
    Ping,
    Producer,
    Request,
    Run,
    decode_answer,
    decode_request,
    encode_request,
)
from penstock.protocol.version2.answers import encode_single_answers
from penstock.protocol.version2.requests import SINGLE_SIZE, decode_lone, take_singles

NAMES = st.sampled_from(["", "a", "orders", "x" * 255]).map(QueueName)
SINGLES = st.builds(
    lambda queue, key, payload: Enqueue(queue, (key,), (payload,)),
    NAMES,
    st.integers(INT64_MIN, INT64_MAX),
    st.binary(max_size=40),
)
OTHERS = st.one_of(
    st.just(Ping()),
    st.builds(lambda q, n: Enqueue(q, (0,) * n, (b"p",) * n), NAMES, st.integers(2, 3)),
    st.builds(lambda q: Enqueue(q, (1,), (b"p",), delay_ms=5), NAMES),
    st.builds(lambda q: Enqueue(q, (1,), (b"p",), producer=Producer(bytes(16), 1)), NAMES),
)
REQUESTS: st.SearchStrategy[list[Request]] = st.lists(st.one_of(SINGLES, SINGLES, OTHERS))


def frames_of(requests: list[Request]) -> deque[Frame]:
    data = b"".join(encode_request(request, number) for number, request in enumerate(requests, 1))
    return deque(FrameReader().receive(data))


@given(REQUESTS)
def test_taken_together_or_one_by_one_requests_are_the_same(requests: list[Request]) -> None:
    frames, found = frames_of(requests), list[tuple[int, Request]]()
    size = sum(len(frame[2]) for frame in frames)
    while frames:
        singles = take_singles(frames)
        if singles is None:
            kind, number, body = frames.popleft()
            found.append((number, decode_request(kind, body)))
            size -= len(body)
            continue
        for number, key, payload in zip(
            singles.numbers, singles.keys, singles.payloads, strict=True
        ):
            found.append((number, Enqueue(singles.queue, (key,), (payload,))))
            size -= len(singles.queue) + SINGLE_SIZE + len(payload)
    assert size == 0, "what a session counts for a request is what it has"
    normal = [
        (n, Enqueue(r.queue, tuple(r.keys), tuple(r.payloads), r.delay_ms, r.ttl_ms, r.producer))
        if isinstance(r, Enqueue)
        else (n, r)
        for n, r in found
    ]
    assert normal == list(enumerate(requests, 1))


@given(st.one_of(SINGLES, OTHERS), st.integers(0, 2**32 - 1), st.data())
def test_a_lone_frame_means_what_the_frame_reader_and_the_decoder_say(
    request: Request, number: int, draw: st.DataObject
) -> None:
    data = bytearray(encode_request(request, number))
    if draw.draw(st.booleans(), label="damage"):
        data[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    raw = bytes(data) + draw.draw(st.sampled_from([b"", b"\x00", b"more"]))
    lone = decode_lone(raw)
    if lone is None:
        assert raw != encode_request(request, number) or not is_plain(request)
        return
    reader = FrameReader()
    ((kind, found, body),) = reader.receive(raw)
    asked = decode_request(kind, body)
    assert isinstance(asked, Enqueue)
    assert not reader.held
    assert lone == (asked.queue, [found], list(asked.keys), asked.payloads)
    assert is_plain(asked)


def is_plain(request: Request) -> bool:
    return (
        isinstance(request, Enqueue)
        and len(request.keys) == 1
        and (request.delay_ms, request.ttl_ms, request.producer) == (None, None, None)
    )


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=5))
def test_garbage_is_left_for_the_decoder_that_judges_it(bodies: list[bytes]) -> None:
    frames = deque((ord("E"), number, body) for number, body in enumerate(bodies))
    before = list(frames)
    singles = take_singles(frames)
    taken = 0 if singles is None else len(singles.numbers)
    assert list(frames) == before[taken:]
    for _, _, body in before[:taken]:
        decode_request(ord("E"), body)  # what was taken is whole


def test_a_number_used_twice_is_left_in_place() -> None:
    requests: list[Request] = [Enqueue(QueueName("q"), (1,), (b"p",))] * 2
    frames = frames_of(requests)
    same = deque((kind, 7, body) for kind, _, body in frames)
    assert take_singles(same) is None
    assert [number for _, number, _ in same] == [7, 7]
    assert [frame[2] for frame in same] == [frame[2] for frame in frames]


def test_a_bad_queue_name_is_left_in_place() -> None:
    body = b"\x01 " + bytes(1) + (1).to_bytes(4, "big") + bytes(8) + bytes(4)
    frames = deque([(ord("E"), 1, body), (ord("E"), 2, body)])
    assert take_singles(frames) is None
    assert list(frames) == [(ord("E"), 1, body), (ord("E"), 2, body)]


def test_answers_to_singles_are_those_of_the_codec() -> None:
    data = encode_single_answers([5, 9, 2**32 - 1], 2**40)
    answers = [
        (number, decode_answer(kind, body)) for kind, number, body in FrameReader().receive(data)
    ]
    assert answers == [
        (number, Enqueued([Run(Outcome.ACCEPTED, 1, 2**40 + place)]))
        for place, number in enumerate([5, 9, 2**32 - 1])
    ]
