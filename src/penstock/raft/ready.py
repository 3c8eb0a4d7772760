"""What a member of the group wants its driver to do: the same for a group of one and of many.

The driver asks ``ready()``, stores what it says, reports ``persisted(token)`` when that is durable, applies
what is committed and reports ``applied(index)``. Nothing is promised to anybody before ``persisted``.
"""

from __future__ import annotations

from dataclasses import (
    dataclass,  # not frozen: one is made for every batch, and that costs three times as much
)

from penstock.model import HardState, Index, Term


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
    append: Append | None = None
    committed: Index  # everything up to here, all of it durable here, may be applied

    @property
    def must_sync(self) -> bool:
        """Whether something has to be durable before ``persisted``; a commit index alone has not."""
        return self.hard_state is not None or self.append is not None
