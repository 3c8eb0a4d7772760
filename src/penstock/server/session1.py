"""A connection that speaks version 1, TaskFlux's: one request at a time, byte for byte (docs/protocol.md).

An enqueue takes two steps there: the node says that it has the request, the client says that it means it. A
delivered task waits for its acknowledgement on the same connection. What the client sends too early waits.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from penstock.errors import BadData
from penstock.model import DEFAULT_QUEUE
from penstock.protocol import version1 as v1
from penstock.protocol import version2 as v2
from penstock.protocol.version2 import Failure, Outcome
from penstock.server.broker import Broker
from penstock.server.caller import OUT_SIZE_MAX, Caller
from penstock.server.session2 import GroupDesk
from penstock.server.settings import EXCESS_SIZE_MAX

_CODES = {
    Failure.INVALID: v1.Code.UNKNOWN,
    Failure.QUEUE_MISSING: v1.Code.QUEUE_MISSING,
    Failure.QUEUE_EXISTS: v1.Code.QUEUE_EXISTS,
}

_NOT_LED = (Failure.NOT_LEADER, Failure.OUTCOME_UNKNOWN)
"""Failures for which version 1 has one packet: the client asks the leader what became of it, or asks it anew."""


class _Step(Enum):
    """What the connection waits for."""

    REQUEST = auto()  # a new request
    CONFIRMATION = auto()  # whether an enqueue is meant
    ANSWER = auto()  # the node's own answer
    VERDICT = auto()  # whether a delivered task is done


class Session1(Caller):
    """One caller of version 1, after its greeting."""

    __slots__ = (
        "_attend",
        "_broker",
        "_buffer",
        "_enqueue",
        "_excess",
        "_excess_answer",
        "_group",
        "_is_full",
        "_is_going",
        "_node",
        "_out",
        "_out_size",
        "_queue",
        "_step",
        "_token",
        "_with_id",
        "_write",
        "has_backlog",
        "is_broken",
    )

    def __init__(
        self,
        broker: Broker,
        write: Callable[[bytes], None],
        attend: Callable[[], None],
        *,
        node: v1.Cluster,
        group: GroupDesk | None = None,
        with_id: bool = True,
    ) -> None:
        """``attend`` asks the connection to look at ``is_broken`` and ``has_backlog`` soon.

        ``node`` is what a node that is alone says of its cluster; one in a group asks ``group``.
        """
        super().__init__()
        self._broker = broker
        self._attend = attend
        self._write = write
        self._node = node
        self._group = group
        self._with_id = with_id
        self._buffer = bytearray()
        self._is_going = (
            False  # whether packets are being taken: an answer must not begin that anew
        )
        self._queue = DEFAULT_QUEUE  # of the last enqueue
        self._step = _Step.REQUEST
        self._enqueue: v1.Enqueue | None = None
        self._excess = 0  # bytes of a payload above the limit that are still to be dropped
        self._excess_answer: v1.Response = v1.Empty()
        self._token = 0
        self._out: list[bytes] = []
        self._out_size = 0
        self._is_full = False
        self.has_backlog = False  # whether packets wait until answers have left
        self.is_broken = False

    @property
    def is_full(self) -> bool:
        return self._is_full or self._out_size >= OUT_SIZE_MAX

    def set_full(self, is_full: bool) -> None:
        self._is_full = is_full
        if not is_full:
            for consumer in list(self.consumers):
                self._broker.wake(consumer)

    @property
    def held_size(self) -> int:
        """Bytes of a packet that is not whole yet: the caller keeps us waiting, not we the caller."""
        return 0 if self._step is _Step.ANSWER or self.has_backlog else len(self._buffer)

    @property
    def in_flight_size(self) -> int:
        """Bytes that came before their turn: at most one request is under way."""
        return len(self._buffer) - self.held_size

    @property
    def is_waiting(self) -> bool:
        """Whether the node owes an answer. A delivered task does not keep a silent client (7.2)."""
        return self._step is _Step.ANSWER

    backlog_size = 0  # what came too early is in the buffer, and counted there

    def go_on(self) -> None:
        """Take packets that waited until answers had left."""
        self._go_on()

    @property
    def is_draining(self) -> bool:
        """Whether a payload above the limit is being dropped as it arrives."""
        return self._excess > 0

    def receive(self, data: bytes) -> int:
        """Take bytes from the caller and return how many packets they completed."""
        if not self._excess:
            self._buffer += data
            return self._go_on()
        dropped = min(self._excess, len(data))
        self._excess -= dropped
        if self._excess:
            return 0
        self._send(self._excess_answer)
        self._buffer += data[dropped:]
        return 1 + self._go_on()

    def _go_on(self) -> int:
        """Take packets as long as the connection waits for one."""
        count, offset = 0, 0
        self._is_going = True
        self.has_backlog = False
        while self._step is not _Step.ANSWER and not self.is_broken and not self._excess:
            if self.is_full:  # two bytes can ask for a list of all queues
                self.has_backlog = len(self._buffer) > offset
                break
            try:
                found = v1.decode_request(
                    self._buffer, offset, payload_size_max=self._broker.limits.payload_size_max
                )
                if found is None:
                    break
                request, offset = found
                if isinstance(request, v1.Oversized):
                    offset += self._drop(request, len(self._buffer) - offset)
                    count += not self._excess
                    continue
                count += 1
                self._take(request)
            except BadData:
                self.is_broken = True
        del self._buffer[:offset]
        self._is_going = False
        if self.is_broken or self.has_backlog:
            self._attend()
        return count

    def flush(self) -> None:
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            self._out_size = 0
            self._write(data)

    def close(self) -> None:
        self._buffer.clear()
        self._broker.leave(self)

    def _send(self, response: v1.Response) -> None:
        if not self.is_gone:
            if not self._out:
                self._broker.touched.append(self)
            packet = v1.encode_response(response, with_id=self._with_id)
            self._out.append(packet)
            self._out_size += len(packet)

    # Requests.

    def _drop(self, oversized: v1.Oversized, held: int) -> int:
        """Begin to drop a payload above the limit, and return how many of the ``held`` bytes belong to it.

        Its sender gets an answer when all of it has arrived. TaskFlux's client repeats for ever what is cut off instead.
        """
        if self._step is not _Step.REQUEST or oversized.size > EXCESS_SIZE_MAX:
            self.is_broken = True
            return 0
        if oversized.is_name_valid:
            limit = self._broker.limits.payload_size_max
            self._excess_answer = v1.PayloadViolated(payload_size_max=limit)
        else:
            self._excess_answer = v1.ErrorPacket(code=v1.Code.INVALID_QUEUE_NAME, text="")
        dropped = min(held, oversized.size)
        self._excess = oversized.size - dropped
        if not self._excess:
            self._send(self._excess_answer)
        return dropped

    def _take(self, request: v1.Request) -> None:
        if self._step is _Step.CONFIRMATION:
            self._confirm(request)
        elif self._step is _Step.VERDICT:
            self._judge(request)
        else:
            self._begin(request)

    def _begin(self, request: v1.Request) -> None:
        broker = self._broker
        match request:
            case v1.Enqueue():
                self._enqueue = request
                self._step = _Step.CONFIRMATION
                self._send(v1.Ok())
                return
            case v1.Refused():
                answer = v1.ErrorPacket if request.is_packet else v1.Failed
                self._send(answer(code=request.code, text=""))
                return
            case v1.AskCluster():
                self._send(self._cluster())
                return
            case v1.Authorize() | v1.Bootstrap() | v1.Acknowledge() | v1.Reject() | v1.Stray():
                return  # known packets out of place are ignored, as TaskFlux does
            case _:
                pass
        self._step = _Step.ANSWER
        if self._is_refused():
            return
        match request:
            case v1.Dequeue():
                broker.dequeue(self, 0, v2.Dequeue(request.queue, 1, 0, request.wait_ms, 0))
            case v1.Count():
                broker.stat(self, 0, v2.Stat(request.queue))
            case v1.Create():
                broker.create(self, 0, v2.Create(request.queue, request.policy))
            case v1.Delete():
                broker.delete(self, 0, v2.Delete(request.queue))
            case v1.ListQueues():
                broker.stat(self, 1, v2.Stat(None))

    def _confirm(self, request: v1.Request) -> None:
        """Take the second step of an enqueue; anything but an acknowledgement takes it back."""
        enqueue, self._enqueue = self._enqueue, None
        assert enqueue is not None
        if isinstance(request, v1.Acknowledge):
            self._step = _Step.ANSWER
            if self._is_refused():
                return
            self._queue = enqueue.queue
            own = v2.Enqueue(enqueue.queue, (enqueue.key,), (enqueue.payload,))
            self._broker.enqueue(self, 0, own)
            return
        self._step = _Step.REQUEST
        if isinstance(request, v1.Reject):
            self._send(v1.Ok())
        else:
            self.is_broken = True

    def _judge(self, request: v1.Request) -> None:
        """Hear what became of the delivered task; anything unexpected sends it back and ends the connection."""
        match request:
            case v1.Acknowledge():
                self._step = _Step.ANSWER
                if not self._is_refused():
                    self._broker.ack(self, 0, v2.Ack((self._token,)))
            case v1.Reject():
                self._step = _Step.ANSWER
                if not self._is_refused():
                    self._broker.nack(self, 0, v2.Nack((self._token,)))
            case _:
                self.is_broken = True

    def _is_refused(self) -> bool:
        """Answer that another node leads, if one does, and return whether that was so."""
        refusal = self._broker.leader_refusal()
        if refusal is not None:
            self.answer(0, refusal)
        return refusal is not None

    def _cluster(self, leader: int | None = None) -> v1.Cluster:
        """Return all members by id, with the last known client address of each.

        A node's number in version 1 is its place in this list, also while other members are down: TaskFlux's client takes
        it for an index into its own list of addresses.
        ``leader`` leads, or is about to; ``None``: the leader in this node's view.
        """
        if self._group is None:
            return self._node
        group, status = self._group, self._group.status()
        places = {member: place for place, member in enumerate(group.member_ids())}
        return v1.Cluster(
            addresses=tuple(map(group.client_address, places)),
            leader=places.get(status.leader if leader is None else leader),
            node=places.get(status.node, -1),
        )

    # Answers.

    def answer(self, number: int, answer: v2.Answer) -> None:
        self._step = _Step.REQUEST
        match answer:
            case v2.Enqueued():
                self._send(self._outcome(answer.runs[0].outcome))
            case v2.Delivered():
                self._deliver(answer)
            case v2.Settled():
                # The lease may have ended; the client can do nothing about it but go on, as with TaskFlux.
                self._send(v1.Ok())
            case v2.Stats():
                self._send(self._listed(answer) if number else self._counted(answer))
            case v2.Ok():
                self._send(v1.Ok())
            case v2.Failed() if answer.code in _NOT_LED:
                leader = answer.detail if answer.code == Failure.NOT_LEADER else None
                self._send(v1.NotLeader(leader=self._cluster(leader).leader))
            case v2.Failed():
                code = _CODES.get(Failure(answer.code), v1.Code.UNKNOWN)
                self._send(v1.Failed(code=code, text=answer.text))
            case _:
                raise AssertionError(f"version 1 never asks for {type(answer).__name__}")
        if not self._is_going:
            self._go_on()

    def _outcome(self, outcome: int) -> v1.Response:
        if outcome == Outcome.ACCEPTED:
            return v1.Ok()
        policy = self._broker.policy_of(self._queue)
        if outcome == Outcome.QUEUE_FULL and policy.size_max is not None:
            return v1.SizeViolated(size_max=policy.size_max)
        if outcome == Outcome.KEY_OUT_OF_RANGE and policy.keys is not None:
            return v1.KeyViolated(keys=policy.keys)
        limit = policy.payload_size_max
        node_limit = self._broker.limits.payload_size_max
        return v1.PayloadViolated(payload_size_max=node_limit if limit is None else limit)

    def _deliver(self, delivered: v2.Delivered) -> None:
        if not delivered.ids:
            self._send(v1.Empty())
            return
        self._token = delivered.token
        self._step = _Step.VERDICT
        task = v1.Delivered(
            id=delivered.ids[0], key=delivered.keys[0], payload=delivered.payloads[0]
        )
        self._send(task)

    def _counted(self, stats: v2.Stats) -> v1.Counted:
        stat = stats.queues[0]
        return v1.Counted(count=stat.count - stat.leased)

    def _listed(self, stats: v2.Stats) -> v1.Listed:
        return v1.Listed(
            queues=tuple(
                v1.QueueInfo(
                    name=stat.name,
                    count=stat.count - stat.leased,
                    policies=v1.policy_words(stat.policy),
                )
                for stat in stats.queues
            )
        )
