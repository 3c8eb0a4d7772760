"""The pure connection: bytes in any pieces, answers in any order, and what costs the connection."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.connection import Connection
from penstock.errors import ConnectionFailed, ConnectionLost, ProtocolBroken
from penstock.model import QueueName
from penstock.protocol import version1
from penstock.protocol import version2 as v2

QUEUE = QueueName("mail")
WELCOME = version1.encode_response(version1.Authorized(reason=None)) + version1.encode_response(
    version1.Bootstrapped(reason=None)
)
DELIVERED = v2.Delivered(7, 1000, [1, 2], [0, 0], [1, 1], [b"a", b"b"])


def greeted() -> Connection:
    connection = Connection()
    connection.receive(WELCOME)
    return connection


def test_the_greeting_is_authorize_and_bootstrap_of_version_2() -> None:
    data = Connection().greet()
    first = version1.decode_request(data)
    assert first is not None
    assert first[0] == version1.Authorize()
    assert version1.decode_request(data, first[1]) == (
        version1.Bootstrap(major=2, minor=0, patch=0),
        len(data),
    )


@given(st.data())
def test_answers_survive_any_split_and_any_order(data: st.DataObject) -> None:
    connection = Connection()
    numbers = [connection.send(v2.Ping())[0] for _ in range(3)]
    numbers += [connection.send(v2.Dequeue(QUEUE))[0] for _ in range(3)]
    answers: list[tuple[int, v2.Answer]] = [(n, v2.Ok()) for n in numbers[:3]]
    answers += [(n, DELIVERED) for n in numbers[3:]]
    answers = data.draw(st.permutations(answers))
    stream = WELCOME + b"".join(v2.encode_answer(answer, number) for number, answer in answers)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    got: list[tuple[int, v2.Answer]] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += connection.receive(stream[start:end])
    assert [number for number, _ in got] == [number for number, _ in answers]
    assert [type(answer) for _, answer in got] == [type(answer) for _, answer in answers]
    assert connection.outstanding_count == 0
    assert connection.in_flight_size == 0


def test_bytes_in_flight_are_those_of_unanswered_frames() -> None:
    connection = greeted()
    number, first = connection.send(v2.Enqueue(QUEUE, [0], [b"x" * 100]))
    _, second = connection.send(v2.Ping())
    assert connection.in_flight_size == len(first) + len(second)
    connection.receive(v2.encode_answer(v2.Enqueued([v2.Run(0, 1, 1)]), number))
    assert connection.in_flight_size == len(second)


@pytest.mark.parametrize(
    "packet",
    [
        version1.Authorized(reason="not you"),
        version1.ErrorPacket(code=0, text="not you"),
    ],
)
def test_a_refused_greeting_gives_the_nodes_reason(packet: version1.Response) -> None:
    with pytest.raises(ConnectionFailed, match="not you"):
        Connection().receive(version1.encode_response(packet))


def test_a_refused_bootstrap_gives_the_nodes_reason() -> None:
    connection = Connection()
    connection.receive(version1.encode_response(version1.Authorized(reason=None)))
    with pytest.raises(ConnectionFailed, match="version 2 is off"):
        connection.receive(
            version1.encode_response(version1.Bootstrapped(reason="version 2 is off"))
        )


@pytest.mark.parametrize("data", [b"HTTP/1.1 400", b"\x00", b"SSH-2.0", b"b\x01", b"a\x01a\x01"])
def test_whoever_greets_otherwise_is_no_node(data: bytes) -> None:
    with pytest.raises(ProtocolBroken):
        Connection().receive(data)


def test_an_answer_to_nothing_breaks_the_connection() -> None:
    with pytest.raises(ProtocolBroken, match="not asked"):
        greeted().receive(v2.encode_answer(v2.Ok(), 9))


def test_a_second_answer_breaks_the_connection() -> None:
    connection = greeted()
    number, _ = connection.send(v2.Ping())
    answer = v2.encode_answer(v2.Ok(), number)
    connection.receive(answer)
    with pytest.raises(ProtocolBroken):
        connection.receive(answer)


def test_an_answer_of_the_wrong_kind_breaks_the_connection() -> None:
    connection = greeted()
    number, _ = connection.send(v2.Ping())
    with pytest.raises(ProtocolBroken, match="Ping with Purged"):
        connection.receive(v2.encode_answer(v2.Purged(1), number))


@given(st.binary(min_size=1, max_size=60))
def test_garbage_is_refused_or_waited_on_and_nothing_else(data: bytes) -> None:
    for connection in (Connection(), greeted()):
        connection.send(v2.Ping())
        with contextlib.suppress(ConnectionFailed):
            connection.receive(data)


def test_a_goodbye_of_a_stopping_node_is_a_lost_connection() -> None:
    goodbye = v2.encode_answer(v2.Failed(v2.Failure.STOPPING, "bye"), 0)
    with pytest.raises(ConnectionLost, match="bye"):
        greeted().receive(goodbye)


def test_a_subscription_is_answered_until_its_unsubscribe_is() -> None:
    connection = greeted()
    number, _ = connection.send(v2.Subscribe(QUEUE, 10))
    delivered = v2.encode_answer(DELIVERED, number)
    assert len(connection.receive(delivered + delivered)) == 2
    last, _ = connection.send(v2.Unsubscribe(number))
    assert len(connection.receive(delivered + v2.encode_answer(v2.Ok(), last))) == 2
    with pytest.raises(ProtocolBroken):
        connection.receive(delivered)


def test_tasks_for_an_abandoned_request_are_released() -> None:
    connection = greeted()
    number, _ = connection.send(v2.Dequeue(QUEUE))
    connection.abandon(number)
    assert connection.receive(v2.encode_answer(DELIVERED, number)) == []
    back = connection.release_unclaimed()
    assert v2.decode_request(back[4], back[9:]) == v2.Release((7, 8))
    assert connection.release_unclaimed() == b""
    answer = v2.encode_answer(v2.Settled(), int.from_bytes(back[5:9], "big"))
    assert connection.receive(answer) == []
    assert connection.outstanding_count == 0


def test_request_ids_come_round_and_skip_those_in_use() -> None:
    connection = greeted()
    first, _ = connection.send(v2.Ping())
    connection._last = 2**32 - 2
    assert connection.send(v2.Ping())[0] == 2**32 - 1
    assert connection.send(v2.Ping())[0] == first + 1
