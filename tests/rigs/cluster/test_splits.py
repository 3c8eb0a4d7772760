"""What each split cuts, and whether the leader is cut off by it."""

from __future__ import annotations

from random import Random

import pytest

from rigs.cluster.splits import Split, is_cut_off, links

THREE = (1, 2, 3)
FIVE = (1, 2, 3, 4, 5)
LEADER = 2
MUST_CHANGE = {Split.LEADER_ALONE, Split.LEADER_UNHEARD, Split.LEADER_IN_MINORITY}


def reached(node: int, cut: list[tuple[int, int]], nodes: tuple[int, ...]) -> set[int]:
    """Return who hears a node and is heard by it."""
    return {
        other
        for other in nodes
        if other != node and (node, other) not in cut and (other, node) not in cut
    }


@pytest.mark.parametrize("nodes", [THREE, FIVE])
@pytest.mark.parametrize("split", [split for split in Split if split is not Split.HALVES])
def test_a_new_leader_is_due_where_a_whole_majority_does_not_hear_the_old_one(
    split: Split, nodes: tuple[int, ...]
) -> None:
    cut = links(split, LEADER, nodes, Random(1))
    assert is_cut_off(LEADER, cut, nodes) == (split in MUST_CHANGE)


def test_random_halves_hold_all_nodes_and_a_majority_is_whole() -> None:
    for seed in range(20):
        cut = links(Split.HALVES, LEADER, FIVE, Random(seed))
        sizes = sorted(len(reached(node, cut, FIVE)) + 1 for node in FIVE)
        assert sizes == [2, 2, 3, 3, 3]
        assert is_cut_off(LEADER, cut, FIVE) == (len(reached(LEADER, cut, FIVE)) == 1)


def test_in_a_ring_of_five_each_node_sees_another_majority() -> None:
    cut = links(Split.RING, LEADER, FIVE, Random(1))
    seen = {frozenset({node, *reached(node, cut, FIVE)}) for node in FIVE}
    assert len(seen) == 5
    assert {len(each) for each in seen} == {3}


def test_both_sides_of_a_bridge_reach_only_its_middle() -> None:
    middle = links(Split.LEADER_IN_MIDDLE, LEADER, THREE, Random(1))
    assert [reached(node, middle, THREE) for node in THREE] == [{2}, {1, 3}, {2}]
    end = links(Split.LEADER_AT_END, LEADER, THREE, Random(1))
    assert sorted(len(reached(node, end, THREE)) for node in THREE) == [1, 1, 2]
    assert len(reached(LEADER, end, THREE)) == 1


def test_a_majority_that_was_apart_until_now_is_not_held_to_a_time() -> None:
    cut = links(Split.LEADER_ALONE, LEADER, THREE, Random(1))
    assert is_cut_off(LEADER, cut, THREE, before=[(LEADER, 1)])
    assert not is_cut_off(LEADER, cut, THREE, before=[(1, 3)])


def test_a_leader_that_is_not_heard_still_hears() -> None:
    assert sorted(links(Split.LEADER_UNHEARD, LEADER, THREE, Random(1))) == [(2, 1), (2, 3)]
    assert sorted(links(Split.LEADER_DEAF, LEADER, THREE, Random(1))) == [(1, 2), (3, 2)]
