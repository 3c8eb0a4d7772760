"""Majorities, of one set of voters or of two at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum


class Outcome(Enum):
    """How a vote stands."""

    WON = "won"
    LOST = "lost"
    PENDING = "pending"


def committed_index(
    incoming: Collection[int], outgoing: Collection[int], acknowledged: Mapping[int, int]
) -> int:
    """Return the highest index that a majority of each set has; a set without voters has everything."""
    indexes = [_majority_index(voters, acknowledged) for voters in (incoming, outgoing) if voters]
    return min(indexes, default=0)


def _majority_index(voters: Collection[int], acknowledged: Mapping[int, int]) -> int:
    indexes = sorted((acknowledged.get(voter, 0) for voter in voters), reverse=True)
    return indexes[len(indexes) // 2]


def vote_outcome(
    incoming: Collection[int], outgoing: Collection[int], votes: Mapping[int, bool]
) -> Outcome:
    """Return how a vote stands that a majority of each set must grant."""
    outcomes = [_majority_outcome(voters, votes) for voters in (incoming, outgoing) if voters]
    if Outcome.LOST in outcomes:
        return Outcome.LOST
    return Outcome.PENDING if Outcome.PENDING in outcomes else Outcome.WON


def _majority_outcome(voters: Collection[int], votes: Mapping[int, bool]) -> Outcome:
    needed = len(voters) // 2 + 1
    granted = sum(votes.get(voter) is True for voter in voters)
    refused = sum(votes.get(voter) is False for voter in voters)
    if granted >= needed:
        return Outcome.WON
    return Outcome.LOST if len(voters) - refused < needed else Outcome.PENDING
