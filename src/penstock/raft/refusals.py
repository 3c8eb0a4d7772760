"""Why a member of a group does not do what it is asked to, and the one error after which it does nothing at all."""

from __future__ import annotations


class Refused(Exception):
    """A local request that cannot be taken now. Nothing was changed, nothing is kept for later."""


class NotLeading(Refused):
    """Another member leads, or none does that is known (``leader`` is 0)."""

    def __init__(self, leader: int) -> None:
        super().__init__(f"member {leader} leads" if leader else "no leader is known")
        self.leader = leader


class Dropped(Refused):
    """Too much waits to be committed already."""


class Busy(Refused):
    """A transfer, a change of members, or too many reads are under way."""


class InvalidChange(Refused):
    """A change of members that leads nowhere."""


class OutstandingReady(Refused):
    """The last ``Ready`` was not reported durable yet."""


class BadMessage(Exception):
    """A message that breaks the protocol. It was refused before anything changed."""


class InvariantBroken(Exception):
    """Something happened that cannot: going on would be worse than to stop. The process has to end."""
