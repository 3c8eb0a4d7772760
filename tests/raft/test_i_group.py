"""Group I, with whole nodes: what a full disk and a lost disk must not do."""

from __future__ import annotations

import errno

import pytest

from penstock.protocol.version2 import Failure
from penstock.testing.disk import Operation
from support.group_rig import GroupRig


def test_i19_a_wiped_member_does_not_vote_until_it_has_caught_up_as_a_learner() -> None:
    rig = GroupRig(kept_bytes=0)
    leader = rig.elect()
    for number in range(100):
        rig.enqueue(leader, b"%03d" % number + b"z" * 100)
    wiped = next(one for one in rig.nodes if one != leader)
    rig.stop(wiped)
    del rig.files[wiped]
    rig.start(wiped)
    rig.introduce()
    own = rig.group(wiped)
    assert own.membership.is_barred
    assert own.replica.group.core.is_barred
    standings: list[str] = []

    def is_back() -> bool:
        members = {one.id: one.standing for one in rig.group(leader).status().members}
        standing = members.get(wiped, "away")
        if not standings or standings[-1] != standing:
            standings.append(standing)
        if standing == "away" or len(standings) == 1:
            # Whoever knows less than the group could else be elected by it.
            assert own.membership.is_barred
        return standing == "voter" and len(standings) > 1

    rig.tick_until(is_back)
    rig.agree()
    assert standings == ["voter", "away", "learner", "voter"]
    assert not own.membership.is_barred
    # Now it counts: with the other one away it makes a majority.
    other = next(one for one in rig.nodes if one not in (leader, wiped))
    rig.stop(other)
    assert rig.enqueue(leader, b"last").last.runs


def test_i19_a_wiped_member_that_meets_only_one_that_forgot_it_waits() -> None:
    rig = GroupRig()
    rig.elect()
    rig.stop(1)
    rig.files.pop(1)
    rig.start(1)
    membership = rig.group(1).membership
    membership.hear(2, rig.group(2).membership.incarnation, None)
    assert membership.is_barred
    membership.hear(3, rig.group(3).membership.incarnation, rig.group(3).membership.known(1))
    assert membership.is_barred


def test_i12_a_leader_whose_disk_is_nearly_full_refuses_and_hands_over() -> None:
    rig = GroupRig()
    leader = rig.elect()
    rig.enqueue(leader, b"a")
    rig.nodes[leader].replica.is_short_of_room = True
    failed = rig.enqueue(leader, b"b").last
    assert failed.code == Failure.LIMIT
    assert rig.dequeue(leader).last.payloads == [b"a"]  # what is there can be taken out
    rig.tick(3)
    new = rig.elect()
    assert new != leader
    assert rig.enqueue(new, b"c").last.runs


def _no_space(operation: Operation) -> None:
    if operation.kind == "write" and len(operation.data) > 1000:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("is_leader", [True, False])
def test_i12_a_full_disk_acks_nothing_and_leaves_no_half_entry(is_leader: bool) -> None:
    rig = GroupRig()
    leader = rig.elect()
    rig.enqueue(leader, b"before")
    full = leader if is_leader else next(one for one in rig.nodes if one != leader)
    rig.files[full].fault = _no_space
    asker = rig.enqueue(leader, b"x" * 3000)
    assert full in rig.failures
    if is_leader:
        assert asker.answers == []
    else:
        assert asker.last.runs  # the other two have it
    rig.files[full].fault = None
    rig.failures.clear()
    rig.stop(full)
    rig.start(full)
    rig.introduce()
    new = rig.elect()
    rig.enqueue(new, b"after")
    rig.agree()
    assert rig.payloads(full)[0] == b"before"
    assert rig.payloads(full)[-1] == b"after"
