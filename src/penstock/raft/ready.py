"""What a member of the group wants its driver to do: the same for a group of one and of many.

The driver asks ``ready()``, stores what it says, reports ``persisted(token)`` when that is durable, applies
what is committed and reports ``applied(index)``. Nothing is promised to anybody before ``persisted``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import (
    dataclass,  # not frozen: one is made for every batch, and that costs three times as much
)

from penstock.model import HardState, Index, Term
from penstock.raft.messages import Message, Snapshot


@dataclass(slots=True, kw_only=True)
class Append:
    """Entries of one term to write from ``first`` on."""

    first: Index
    term: Term
    payloads: list[bytes]

    @property
    def end(self) -> Index:
        return Index(self.first + len(self.payloads))


@dataclass(slots=True, kw_only=True)
class Ready:
    """All that the driver must do now."""

    token: int  # names this Ready in ``persisted``; grows
    hard_state: HardState | None = None  # to store before the entries
    snapshot: Snapshot | None = None  # to put in place before the entries
    # To write in this order; what the log holds from the first of them on goes away before.
    appends: Sequence[Append] = ()
    committed: Index  # everything up to here, all of it durable here, may be applied
    messages: Sequence[Message] = ()  # may leave now
    messages_after: Sequence[Message] = ()  # may leave when this is durable

    @property
    def must_sync(self) -> bool:
        """Whether something has to be durable before ``persisted``; a commit index alone has not."""
        return self.hard_state is not None or bool(self.appends) or self.snapshot is not None

    @property
    def entry_count(self) -> int:
        return sum(len(append.payloads) for append in self.appends)
