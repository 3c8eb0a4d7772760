"""Callers who send one task at a time, many at once: one batch for the disk, an answer for each."""

from __future__ import annotations

from penstock.formats.taskflux.generation import Generation
from penstock.model import Policy, QueueName
from penstock.protocol import version2 as v2
from penstock.protocol.frames import FrameReader
from penstock.protocol.version2 import decode_answer, encode_request
from penstock.server.disk import LaterDisk
from penstock.server.session2 import Session2
from support.node_rig import Rig

Q, R = QueueName("q"), QueueName("r")


class Client:
    """A session, what it was answered, and the frames it sends."""

    def __init__(self, rig: Rig) -> None:
        self.answers: list[tuple[int, v2.Answer]] = []
        self._reader = FrameReader()
        self.session = Session2(rig.broker, self._hear)

    def _hear(self, data: bytes) -> None:
        for kind, number, body in self._reader.receive(data):
            self.answers.append((number, decode_answer(kind, body)))

    def enqueue(self, number: int, payload: bytes, queue: QueueName = Q) -> None:
        assert (
            self.session.receive(encode_request(v2.Enqueue(queue, (0,), (payload,)), number)) == 1
        )

    def ids(self) -> list[tuple[int, int]]:
        found = []
        for number, answer in self.answers:
            assert isinstance(answer, v2.Enqueued)
            ((outcome, count, first),) = [(r.outcome, r.count, r.first) for r in answer.runs]
            assert (outcome, count) == (v2.Outcome.ACCEPTED, 1)
            found.append((number, first))
        return found


def rig_with(*queues: QueueName) -> tuple[Rig, LaterDisk]:
    disk = LaterDisk()
    rig = Rig(Generation.THREE, later=disk)
    disk.run_one()
    for name in queues:
        rig.send(rig.caller(), v2.Create(name, Policy()))
    finish(rig, disk)
    return rig, disk


def finish(rig: Rig, disk: LaterDisk) -> None:
    rig.replica.advance()
    while disk.waiting:
        disk.run_one()
    rig.broker.flush()


def test_enqueues_of_several_callers_are_one_operation_and_each_is_told_its_own_id() -> None:
    rig, disk = rig_with(Q)
    clients = [Client(rig) for _ in range(5)]
    for place, client in enumerate(clients):
        client.enqueue(7 + place, b"%d" % place)
    opened = rig.replica.open
    assert opened is not None
    rig.replica.advance()
    assert rig.replica.open is None, "what the disk has does not grow"
    clients[0].enqueue(99, b"late")
    assert rig.replica.open is not opened
    assert not any(client.answers for client in clients), "nothing is told before the sync"
    finish(rig, disk)
    assert [client.ids() for client in clients] == [
        [(7, 1), (99, 6)], [(8, 2)], [(9, 3)], [(10, 4)], [(11, 5)]
    ]  # fmt: skip
    taken = rig.queue("q").take_many(9, 1000)
    assert taken[2] == [b"0", b"1", b"2", b"3", b"4", b"late"]


def test_what_comes_between_keeps_its_place() -> None:
    rig, disk = rig_with(Q, R)
    one, other = Client(rig), Client(rig)
    one.enqueue(1, b"first")
    other.enqueue(2, b"elsewhere", R)
    one.enqueue(3, b"second")
    batch = rig.caller()
    rig.broker.enqueue(batch, 1, v2.Enqueue(Q, (0, 0), (b"third", b"fourth")))
    other.enqueue(4, b"fifth")
    finish(rig, disk)
    assert one.ids() == [(1, 1), (3, 2)]
    assert other.ids() == [(2, 1), (4, 5)]
    taken = rig.queue("q").take_many(9, 1000)
    assert taken[2] == [b"first", b"second", b"third", b"fourth", b"fifth"]


def test_a_policy_holds_for_each_of_them() -> None:
    rig, disk = rig_with()
    rig.send(rig.caller(), v2.Create(Q, Policy(size_max=2, payload_size_max=3)))
    finish(rig, disk)
    clients = [Client(rig) for _ in range(4)]
    for client, payload in zip(clients, (b"abcd", b"a", b"b", b"c"), strict=True):
        client.enqueue(1, payload)
    finish(rig, disk)
    outcomes = [client.answers[0][1].runs[0].outcome for client in clients]  # type: ignore[union-attr]
    assert outcomes == [
        v2.Outcome.PAYLOAD_TOO_LARGE,
        v2.Outcome.ACCEPTED,
        v2.Outcome.ACCEPTED,
        v2.Outcome.QUEUE_FULL,
    ]


def test_a_caller_that_is_gone_is_not_told_and_keeps_no_other_from_it() -> None:
    rig, disk = rig_with(Q)
    gone, other = Client(rig), Client(rig)
    gone.enqueue(1, b"a")
    other.enqueue(1, b"b")
    gone.session.close()
    finish(rig, disk)
    assert not gone.answers
    assert other.ids() == [(1, 2)]
    assert other.session.in_flight_size == 0
