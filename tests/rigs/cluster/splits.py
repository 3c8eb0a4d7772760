"""Ways to split a group, as the links that are cut: (from, to) of all that is dropped. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from itertools import combinations
from random import Random
from typing import assert_never

Link = tuple[int, int]


class Split(StrEnum):
    """What is cut. Where nothing else is said, in both directions."""

    LEADER_ALONE = "leader alone"
    FOLLOWER_ALONE = "follower alone"
    LEADER_IN_MINORITY = "leader in the largest minority"
    HALVES = "random halves"
    LEADER_AT_END = "leader at the end of a bridge"  # a middle reaches both sides, which do not reach each other
    LEADER_IN_MIDDLE = "leader in the middle of a bridge"
    LEADER_UNHEARD = "leader is not heard"
    LEADER_DEAF = "leader hears nothing"
    FOLLOWER_UNHEARD = "follower is not heard"
    FOLLOWER_DEAF = "follower hears nothing"
    RING = "ring of majorities"  # each reaches its neighbours in a circle only, so that of five each sees another majority
    ALL_APART = "all apart"


def links(split: Split, leader: int, nodes: Collection[int], random: Random) -> list[Link]:
    """Return what a split cuts; who is hit besides the leader is drawn."""
    others = [node for node in nodes if node != leader]
    random.shuffle(others)
    half = len(others) // 2
    match split:
        case Split.LEADER_ALONE:
            return _between([leader], others)
        case Split.FOLLOWER_ALONE:
            return _between(others[:1], [leader, *others[1:]])
        case Split.LEADER_IN_MINORITY:
            return _between([leader, *others[: half - 1]], others[half - 1 :])
        case Split.HALVES:
            everybody = random.sample(list(nodes), len(nodes))
            middle = len(everybody) // 2
            return _between(everybody[:middle], everybody[middle:])
        case Split.LEADER_AT_END:
            return _between([leader, *others[1:half]], others[half:])
        case Split.LEADER_IN_MIDDLE:
            return _between(others[:half], others[half:])
        case Split.LEADER_UNHEARD:
            return [(leader, other) for other in others]
        case Split.LEADER_DEAF:
            return [(other, leader) for other in others]
        case Split.FOLLOWER_UNHEARD:
            return [(others[0], other) for other in (leader, *others[1:])]
        case Split.FOLLOWER_DEAF:
            return [(other, others[0]) for other in (leader, *others[1:])]
        case Split.RING:
            return _ring([leader, *others])
        case Split.ALL_APART:
            return [pair for one, other in combinations(nodes, 2) for pair in _both(one, other)]
        case _:
            assert_never(split)


def is_cut_off(
    leader: int, cut: Iterable[Link], nodes: Collection[int], *, before: Iterable[Link] = ()
) -> bool:
    """Whether a majority that does not hear the leader hears each other: it must choose a new one at once.

    ``before`` is what was cut until then: a majority that has to find each other first has no time to keep to.

    A leader that is heard and hears nothing is followed until its own check of a majority makes it step down. In a bridge
    one side reaches the leader or can be elected by the middle: which, is up to the group.
    """
    dropped = set(cut)
    free = [node for node in nodes if (leader, node) in dropped]
    apart = dropped.union(before)
    return len(free) > len(nodes) // 2 and not any(
        pair in apart for one, other in combinations(free, 2) for pair in _both(one, other)
    )


def _both(one: int, other: int) -> list[Link]:
    return [(one, other), (other, one)]


def _between(some: Iterable[int], others: Collection[int]) -> list[Link]:
    return [pair for one in some for other in others for pair in _both(one, other)]


def _ring(circle: list[int]) -> list[Link]:
    count = len(circle)
    return [
        pair
        for one, other in combinations(range(count), 2)
        if other - one not in (1, count - 1)
        for pair in _both(circle[one], circle[other])
    ]
