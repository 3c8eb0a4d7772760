"""One core that is stepped by hand: a member with its disk, what it is told and what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from penstock.raft.configuration import Configuration
from penstock.raft.core import Raft
from penstock.raft.leading import Leadership
from penstock.raft.messages import Entry, HardState, Kind, Message, Ready, Snapshot
from penstock.raft.settings import Settings
from raft.world import SCRIPT_SETTINGS, Disk


class Stepped:
    """A member of a group in which nobody else is real."""

    def __init__(
        self,
        member: int = 1,
        *,
        voters: int = 3,
        configuration: Configuration | None = None,
        log: Sequence[int] = (),  # the terms of its entries
        snapshot: Snapshot | None = None,  # behind which they begin
        term: int = 0,
        vote: int = 0,
        commit: int = 0,
        settings: Settings = SCRIPT_SETTINGS,
        draw: Callable[[int], int] | None = None,
    ) -> None:
        configuration = configuration or Configuration(voters=tuple(range(1, voters + 1)))
        self.disk = Disk(configuration)
        if snapshot is not None:
            self.disk.stored_snapshot = snapshot
        self.disk.kept = entries(log, first=self.disk.stored_snapshot.index + 1)
        self.disk.hard_state = HardState(term, vote, commit)
        self.core = Raft(
            member,
            self.disk,
            hard_state=self.disk.hard_state,
            configuration=configuration,
            settings=settings,
            draw=draw or Random(0).randrange,
        )
        self.applied: list[Entry] = []  # what it was handed to apply

    @property
    def leadership(self) -> Leadership:
        assert self.core.leadership is not None, "it does not lead"
        return self.core.leadership

    @property
    def terms(self) -> list[int]:
        """The terms of the entries that it holds."""
        log = self.core.log
        return [log.term(index) for index in range(log.first, log.last + 1)]

    def tell(self, kind: Kind, sender: int = 2, *, term: int | None = None, **fields: Any) -> None:
        """Give it a message, of its own term unless another is named."""
        term = self.core.term if term is None else term
        self.core.step(Message(kind=kind, sender=sender, to=self.core.member, term=term, **fields))

    def finish(self, ready: Ready) -> list[Message]:
        """Do what a Ready asks for; return all that leaves."""
        self.disk.store(ready)
        self.core.persisted(ready.token)
        if ready.committed:
            self.applied += ready.committed
            self.core.applied(ready.committed[-1].index)
        return ready.messages + ready.messages_after

    def pump(self) -> list[Message]:
        """Do all that it asks for; return what it says."""
        said: list[Message] = []
        while self.core.has_ready:
            said += self.finish(self.core.ready())
        return said

    def asked(self, kind: Kind, sender: int = 2, **fields: Any) -> list[Message]:
        """Tell it something and return what it says to that."""
        self.tell(kind, sender, **fields)
        return self.pump()

    def lead(self) -> list[Message]:
        """Let it win an election, with all votes; return what it says as the leader."""
        self.core.campaign()
        for kind in (Kind.PRE_VOTE_REPLY, Kind.VOTE_REPLY):
            self.pump()
            for voter in self.core.configuration.voters:
                if voter != self.core.member and not self.core.is_leader:
                    is_pre_vote = kind is Kind.PRE_VOTE_REPLY
                    self.tell(kind, voter, term=self.core.term + is_pre_vote)
        assert self.core.is_leader
        return self.pump()


def leader_of(voters: int, **stored: Any) -> Stepped:
    """Return a leader whose empty entry all have, and know to be committed."""
    node = Stepped(voters=voters, **stored)
    node.lead()
    for voter in range(2, voters + 1):
        node.asked(Kind.APPEND_REPLY, voter, index=node.core.log.last)
    assert node.core.log.committed == node.core.log.last
    return node


def entries(terms: Sequence[int], first: int = 1) -> list[Entry]:
    """Return empty entries of these terms, from an index on."""
    return [Entry(index, term) for index, term in enumerate(terms, first)]


def of_kind(said: Sequence[Message], kind: Kind) -> list[Message]:
    return [message for message in said if message.kind is kind]
