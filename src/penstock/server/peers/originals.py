"""Talking to original TaskFlux nodes: one request at a time on a connection, and its answer (docs/peers.md).

Their answers name nothing, so they are paired by order alone. What such a node has no packet for is not said to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from penstock.errors import CorruptData
from penstock.protocol.peers import Packet, Type, encode_packet
from penstock.protocol.peers import packets as p
from penstock.raft.messages import Kind, Message
from penstock.server.peers.transfers import PlainSending, SnapshotSource
from penstock.server.peers.translation import append_of, message_of, packet_of

ANSWER_SECONDS: Final = 5.0
"""How long an original may take to answer; it waits as long itself."""

WAITING_MAX: Final = 64
WAITING_SIZE_MAX: Final = 8 * 2**20
"""Messages, and bytes in them, that may wait for the answer before them: as much as the group has under way."""

RETRANSMITS_MAX: Final = 3
"""How often a packet is said again before the connection is given up."""

ASKABLE: Final = frozenset((Kind.APPEND, Kind.HEARTBEAT, Kind.VOTE, Kind.SNAPSHOT))

_ANSWERS: Final[dict[type, frozenset[int]]] = {
    p.Append: frozenset((Type.APPEND_RESULT, Type.RETRANSMIT)),
    p.Vote: frozenset((Type.VOTE_REPLY, Type.RETRANSMIT)),
    p.Install: frozenset((Type.PLAIN_CHUNK_TAKEN, Type.INSTALLED, Type.RETRANSMIT)),
    p.PlainChunk: frozenset((Type.PLAIN_CHUNK_TAKEN, Type.INSTALLED, Type.RETRANSMIT)),
}
_NOTHING: Final[frozenset[int]] = frozenset()


@dataclass(slots=True)
class _Asked:
    """The request that waits for its answer."""

    message: Message
    packet: Packet
    since: float
    retransmits: int = 0


class Asking:
    """Our requests to an original node, on the connection that we opened."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        *,
        step: Callable[[Message], None],
        snapshots: SnapshotSource | None,
        done: Callable[[bool], None],
        now: Callable[[], float],
    ) -> None:
        """``snapshots``: states as an original reads them; without, it is sent none."""
        self._write = write
        self._step = step
        self._snapshots = snapshots
        self._done = done
        self._now = now
        self._waiting: deque[Message] = deque()
        self._waiting_size = 0
        self._asked: _Asked | None = None
        self._sending: PlainSending | None = None
        # The last place where the logs agree, or might: a heartbeat has to name one.
        self._place = 0, 0

    @property
    def allowed(self) -> frozenset[int]:
        """The types of packets that may come now."""
        return _NOTHING if self._asked is None else _ANSWERS[type(self._asked.packet)]

    def send(self, message: Message) -> bool:
        """Say a message when its turn has come. Return whether it could be kept until then."""
        if message.kind not in ASKABLE:
            return True
        if message.kind is Kind.HEARTBEAT:
            self._forget_heartbeat()
        size = sum(entry.size for entry in message.entries)
        if len(self._waiting) >= WAITING_MAX or (
            self._waiting and self._waiting_size + size > WAITING_SIZE_MAX
        ):
            return False
        self._waiting.append(message)
        self._waiting_size += size
        self._ask_next()
        return True

    def _forget_heartbeat(self) -> None:
        """Let a new heartbeat replace one that still waits: only the last says something."""
        for place, message in enumerate(self._waiting):
            if message.kind is Kind.HEARTBEAT:
                del self._waiting[place]
                return

    def _ask_next(self) -> None:
        while self._asked is None and self._waiting:
            message = self._waiting.popleft()
            self._waiting_size -= sum(entry.size for entry in message.entries)
            packet = self._first_packet(message)
            if packet is not None:
                self._ask(message, packet)

    def _first_packet(self, message: Message) -> Packet | None:
        if message.kind is Kind.SNAPSHOT:
            return self._begin_snapshot(message)
        if message.kind is Kind.VOTE:
            return packet_of(replace(message, is_transfer=False))
        if message.kind is Kind.HEARTBEAT:
            index, log_term = self._place
            return append_of(replace(message, index=index, log_term=log_term))
        self._place = message.index, message.log_term
        return append_of(message)

    def _begin_snapshot(self, message: Message) -> Packet | None:
        assert message.snapshot is not None
        file = None if self._snapshots is None else self._snapshots.open(message.snapshot)
        if file is None:
            self._done(False)
            return None
        self._sending = PlainSending(message, file)
        return self._sending.first()

    def _ask(self, message: Message, packet: Packet) -> None:
        self._asked = _Asked(message, packet, self._now())
        self._write(encode_packet(packet))

    def take(self, packet: Packet) -> None:
        """Take the answer to the request that waits for one. Raises ``CorruptData``, and what ``step`` does."""
        asked = self._asked
        assert asked is not None
        if isinstance(packet, p.Retransmit):
            self._say_again(asked)
            return
        self._asked = None
        if self._sending is not None:
            self._go_on_sending(self._sending, asked, packet)
        else:
            self._step(self._reply(asked.message, packet))
        self._ask_next()

    def _say_again(self, asked: _Asked) -> None:
        asked.retransmits += 1
        if asked.retransmits > RETRANSMITS_MAX:
            raise CorruptData(f"asked to say a packet again more than {RETRANSMITS_MAX} times")
        self._write(encode_packet(asked.packet))

    def _go_on_sending(self, sending: PlainSending, asked: _Asked, answer: Packet) -> None:
        packet = sending.following(answer)
        if packet is not None:
            self._ask(asked.message, packet)
        else:
            self._sending = None
            self._done(bool(sending.outcome))

    def _reply(self, message: Message, packet: Packet) -> Message:
        sender, to = message.to, message.sender
        if isinstance(packet, p.VoteReply):
            return message_of(packet, sender=sender, to=to)
        assert isinstance(packet, p.AppendResult)
        if packet.term < 0:
            raise CorruptData("a negative term", found=str(packet.term))
        if message.kind is Kind.HEARTBEAT:
            return Message(
                kind=Kind.HEARTBEAT_REPLY,
                sender=sender,
                to=to,
                term=packet.term,
                context=message.context,
            )
        if not packet.is_taken:
            return Message(
                kind=Kind.APPEND_REPLY,
                sender=sender,
                to=to,
                term=packet.term,
                index=message.index,
                is_rejected=True,
                hint=max(message.index - 1, 0),
            )
        if message.entries:
            self._place = message.entries[-1].index, message.entries[-1].term
        return Message(
            kind=Kind.APPEND_REPLY,
            sender=sender,
            to=to,
            term=packet.term,
            index=message.index + len(message.entries),
        )

    @property
    def is_overdue(self) -> bool:
        return self._asked is not None and self._now() - self._asked.since >= ANSWER_SECONDS

    def close(self) -> None:
        """Forget everything; a snapshot under way, or one that waits, has failed."""
        is_snapshot_lost = any(message.kind is Kind.SNAPSHOT for message in self._waiting)
        if self._sending is not None:
            self._sending.end(False)
            is_snapshot_lost = True
        self._waiting.clear()
        self._asked = self._sending = None
        if is_snapshot_lost:
            self._done(False)


class Answering:
    """An original's requests to us, on the connection that it opened."""

    ALLOWED: Final[frozenset[int]] = frozenset((Type.VOTE, Type.APPEND))
    """Not snapshots: TaskFlux's name no members, and a node that installs one has to know its group."""

    def __init__(self, write: Callable[[bytes], None], *, step: Callable[[Message], None]) -> None:
        self._write = write
        self._step = step
        # An original has one request under way. If it asks before it was answered, it has given the first one up.
        self._asked: Message | None = None

    def take(self, message: Message) -> None:
        """Take a request. Raises what ``step`` does."""
        self._asked = message
        self._step(message)

    def reply(self, message: Message) -> None:
        """Answer with a reply of the group's, if it is what was asked for."""
        asked = self._asked
        if asked is None:
            return
        if asked.kind is Kind.VOTE and message.kind is Kind.VOTE_REPLY:
            packet: Packet = p.VoteReply(term=message.term, is_granted=not message.is_rejected)
        elif asked.kind is Kind.APPEND and message.kind is Kind.APPEND_REPLY:
            # "Taken" has to mean all of it: the answer has no index of its own.
            is_all_there = message.index >= asked.index + len(asked.entries)
            is_taken = not message.is_rejected and message.term == asked.term and is_all_there
            packet = p.AppendResult(is_taken=is_taken, term=message.term)
        else:
            return
        self._asked = None
        self._write(encode_packet(packet))
