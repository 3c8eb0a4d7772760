"""Snapshots in a group, where leases and old tails are in their way; seeded bugs showed that nothing asked for it."""

from __future__ import annotations

from support.group_rig import GroupRig


def fill(rig: GroupRig, leader: int, count: int) -> None:
    """Enqueue enough to make a leader take a snapshot, and more than once."""
    before = rig.nodes[leader].meter.snapshots
    for number in range(count):
        rig.enqueue(leader, b"%03d" % number + b"x" * 100)
    assert rig.nodes[leader].meter.snapshots > before


def test_tasks_on_lease_are_in_the_snapshot() -> None:
    rig = GroupRig(kept_bytes=0)
    leader = rig.elect()
    rig.enqueue(leader, b"leased", b"waiting")
    assert rig.dequeue(leader).last.payloads == [b"leased"]
    fill(rig, leader, 300)
    rig.agree()
    held = rig.payloads(leader)
    for number in list(rig.nodes):
        rig.stop(number)
    for number in rig.peers:
        rig.start(number)
    rig.introduce()
    again = rig.elect()
    rig.agree()
    assert [rig.payloads(number) for number in rig.peers] == [held] * 3
    assert rig.dequeue(again).last.payloads == [b"leased"]


def test_a_tail_that_nobody_agreed_on_does_not_outlive_a_snapshot_from_another() -> None:
    rig = GroupRig(kept_bytes=0)
    old = rig.elect()
    rig.enqueue(old, b"kept")
    rig.cut = {old}
    for number in range(400):
        rig.enqueue(old, b"old %d" % number)
    new = rig.elect()
    fill(rig, new, 250)
    # What is cut off reaches further than the snapshot that takes its place.
    assert rig.nodes[new].directory.log.first > 2
    assert rig.nodes[new].directory.log.end < rig.nodes[old].directory.log.end
    rig.cut = set()
    rig.agree()
    log, other = rig.nodes[old].directory.log, rig.nodes[new].directory.log
    assert (log.end, log.last_term) == (other.end, other.last_term)
    held = rig.payloads(new)
    assert rig.payloads(old) == held
    rig.stop(old)
    rig.start(old)
    rig.introduce()
    rig.agree()
    assert rig.payloads(old) == held
