"""No message leaves before what it rests on is durable: the simulated disk knows, whatever the node believes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.raft.messages import Kind, Message
from simulation.invariants import Broken, core_of, is_durable

if TYPE_CHECKING:
    from penstock.server.node import Node
    from simulation.process import Process

_VOTES: Final = frozenset((Kind.VOTE, Kind.VOTE_REPLY))


def listen(process: Process, node: Node) -> None:
    """Look at every message that a node sends from now on. Raises ``Broken`` when it is sent."""
    assert node.group is not None
    replica = node.group.replica
    transmit = replica.transmit

    def judged(message: Message) -> None:
        judge(process, node, message)
        transmit(message)

    replica.transmit = judged


def judge(process: Process, node: Node, message: Message) -> None:
    """Look at a message that is about to leave. Raises ``Broken``."""
    if message.kind in _VOTES and not message.is_rejected:
        _judge_vote(process, node, message)
    elif message.kind is Kind.APPEND_REPLY and not message.is_rejected:
        _judge_entries(process, node, message)


def _judge_vote(process: Process, node: Node, message: Message) -> None:
    stored = node.directory.metadata.state
    path = str(node.directory.layout.metadata)
    vote = message.to if message.kind is Kind.VOTE_REPLY else message.sender
    is_synced = process.files.is_synced(path, 0, 2**16)
    # Since it was decided, a later term may have begun: then nobody can be given another vote in this one.
    is_kept = (stored.term, stored.vote) == (message.term, vote) or stored.term > message.term
    if not is_synced or not is_kept:
        raise Broken(
            f"{process.host} speaks of its vote for {vote} in term {message.term}, and its disk has"
            f" {stored.vote or 'nobody'} in term {stored.term}{'' if is_synced else ', not synced'}"
        )


def _judge_entries(process: Process, node: Node, message: Message) -> None:
    log = core_of(node).log
    # What was cut off since, or is part of a snapshot now, was promised to somebody who leads no more.
    if not log.first <= message.index <= log.last or message.term < core_of(node).term:
        return
    if not is_durable(process, node, message.index, log.term(message.index)):
        raise Broken(
            f"{process.host} acknowledges entry {message.index} to {message.to}, and its disk may lose it"
        )
