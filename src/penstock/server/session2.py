"""A connection that speaks version 2: frames in, requests to the broker, answers out in one write.

Sans-IO: bytes come in by ``receive`` and leave by the ``write`` it was given, so that the same object serves a
socket and a caller in process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final, Protocol

from penstock import __version__
from penstock.errors import BadData, Compacted, InvalidValue
from penstock.model import Index
from penstock.protocol import version2 as v2
from penstock.protocol.frames import Frame, FrameReader
from penstock.protocol.version2 import Failure, Kind, decode_request, encode_answer
from penstock.protocol.version2.answers import encode_single_answers
from penstock.protocol.version2.requests import (
    SINGLE_SIZE,
    Singles,
    decode_lone,
    take_singles,
)
from penstock.raft.configuration import Change, Step
from penstock.server.broker import Broker
from penstock.server.caller import OUT_SIZE_MAX, SinglesCaller
from penstock.server.consumers import Consumer
from penstock.server.group_status import GroupStatus, MemberStatus
from penstock.server.membership import without_incarnations
from penstock.server.settings import EXCESS_SIZE_MAX

READ_SIZE_MAX: Final = 2**20
"""Bytes of entries in one answer to a read."""

REQUEST_OVERHEAD: Final = 1024
"""About what a request costs beyond its bytes while it is under way: a dequeue that waits, measured."""

LONE_SIZE_MAX: Final = 64 * 2**10
"""Bytes up to which what arrived is looked at as one request: more of it may well be several."""

SUBSCRIPTIONS_MAX: Final = 1024
"""Of one connection."""


_KINDS: Final = frozenset(kind for kind in Kind if chr(kind).isupper())

_START: Final = int(Kind.START)

_ANYWHERE: Final = (v2.Read, v2.Node, v2.Ping, v2.Cluster, v2.Unsubscribe)
"""What a node answers that does not lead: what it has applied, and what it knows of itself and of its group."""

_STEPS: Final = {
    v2.MemberStep.VOTER: Step.VOTER,
    v2.MemberStep.LEARNER: Step.LEARNER,
    v2.MemberStep.REMOVE: Step.REMOVE,
}


class GroupDesk(Protocol):
    """Where a caller asks about the group, for other members, or for another leader."""

    def member_ids(self) -> Sequence[int]:
        """Return all members in the order of their ids."""

    def client_address(self, peer: int) -> str:
        """Return where clients reach a member, or last did; empty if that was never known."""

    def status(self) -> GroupStatus:
        """Return the group as the node sees it."""

    def change_members(self, change: Change, then: Callable[[str | None], None]) -> None:
        """Change the members, and call ``then``: with nothing when that is applied, else with the reason."""

    def transfer_leadership(self, to: int, then: Callable[[str | None], None]) -> None:
        """Let ``to`` lead, and call ``then`` in the same way."""


class Session2(SinglesCaller):
    """One caller of version 2."""

    __slots__ = (
        "_backlog",
        "_broker",
        "_frames",
        "_group",
        "_in_flight",
        "_is_full",
        "_lone_size_max",
        "_out",
        "_out_size",
        "_reads",
        "_subscriptions",
        "_write",
        "backlog_size",
        "in_flight_size",
        "is_broken",
    )

    def __init__(
        self, broker: Broker, write: Callable[[bytes], None], group: GroupDesk | None = None
    ) -> None:
        """``group`` is ``None`` for a node that is alone."""
        super().__init__()
        self._broker = broker
        self._group = group
        self._write = write
        self._frames = self._new_reader()
        self._lone_size_max = min(broker.limits.frame_size_max, LONE_SIZE_MAX)
        self._subscriptions: dict[int, Consumer] = {}
        self._reads: set[int] = set()  # reads that wait for the next entry, by the broker's number
        self._out: list[bytes] = []
        self._out_size = 0
        self._backlog: deque[Frame] = deque()  # requests that were read and not taken yet
        self.backlog_size = 0
        self._in_flight: dict[int, int] = {}  # bytes of each request that is not answered yet
        self.in_flight_size = 0
        self._is_full = False
        self.is_broken = False  # whether it broke the protocol: it is to be closed

    def _new_reader(self) -> FrameReader:
        return FrameReader(self._broker.limits.frame_size_max, excess_size_max=EXCESS_SIZE_MAX)

    # What the connection tells us.

    def receive(self, data: bytes) -> int:
        """Take bytes from the caller and return how many requests they completed; a report is none."""
        if not self._is_behind and not self._frames.held and len(data) <= self._lone_size_max:
            lone = decode_lone(data)
            if lone is not None:
                self._take_singles(lone)
                return 1
        try:
            frames = self._frames.receive(data)
        except BadData as error:
            self._break(str(error))
            return 0
        if self.batches:
            frames = self._take_starts(frames)
        self._backlog.extend(frames)
        self.backlog_size += sum([len(frame[2]) for frame in frames])
        self.go_on()
        return len(frames) + (self._refuse_oversized() if self._frames.oversized else 0)

    def _refuse_oversized(self) -> int:
        """Answer frames above the limit, which were dropped, and return how many they were."""
        oversized, self._frames.oversized = self._frames.oversized, []
        limit = self._broker.limits.frame_size_max
        for one in oversized:
            text = (
                f"a frame of {one.size} bytes is above the limit of {limit} (--max-frame);"
                " send fewer or smaller tasks at a time"
            )
            number = one.request
            if not number or number in self._in_flight or number in self._subscriptions:
                self._break(text)
            else:
                self.answer(number, v2.Failed(Failure.INVALID, text, limit))
        return len(oversized)

    def _take_starts(self, frames: list[Frame]) -> list[Frame]:
        """Take reports of started tasks out of turn, and return the other frames.

        They have no answer, so a caller that reads slowly must not keep them waiting: its leases may end meanwhile.
        """
        starts = [frame[2] for frame in frames if frame[0] == _START]
        if not starts:
            return frames
        for body in starts:
            self._start(body)
        return [frame for frame in frames if frame[0] != _START]

    def _start(self, body: bytes) -> None:
        try:
            request = decode_request(_START, body)
        except BadData as error:
            self._break(str(error))
            return
        assert isinstance(request, v2.Start)
        self._broker.start(self, request)

    def go_on(self) -> None:
        """Take requests, but no more than answers may wait: a short request can have a long answer."""
        backlog = self._backlog
        while backlog and self._out_size < OUT_SIZE_MAX and not self._is_full:
            singles = take_singles(backlog)
            if singles is not None:
                self.backlog_size -= sum(map(len, singles.payloads))
                self.backlog_size -= len(singles.numbers) * (len(singles.queue) + SINGLE_SIZE)
                if not self.is_broken:
                    self._take_singles(singles)
                continue
            kind, number, body = backlog.popleft()
            size = len(body)
            self.backlog_size -= size
            if self.is_broken:
                continue
            if kind == _START:
                self._start(body)
                continue
            if number in self._in_flight or number in self._subscriptions:
                self._break(f"request id {number} is in use")
                continue
            self._in_flight[number] = size + REQUEST_OVERHEAD
            self.in_flight_size += size + REQUEST_OVERHEAD
            try:
                self._dispatch(kind, number, body)
            except BadData as error:
                self._break(str(error))

    def _take_singles(self, singles: Singles) -> None:
        numbers, in_flight = singles.numbers, self._in_flight
        if (in_flight and not in_flight.keys().isdisjoint(numbers)) or (
            self._subscriptions and not self._subscriptions.keys().isdisjoint(numbers)
        ):
            self._break("a request id is in use")
            return
        sizes = [len(payload) + REQUEST_OVERHEAD for payload in singles.payloads]
        in_flight.update(zip(numbers, sizes, strict=True))
        self.in_flight_size += sum(sizes)
        refusal = self._broker.leader_refusal()
        if refusal is None:
            self._broker.enqueue_singles(self, singles)
            return
        for number in numbers:
            self.answer(number, refusal)

    def answer_singles(self, numbers: Sequence[int], first: int) -> None:
        """Answer requests that enqueued one task each."""
        self.in_flight_size -= sum(map(self._in_flight.pop, numbers, repeat(0)))
        if not self.is_gone:
            self._send(encode_single_answers(numbers, first))

    @property
    def _is_behind(self) -> bool:
        """Whether what arrives has to wait for what came before, or for the caller to read."""
        return bool(self._backlog) or self.is_broken or self.is_full

    @property
    def has_backlog(self) -> bool:
        """Whether requests wait that could be taken now."""
        return bool(self._backlog) and not self._is_full

    def _break(self, text: str) -> None:
        self.is_broken = True
        self._send(encode_answer(v2.Failed(Failure.INVALID, text), 0))

    @property
    def held_size(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return self._frames.held

    @property
    def is_draining(self) -> bool:
        """Whether a frame above the limit is being dropped as it arrives."""
        return self._frames.is_draining

    @property
    def is_waiting(self) -> bool:
        """Whether it has something under way: a request, a lease, a subscription."""
        return bool(self._in_flight or self._backlog or self.batches or self.consumers)

    @property
    def is_full(self) -> bool:
        return self._is_full or self._out_size >= OUT_SIZE_MAX

    def set_full(self, is_full: bool) -> None:
        """Note that the caller reads too slowly, or that it has caught up."""
        self._is_full = is_full
        if not is_full:
            self._wake()

    def _wake(self) -> None:
        for consumer in list(self.consumers):
            self._broker.wake(consumer)

    def close(self) -> None:
        """Forget the caller: its tasks go back."""
        # The connection and we hold each other: what is large must not wait for the garbage collector.
        self._frames = self._new_reader()
        self._backlog.clear()
        self.backlog_size = 0
        for waiting in self._reads:
            self._broker.stop_waiting_for_entry(waiting)
        self._reads.clear()
        self._broker.leave(self)

    # What the broker tells us.

    def answer(self, number: int, answer: v2.Answer) -> None:
        self.in_flight_size -= self._in_flight.pop(number, 0)
        if isinstance(answer, v2.Failed):
            # Its queue is gone, or this node does not lead any more, and so is the subscription.
            self._subscriptions.pop(number, None)
            answer = self._addressed(answer)
        if not self.is_gone:
            self._send(encode_answer(answer, number))

    def _addressed(self, failed: v2.Failed) -> v2.Failed:
        """Return a failure that tells where the leader is, if another node leads."""
        if failed.code != Failure.NOT_LEADER or self._group is None:
            return failed
        return v2.not_leader(failed.detail, self._group.client_address(failed.detail))

    def _send(self, frame: bytes) -> None:
        if not self._out:
            self._broker.touched.append(self)
        self._out.append(frame)
        self._out_size += len(frame)

    def flush(self) -> None:
        """Send what was answered, in one write."""
        if self._out:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            was_full = self.is_full
            self._out.clear()
            self._out_size = 0
            self._write(data)
            if was_full and not self._is_full:
                self._wake()

    # Requests.

    def _dispatch(self, kind: int, number: int, body: bytes) -> None:
        broker = self._broker
        if kind not in _KINDS:
            text = f"request {chr(kind)!r} is unknown to this version of the node"
            self.answer(number, v2.Failed(Failure.UNKNOWN_REQUEST, text))
            return
        try:
            request = decode_request(kind, body)
        except InvalidValue as error:
            self.answer(number, v2.Failed(Failure.INVALID, str(error)))
            return
        refusal = None if isinstance(request, _ANYWHERE) else broker.leader_refusal()
        if refusal is not None:
            self.answer(number, refusal)
            return
        match request:
            case v2.Enqueue():
                broker.enqueue(self, number, request)
            case v2.Ack():
                broker.ack(self, number, request)
            case v2.Dequeue():
                broker.dequeue(self, number, request)
            case v2.Nack():
                broker.nack(self, number, request)
            case v2.Release():
                broker.release(self, number, request)
            case v2.Extend():
                broker.extend(self, number, request)
            case v2.Subscribe():
                self._subscribe(number, request)
            case v2.Unsubscribe():
                self._unsubscribe(number, request)
            case v2.Peek():
                broker.peek(self, number, request)
            case v2.Purge():
                broker.purge(self, number, request)
            case v2.Create():
                broker.create(self, number, request)
            case v2.Delete():
                broker.delete(self, number, request)
            case v2.Stat():
                broker.stat(self, number, request)
            case v2.Read():
                self._read(number, request)
            case v2.Node():
                self.answer(number, self._node())
            case v2.Ping():
                self.answer(number, v2.Ok())
            case v2.Cluster():
                self.answer(number, self._cluster())
            case v2.ChangeMembers() | v2.Transfer():
                self._change_group(number, request)

    def _subscribe(self, number: int, request: v2.Subscribe) -> None:
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            text = f"a connection may have {SUBSCRIPTIONS_MAX} subscriptions; use another"
            self.answer(number, v2.Failed(Failure.LIMIT, text))
            return
        consumer = self._broker.subscribe(self, number, request)
        if consumer is not None:
            self._subscriptions[number] = consumer

    def _unsubscribe(self, number: int, request: v2.Unsubscribe) -> None:
        consumer = self._subscriptions.pop(request.subscription, None)
        if consumer is None:
            text = f"{request.subscription} is no subscription of this connection"
            self.answer(number, v2.Failed(Failure.INVALID, text))
            return
        self._broker.unsubscribe(consumer)
        self.answer(number, v2.Ok())

    def _read(self, number: int, request: v2.Read) -> None:
        replica = self._broker.replica
        log, end = replica.directory.log, replica.applied + 1
        if request.first >= end:
            if request.wait_ms and not self.is_gone:
                self._read_later(number, request)
                return
            nothing = v2.Entries(replica.generation, request.first, end - 1, (), ())
            self.answer(number, nothing)
            return
        size_max = min(request.size_max or READ_SIZE_MAX, READ_SIZE_MAX)
        try:
            entries = log.read(Index(request.first), Index(end), size_max=size_max)
        except Compacted as error:
            self.answer(number, v2.Failed(Failure.COMPACTED, str(error), log.first))
            return
        entries = entries[: v2.BATCH_MAX]
        terms = [entry.term for entry in entries]
        payloads = [without_incarnations(entry.payload) for entry in entries]
        found = v2.Entries(replica.generation, request.first, end - 1, terms, payloads)
        self.answer(number, found)

    def _read_later(self, number: int, request: v2.Read) -> None:
        again = v2.Read(request.first, request.size_max, 0)

        def read() -> None:
            self._reads.discard(waiting)
            self._read(number, again)

        waiting = self._broker.wait_for_entry(request.wait_ms, read)
        self._reads.add(waiting)

    def _node(self) -> v2.NodeInfo:
        replica, limits = self._broker.replica, self._broker.limits
        members = () if self._group is None else self._group.status().members
        return v2.NodeInfo(
            node=replica.group.node,
            leader=replica.group.leader,
            version=__version__,
            generation=replica.generation,
            term=replica.group.term,
            first=replica.directory.log.first,
            committed=replica.applied,
            frame_size_max=limits.frame_size_max,
            payload_size_max=limits.payload_size_max,
            addresses=client_addresses(members),
        )

    # The group.

    def _cluster(self) -> v2.ClusterInfo:
        if self._group is not None:
            return cluster_info(self._group.status())
        replica = self._broker.replica
        node, end = replica.group.node, replica.directory.log.end
        alone = v2.ClusterMember(
            node=node,
            address="",
            client_address="",
            standing="voter",
            is_leader=True,
            is_self=True,
            match=end - 1,
            lag=0,
        )
        return v2.ClusterInfo(
            node=node,
            leader=node,
            role="leader",
            is_leading=True,
            is_joint=False,
            term=replica.group.term,
            first=replica.directory.log.first,
            last=end - 1,
            committed=replica.applied,
            applied=replica.applied,
            members=(alone,),
        )

    def _change_group(self, number: int, request: v2.ChangeMembers | v2.Transfer) -> None:
        if self._group is None:
            text = "this node is not in a cluster; start the nodes of a cluster with --node and --peers"
            self.answer(number, v2.Failed(Failure.CHANGE_REFUSED, text))
            return

        def then(reason: str | None) -> None:
            refusal = None if reason is None else v2.Failed(Failure.CHANGE_REFUSED, reason)
            self.answer(number, refusal or v2.Ok())
            self.flush()  # it may be the clock that ends this, and then no batch follows

        if isinstance(request, v2.Transfer):
            self._group.transfer_leadership(request.to, then)
        else:
            self._group.change_members(_change(request), then)


def _change(request: v2.ChangeMembers) -> Change:
    steps = tuple((_STEPS[each.step], each.node) for each in request.steps)
    # Which directory a node has is learned when it is first talked to.
    labels = tuple((each.node, f"{each.address}#") for each in request.steps if each.address)
    return Change(steps, labels=labels)


def cluster_info(status: GroupStatus) -> v2.ClusterInfo:
    """Return what a client is told of a group."""
    return v2.ClusterInfo(
        node=status.node,
        leader=status.leader or None,
        role=status.role,
        is_leading=status.is_leading,
        is_joint=status.is_joint,
        term=status.term,
        first=status.first,
        last=status.last,
        committed=status.committed,
        applied=status.applied,
        members=tuple(
            v2.ClusterMember(
                node=each.id,
                address=each.address,
                client_address=each.client_address,
                standing=each.standing,
                is_leader=each.is_leader,
                is_self=each.is_self,
                match=each.match,
                lag=each.lag,
                pace=each.pace,
                window=each.window,
            )
            for each in status.members
        ),
    )


def client_addresses(members: Sequence[MemberStatus]) -> tuple[str, ...]:
    """Return where clients reach the members, as far as that is known, in the order of their ids."""
    known = sorted((each.id, each.client_address) for each in members if each.client_address)
    return tuple(address for _, address in known)
