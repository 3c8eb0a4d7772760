"""A member of a group of several, behind the contract of ``raft.ready``: the core, its log in files, and batches.

The core counts from 1 and knows nothing of files; everything that goes in and out here counts as files do. Proposals are
gathered until something is to be done, so that a turn of the loop is one append to each of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from penstock.model import HardState, Index, NodeId, Term
from penstock.raft.configuration import Change, Configuration, encode_change
from penstock.raft.core import Raft
from penstock.raft.messages import Entry, EntryKind, Message
from penstock.raft.ready import Append, Ready
from penstock.raft.refusals import Busy
from penstock.server.entry_store import EntryStore, stored_payload


@dataclass(slots=True)
class _Written:
    """What a Ready under way writes."""

    token: int
    entries: list[Entry]
    configuration: Configuration | None  # of a snapshot that takes the log's place


class GroupMember:
    """One member of a group."""

    def __init__(self, core: Raft, store: EntryStore, stored: HardState) -> None:
        """``stored`` is what the metadata holds."""
        self.core = core
        self.store = store
        self._stored = stored
        self._pending: list[bytes] = []  # proposed, not given to the core yet
        self._pending_size = 0
        self._written: _Written | None = None
        self.reads: list[tuple[int, Index]] = []  # answered: (context, index), to be taken away

    # --- what it is ---

    @property
    def node(self) -> NodeId:
        return NodeId(self.core.member)

    @property
    def term(self) -> Term:
        return Term(self.core.term)

    @property
    def leader(self) -> NodeId | None:
        return NodeId(self.core.leader) if self.core.leader else None

    @property
    def is_leader(self) -> bool:
        return self.core.is_leader

    @property
    def is_handing_over(self) -> bool:
        return self.core.leadership is not None and self.core.leadership.transferee != 0

    @property
    def committed(self) -> Index:
        """The last entry that may be applied: agreed on, and durable here."""
        log = self.core.log
        return Index(min(log.committed, log.stable) - 1)

    @property
    def last(self) -> Index:
        """The last entry, durable or not, proposals that wait here counted."""
        return Index(self.core.log.last + len(self._pending) - 1)

    @property
    def uncommitted_size(self) -> int:
        leadership = self.core.leadership
        return self._pending_size + (0 if leadership is None else leadership.uncommitted_size)

    @property
    def configuration(self) -> Configuration:
        return self.core.configuration

    # --- local requests ---

    def propose(self, payloads: Sequence[bytes]) -> Index:
        """Take entries for the log and return the index of the last of them. Only while it leads."""
        self._pending += payloads
        self._pending_size += sum(map(len, payloads))
        return self.last

    def flush(self) -> None:
        """Give what was proposed to the core, unless leadership is on its way to another."""
        if not self._pending or self.is_handing_over:
            return
        payloads, self._pending, self._pending_size = self._pending, [], 0
        self.core.propose(payloads)

    def drop_pending(self) -> None:
        """Forget proposals that the core was never given: it leads no more."""
        self._pending, self._pending_size = [], 0

    def change_members(self, change: Change) -> Index:
        """Propose a change of members and return its index. Raises ``Refused``."""
        self.flush()
        if self._pending:
            raise Busy("leadership is being handed over")
        stored_payload(Entry(0, 0, encode_change(change), EntryKind.CONFIGURATION))
        return Index(self.core.propose_conf(change) - 1)

    def transfer(self, to: int) -> None:
        """Hand leadership over. Raises ``Refused``."""
        self.flush()
        self.core.transfer(to)

    def read(self, context: int) -> None:
        """Ask for proof of leadership; it comes in ``reads``. Raises ``Refused``."""
        self.core.read_index(context)

    # --- time and messages ---

    def tick(self) -> None:
        self.flush()
        self.core.tick()

    def step(self, message: Message) -> None:
        """Take a peer's message. Raises ``BadMessage`` before anything has changed, and ``InvariantBroken``."""
        self.core.step(message)

    def urgent(self) -> Sequence[Message]:
        """Return what may leave although the disk is at work: nothing of it rests on what is being written."""
        self.flush()
        return self.core.urgent()

    # --- the contract of ``raft.ready`` ---

    def ready(self) -> Ready | None:
        """Return what is to be done now, or ``None``; nothing while an earlier one is under way."""
        self.flush()
        if self._written is not None or not self.core.has_work:
            return None
        ready = self.core.ready()
        for state in ready.read_states:
            self.reads.append((state.context, Index(state.index - 1)))
        snapshot = ready.snapshot
        self._written = _Written(
            ready.token, ready.entries, None if snapshot is None else snapshot.configuration
        )
        return Ready(
            token=ready.token,
            hard_state=self._new_state(),
            snapshot=snapshot,
            appends=_appends(ready.entries),
            committed=self.committed,
            messages=ready.messages,
            messages_after=ready.messages_after,
        )

    def _new_state(self) -> HardState | None:
        """Return term and vote if they are not what the metadata hold, or are about to."""
        term = Term(max(1, self.core.term))
        vote = NodeId(self.core.vote) if self.core.vote else None
        if term == self._stored.term and vote == self._stored.vote:
            return None
        self._stored = HardState(term=term, vote=vote)
        return self._stored

    def persisted(self, token: int) -> None:
        """Note that the Ready with this token is durable."""
        written, self._written = self._written, None
        assert written is not None, "nothing is outstanding"
        if written.configuration is not None:
            self.store.restarted(written.configuration)
        self.store.stored(written.entries)
        self.core.persisted(token)

    def applied(self, index: Index) -> None:
        """Note that the state machine has applied everything up to ``index``; changes of members take effect."""
        self.flush()
        self.core.applied(index + 1)

    def entries(self, first: Index, end: Index, *, size_max: int) -> Sequence[Entry]:
        """Return committed entries from ``first`` on, before ``end``: at least one, then what fits."""
        return self.core.log.entries(first + 1, end + 1, size_max=size_max)


def _appends(entries: Sequence[Entry]) -> list[Append]:
    """Return entries as runs of one term each."""
    if not entries:
        return []
    if entries[0].term == entries[-1].term:  # terms do not fall: there is only one
        payloads = [stored_payload(entry) for entry in entries]
        return [
            Append(first=Index(entries[0].index - 1), term=Term(entries[0].term), payloads=payloads)
        ]
    return [
        Append(
            first=Index(run[0].index - 1),
            term=Term(term),
            payloads=[stored_payload(entry) for entry in run],
        )
        for term, run in ((term, list(run)) for term, run in groupby(entries, _term))
    ]


def _term(entry: Entry) -> int:
    return entry.term
