"""A session of version 2: reports of started tasks."""

from __future__ import annotations

from penstock.formats.taskflux.generation import Generation
from penstock.model import QueueName
from penstock.protocol import version2 as v2
from penstock.protocol.frames import FrameReader
from penstock.server.session2 import Session2
from support.node_rig import Rig

DEFAULT = QueueName("")


def answers(out: list[bytes]) -> list[v2.Answer]:
    return [v2.decode_answer(kind, body) for kind, _, body in FrameReader().receive(b"".join(out))]


def subscribed(rig: Rig, count: int) -> tuple[Session2, int]:
    """Return a session with a subscription that has been given all tasks, and the first token."""
    rig.ask(rig.caller(), v2.Enqueue(DEFAULT, [0] * count, [b"x"] * count))
    out: list[bytes] = []
    session = Session2(rig.broker, out.append)
    assert session.receive(v2.encode_request(v2.Subscribe(DEFAULT, 10), 1)) == 1
    rig.go_on()
    (delivered,) = [each for each in answers(out) if isinstance(each, v2.Delivered)]
    assert len(delivered.ids) == count
    return session, delivered.token


def test_a_started_task_of_a_caller_that_reads_slowly_counts_an_attempt() -> None:
    rig = Rig(Generation.THREE)
    session, token = subscribed(rig, 3)
    session.set_full(True)
    waiting = v2.encode_request(v2.Ping(), 2)
    assert session.receive(waiting + v2.encode_request(v2.Start((token + 1,)), 0)) == 1
    session.close()
    rig.go_on()
    assert rig.queue().attempts == {2: 1}
    assert rig.queue().ready_count == 3


def test_a_report_is_not_answered_and_takes_no_request_id() -> None:
    rig = Rig(Generation.THREE)
    session, token = subscribed(rig, 2)
    report = v2.encode_request(v2.Start((token,), (token + 1,)), 0)
    for _ in range(3):
        assert session.receive(report) == 0
    assert session.in_flight_size == 0
    assert not session.is_broken
    assert session.receive(report + v2.encode_request(v2.Ping(), 5)) == 1


def test_a_report_that_ends_inside_a_token_breaks_the_connection() -> None:
    rig = Rig(Generation.THREE)
    session, token = subscribed(rig, 1)
    whole = v2.encode_request(v2.Start((token,)), 0)
    cut = (len(whole) - 4 - 1).to_bytes(4, "big") + whole[4:-1]
    session.receive(cut)
    assert session.is_broken
