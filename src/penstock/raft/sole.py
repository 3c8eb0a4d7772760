"""A group of one: the member that agrees with itself.

It keeps to the contract of ``raft.ready`` in full, so that a node is written against the contract and not
against a direct call: an entry is committed when the disk has it, and not a moment before.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model import HardState, Index, NodeId, Term
from penstock.raft.ready import Append, Ready


class SoleMember:
    """The only member of its group. It leads as soon as it has begun its own term."""

    __slots__ = (
        "_applied",
        "_committed",
        "_end",
        "_hard_state",
        "_is_new_term",
        "_outstanding",
        "_reported",
        "_token",
        "_unstable",
        "node",
    )

    def __init__(self, node: NodeId, hard_state: HardState, end: Index, applied: Index) -> None:
        """Begin with what the disk holds: ``end`` is behind the last entry, all of them durable."""
        self.node = node
        self._hard_state = hard_state
        self._is_new_term = False
        self._end = end  # the index of the next proposal
        # Invariant: applied <= committed < end.
        self._applied = applied
        self._committed = Index(end - 1)
        self._reported = applied  # the commit index that the driver was last told
        self._unstable: list[bytes] = []  # proposed, not handed out yet
        self._outstanding: Ready | None = None  # handed out, not reported durable yet
        self._token = 0

    @property
    def term(self) -> Term:
        return self._hard_state.term

    @property
    def leader(self) -> NodeId | None:
        return self.node

    @property
    def committed(self) -> Index:
        return self._committed

    def campaign(self) -> None:
        """Begin a new term and lead it. The term is durable before anything is written in it."""
        self._hard_state = HardState(term=Term(self._hard_state.term + 1), vote=self.node)
        self._is_new_term = True

    def propose(self, payloads: Sequence[bytes]) -> Index:
        """Take entries for the log and return the index of the last of them."""
        self._unstable += payloads
        self._end = Index(self._end + len(payloads))
        return Index(self._end - 1)

    def ready(self) -> Ready | None:
        """Return what is to be done now, or ``None``; entries only when those before are durable."""
        appends: tuple[Append, ...] = ()
        hard_state = None
        if self._outstanding is None:
            if self._is_new_term:
                hard_state, self._is_new_term = self._hard_state, False
            if self._unstable:
                first = Index(self._end - len(self._unstable))
                appends = (Append(first=first, term=self.term, payloads=self._unstable),)
                self._unstable = []
        if not appends and hard_state is None and self._committed == self._reported:
            return None
        self._token += 1
        self._reported = self._committed
        ready = Ready(
            token=self._token, hard_state=hard_state, appends=appends, committed=self._committed
        )
        if ready.must_sync:
            self._outstanding = ready
        return ready

    def persisted(self, token: int) -> None:
        """Note that the Ready with this token is durable: alone, that is what commits it."""
        ready = self._outstanding
        assert ready is not None, "nothing is outstanding"
        assert ready.token == token, "completions come in order"
        self._outstanding = None
        if ready.appends:
            self._committed = Index(ready.appends[-1].end - 1)

    def applied(self, index: Index) -> None:
        """Note that the state machine has applied everything up to ``index``."""
        assert self._applied <= index <= self._committed, "applied follows committed"
        self._applied = index
