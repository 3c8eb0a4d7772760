"""A node comes back without its files while the load goes on: it gets a snapshot, votes when it has caught up, and not before.

Every third time it is the only one besides the leader that had the newest entries, and the leader is gone too: with the vote of
the wiped node, the third one would lead without them.
"""

from __future__ import annotations

import time
from threading import Event
from typing import Final

from penstock.protocol.version2 import ClusterInfo
from rigs.cluster.load import Load
from rigs.cluster.processes import NODES, Cluster, heard
from rigs.cluster.stage import Stage
from support.group_processes import incarnation_of, member, wait_until

ROUNDS: Final = 6
KINDS: Final = ("follower", "leader", "witness")
VOTELESS_SECONDS: Final = 4.0
"""Two election timeouts at their longest: whoever could be elected would be."""

SNAPSHOT_BYTES: Final = 2**20  # as often as a node allows
PAYLOAD_SIZE_MAX: Final = 4000
"""Large enough that the log of a few thousand tasks is replaced by a snapshot."""

BEHIND: Final = 100
"""Entries that a snapshot must stand for to count as one."""


def run(
    stage: Stage,
    rounds: int,
    *flags: str | float,
    kinds: tuple[str, ...] = KINDS,
    before: str = "",
) -> None:
    """Wipe one node after the other: a follower, the leader, a follower that is the last witness, and so on.

    ``before`` runs in each node's process ahead of it: for a test that makes the nodes wrong.
    """
    waits: list[float] = []
    by_snapshot = 0
    with (
        stage.group("--snapshot-bytes", SNAPSHOT_BYTES, *flags, before=before) as group,
        stage.work(group, payload_size_max=PAYLOAD_SIZE_MAX) as load,
    ):
        for number in range(rounds):
            leader = group.wait_leader()
            kind = kinds[number % len(kinds)]
            node = leader if kind == "leader" else stage.another_than(leader)
            wait_until(lambda: _has_snapshots(group, load), "each node has made a snapshot")
            stage.say(f"round {number + 1} of {rounds}: wipe node {node}, the {kind}")
            with stage.fault(f"wipe {kind}"):
                if kind == "witness":  # and then once more, while it is being let in again
                    _leave_one_behind(stage, group, load, node, leader)
                waits.append(_wipe(stage, group, node))
                load.wait_for_more(10)
            info = group.asked(node)
            # Its log begins where its snapshot ends; one that got all entries would have them from the first on.
            by_snapshot += info is not None and info.first > BEHIND
            stage.say(
                f"{waits[-1]:.1f} s; its log begins at {None if info is None else info.first}"
            )
        stage.figures |= {"wipes": rounds, "caught_up_by_snapshot": by_snapshot}
        if by_snapshot < rounds:
            stage.problems.append(
                f"only {by_snapshot} of {rounds} wiped nodes began with a snapshot"
            )
    stage.note_waits("voter_again", waits)


def _has_snapshots(group: Cluster, load: Load) -> bool:
    """Whether every node has made a snapshot in its present life, or got one."""
    load.raise_error()
    infos = [info for node in NODES if (info := group.asked(node)) is not None]
    return len(infos) == len(NODES) and all(
        group.life(info.node).said("snapshot") or info.first > BEHIND for info in infos
    )


def _leave_one_behind(stage: Stage, group: Cluster, load: Load, node: int, leader: int) -> None:
    """Let the third node miss entries, take the others away, and give it a wiped one to vote with: in vain."""
    (third,) = set(NODES) - {node, leader}
    group.kill(third)
    load.wait_for_more(20)  # which the leader and the witness have
    group.kill(node)
    group.kill(leader)
    group.wipe(node)
    for each in (third, node):
        group.start(each)
    for each in (third, node):
        group.life(each).wait_listening()
    begun = time.monotonic()
    Event().wait(VOTELESS_SECONDS)  # that nothing happens is what is tried
    led = [election for election in group.elections() if election[0] > begun]
    if led:
        stage.problems.append(f"a node that lacks entries leads by the vote of a wiped one: {led}")
    group.start(leader).wait_listening()


def _wipe(stage: Stage, group: Cluster, node: int) -> float:
    """Kill a node, take its files, start it, and watch it until it votes again; return the seconds that took."""
    before = incarnation_of(group.data(node))
    group.kill(node)
    group.wipe(node)
    group.start(node).wait_listening()
    seconds = come_back(stage, group, node)
    if before == incarnation_of(group.data(node)):
        stage.problems.append(f"node {node} has its old incarnation without its old files")
    return seconds


def come_back(stage: Stage, group: Cluster, node: int) -> float:
    """Watch a node that was started without files until it votes again; return the seconds that took."""
    started = time.monotonic()
    learner_until = 0.0

    def is_voter() -> bool:
        nonlocal learner_until
        asked = time.monotonic()
        standing = _standing(group, node)
        if standing == "learner":
            learner_until = asked
        return standing == "voter" and learner_until > 0

    wait_until(is_voter, f"node {node} is a learner first, and then a voter")
    group.wait_whole()
    stage.problems += _early_votes(group, node, learner_until)
    return time.monotonic() - started


def _standing(group: Cluster, node: int) -> str | None:
    for each in NODES:
        info: ClusterInfo | None = None if each == node else group.asked(each)
        if info is not None and info.is_leading:
            found = member(info, node)
            return "absent" if found is None else found.standing
    return None


def _early_votes(group: Cluster, node: int, learner_until: float) -> list[str]:
    """Return campaigns of a wiped node while it was none of the voters: one that may not vote may not ask for votes."""
    early = [
        row
        for row in group.life(node).said("role")
        if row["role"] != "follower" and heard(row) < learner_until
    ]
    return [f"node {node} campaigned before it had caught up: {early}"] if early else []
