"""Raft messages to packets and back (docs/peers.md).

The core counts indexes from 1 and the wire from 0; "nothing" is (0, 0) there and (-1, 1) here. This module and
``entry_store`` are the only ones that know both. Snapshots are not here: a transfer has its own packets.
"""

from __future__ import annotations

from penstock.errors import CorruptData
from penstock.protocol.peers import packets as p
from penstock.protocol.peers.packets import Packet
from penstock.raft.messages import Entry, Kind, Message
from penstock.server.entry_store import check_payloads, entry_of, stored_payload


def packet_of(message: Message) -> Packet:
    """Return the packet of a message."""
    kind, term = message.kind, message.term
    if kind is Kind.APPEND:
        return _append_of(message)
    if kind is Kind.APPEND_REPLY:
        hint_index, hint_term = wire_place(message.hint, message.hint_term)
        return p.AppendReply(
            term=term,
            is_rejected=message.is_rejected,
            index=message.index - 1,
            hint_index=hint_index,
            hint_term=hint_term,
        )
    if kind is Kind.HEARTBEAT:
        return p.Heartbeat(term=term, commit=message.commit - 1, context=message.context)
    if kind is Kind.HEARTBEAT_REPLY:
        return p.HeartbeatReply(term=term, context=message.context)
    if kind in (Kind.VOTE, Kind.PRE_VOTE):
        return _vote_of(message)
    if kind in (Kind.VOTE_REPLY, Kind.PRE_VOTE_REPLY):
        return _vote_reply_of(message)
    if kind is Kind.TIMEOUT_NOW:
        return p.TimeoutNow(term=term)
    if kind is Kind.READ:
        return p.Read(origin=message.sender, context=message.context)
    assert kind is Kind.READ_REPLY, f"a {kind.value} is not one packet"
    return p.ReadReply(context=message.context, index=message.index - 1)


def _append_of(message: Message) -> p.Append:
    previous_index, previous_term = wire_place(message.index, message.log_term)
    entries = message.entries
    return p.Append(
        commit=message.commit - 1,
        term=message.term,
        previous_term=previous_term,
        previous_index=previous_index,
        leader=message.sender,
        terms=[entry.term for entry in entries],
        payloads=[stored_payload(entry) for entry in entries],
    )


def _vote_of(message: Message) -> Packet:
    last_index, last_term = wire_place(message.index, message.log_term)
    if message.kind is Kind.PRE_VOTE:
        return p.PreVote(term=message.term, last_term=last_term, last_index=last_index)
    if message.is_transfer:
        return p.TransferVote(term=message.term, last_term=last_term, last_index=last_index)
    return p.Vote(
        candidate=message.sender, term=message.term, last_term=last_term, last_index=last_index
    )


def _vote_reply_of(message: Message) -> Packet:
    is_granted = not message.is_rejected
    if message.kind is Kind.VOTE_REPLY and not message.hint:
        return p.VoteReply(term=message.term, is_granted=is_granted)
    hint_index, hint_term = wire_place(message.hint, message.hint_term)
    packet = p.PreVoteReply if message.kind is Kind.PRE_VOTE_REPLY else p.HintedVoteReply
    return packet(
        term=message.term, is_granted=is_granted, hint_index=hint_index, hint_term=hint_term
    )


def message_of(packet: Packet, *, sender: int, to: int) -> Message:
    """Return the message in a packet of the node ``sender``. Raises ``BadData`` for one that cannot be meant.

    Every entry of an append is decoded: an entry that cannot be applied later must not be stored or acknowledged.
    """
    match packet:
        case p.Append():
            return _append(packet, sender, to)
        case p.AppendReply():
            hint, hint_term = core_place(packet.hint_index, packet.hint_term)
            return Message(
                kind=Kind.APPEND_REPLY,
                sender=sender,
                to=to,
                term=_term(packet.term),
                index=_core_index(packet.index),
                is_rejected=packet.is_rejected,
                hint=hint,
                hint_term=hint_term,
            )
        case p.Heartbeat():
            return Message(
                kind=Kind.HEARTBEAT,
                sender=sender,
                to=to,
                term=_term(packet.term),
                commit=_core_index(packet.commit),
                context=_count(packet.context, "context"),
            )
        case p.HeartbeatReply():
            return Message(
                kind=Kind.HEARTBEAT_REPLY,
                sender=sender,
                to=to,
                term=_term(packet.term),
                context=_count(packet.context, "context"),
            )
        case p.Vote() | p.TransferVote() | p.PreVote():
            return _vote(packet, sender, to)
        case p.VoteReply() | p.HintedVoteReply() | p.PreVoteReply():
            return _vote_reply(packet, sender, to)
        case p.TimeoutNow():
            return Message(kind=Kind.TIMEOUT_NOW, sender=sender, to=to, term=_term(packet.term))
        case p.Read():
            origin = _count(packet.origin, "origin")
            context = _count(packet.context, "context")
            return Message(kind=Kind.READ, sender=origin, to=to, context=context)
        case p.ReadReply():
            return Message(
                kind=Kind.READ_REPLY,
                sender=sender,
                to=to,
                context=_count(packet.context, "context"),
                index=_core_index(packet.index),
            )
    raise CorruptData(f"a {type(packet).__name__} is not a message")


def _append(packet: p.Append, sender: int, to: int) -> Message:
    _must_speak_for_itself(packet.leader, sender)
    index, log_term = core_place(packet.previous_index, packet.previous_term)
    check_payloads(packet.payloads)
    entries: list[Entry] = [
        entry_of(place, term, payload)
        for place, (term, payload) in enumerate(
            zip(packet.terms, packet.payloads, strict=True), index + 1
        )
    ]
    return Message(
        kind=Kind.APPEND,
        sender=sender,
        to=to,
        term=_term(packet.term),
        index=index,
        log_term=log_term,
        entries=tuple(entries),
        commit=_core_index(packet.commit),
    )


def _vote(packet: p.Vote | p.TransferVote | p.PreVote, sender: int, to: int) -> Message:
    if isinstance(packet, p.Vote):
        _must_speak_for_itself(packet.candidate, sender)
    index, log_term = core_place(packet.last_index, packet.last_term)
    return Message(
        kind=Kind.PRE_VOTE if isinstance(packet, p.PreVote) else Kind.VOTE,
        sender=sender,
        to=to,
        term=_term(packet.term),
        index=index,
        log_term=log_term,
        is_transfer=isinstance(packet, p.TransferVote),
    )


def _vote_reply(
    packet: p.VoteReply | p.HintedVoteReply | p.PreVoteReply, sender: int, to: int
) -> Message:
    hint, hint_term = 0, 0
    if not isinstance(packet, p.VoteReply):
        hint, hint_term = core_place(packet.hint_index, packet.hint_term)
    return Message(
        kind=Kind.PRE_VOTE_REPLY if isinstance(packet, p.PreVoteReply) else Kind.VOTE_REPLY,
        sender=sender,
        to=to,
        term=_term(packet.term),
        is_rejected=not packet.is_granted,
        hint=hint,
        hint_term=hint_term,
    )


def _must_speak_for_itself(named: int, sender: int) -> None:
    if named != sender:
        raise CorruptData(
            "a node speaks for another", expected=f"node {sender}", found=f"node {named}"
        )


# --- places ---


def wire_place(index: int, term: int) -> tuple[int, int]:
    """Return the place of an entry of the core's as the wire has it."""
    return (-1, 1) if index == 0 else (index - 1, term)


def core_place(index: int, term: int) -> tuple[int, int]:
    """Return a place of the wire's as the core has it. Raises ``CorruptData`` for one that cannot be."""
    if index == -1:
        if term != 1:
            raise CorruptData("the place before all entries has term 1", found=str(term))
        return 0, 0
    return _core_index(index), _term(term)


def _core_index(index: int) -> int:
    if index < -1:
        raise CorruptData("an index that cannot be", expected="-1 or more", found=str(index))
    return index + 1


def _term(term: int) -> int:
    return _count(term, "term")


def _count(value: int, what: str) -> int:
    if value < 0:
        raise CorruptData(f"a negative {what}", found=str(value))
    return value
