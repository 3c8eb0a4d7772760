"""What a node knows of its group, for people and programs that ask. Indexes as files count them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """One member. What only a leader knows is ``None`` elsewhere."""

    id: int
    address: str  # where it hears its peers; empty if that is not known
    client_address: str  # where it hears clients; empty if that is not known
    standing: str  # "voter", "learner", or "outgoing": a voter until the change under way is done
    is_leader: bool
    is_self: bool
    match: int | None = None  # the last entry that it is known to have
    lag: int | None = None  # entries that it lacks
    pace: str | None = None  # "probe", "replicate" or "snapshot"
    window: int | None = None  # appends under way to it


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """A group as one of its members sees it."""

    node: int
    role: str  # "follower", "precandidate", "candidate" or "leader"
    is_leading: bool  # it leads and serves
    term: int
    leader: int  # 0 if none is known
    first: int
    last: int
    committed: int
    applied: int
    is_joint: bool
    members: tuple[MemberStatus, ...]
