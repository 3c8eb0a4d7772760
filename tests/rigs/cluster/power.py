"""Power cuts under load: each node's files on a file system of its own, and one, two or all three of these cut at once.

Unlike after ``kill -9``, what a node wrote and did not sync is gone. Each cut stops the file systems without flushing their
journals; the nodes on them are killed, the journals recovered by the next mount, and the nodes started again. Sometimes a
node is left running instead, until it stops by itself at the first sync that fails; sometimes the power goes once more while
nodes start.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from threading import Event
from typing import Final

from penstock.storage.files import TEMPORARY_SUFFIX
from rigs.cluster.kill import victims
from rigs.cluster.processes import NODES, Cluster, NodeEnded, Place, loopback_places
from rigs.cluster.stage import Skipped, Stage
from rigs.loop_disk import LoopDisk, NoLoopDisk, loop_disk
from support.group_processes import wait_until

ROUNDS: Final = 12
ALL: Final = "all"
SOME: Final = ("leader", "leader", "follower", "two")
ALL_EACH: Final = 4
"""One of so many cuts hits all nodes: then nobody is left from whom the others could get what they lost."""

SNAPSHOT_BYTES: Final = 2**20
"""As often as a node allows, so that cuts fall on snapshots and on the removal of segments too."""

PAYLOAD_SIZE_MAX: Final = 4000
"""Large enough that some cuts later there is so much log."""

AIMED: Final = 0.25
"""Of the cuts, those that wait for a snapshot: a node seldom writes one, and a cut at random seldom hits it."""

AIM_SECONDS: Final = 4.0  # then the cut comes anyway
SNAPSHOT_SECONDS: Final = (
    0.05  # about as long as a node takes to write one, and to remove what it stands for
)
LEFT_RUNNING: Final = 0.5  # of the cuts that hit a single node
CUT_AGAIN: Final = 0.2  # of all cuts
START_SECONDS: Final = 0.4  # about as long as a node takes to start and to recover its files


def run(
    stage: Stage,
    rounds: int,
    *flags: str | float,
    file_system: str,
    kinds: tuple[str, ...] = (),
    before: str = "",
) -> None:
    """Cut and start again ``rounds`` times; each time the group must answer again, and no node may find damage.

    ``kinds``, one a round, else they are drawn. ``before`` runs in each node's process ahead of it: for a test that makes
    the nodes wrong.
    """
    delays: list[float] = []
    kinds = kinds or drawn_kinds(stage.random, rounds)
    assert len(kinds) == rounds
    flags = ("--snapshot-bytes", SNAPSHOT_BYTES, *flags)
    with (
        _disks(stage, file_system) as disks,
        stage.group(*flags, places=_places(stage, disks), before=before) as group,
        stage.work(group, payload_size_max=PAYLOAD_SIZE_MAX) as load,
    ):
        started = time.monotonic()
        for number, kind in enumerate(kinds):
            load.wait_for_more(stage.random.randint(5, 60))
            nodes = victims(stage, group, kind)
            stage.say(f"cut {number + 1} of {rounds}, {file_system}: {kind}, node {nodes}")
            if not stage.is_short and stage.random.random() < AIMED:
                _wait_for_snapshot(stage, group, nodes)
            with stage.fault(f"cut {kind}"):
                cut = time.monotonic()
                _cut(stage, group, disks, nodes)
                for node in nodes:
                    _expect_started(group, node)
                listening = time.monotonic() - cut
                load.make_queues()  # a group that lost them too must go on, so that the history shows it
                load.wait_for_more(10)
                answered = time.monotonic() - cut
            delays.append(answered)
            stage.say(f"all listen after {listening:.1f} s, answers after {answered:.1f} s")
            if stage.random.random() < 0.7:
                group.wait_whole()
            else:
                group.wait_leader()  # the next cut comes while one may still lack entries
        stage.note_cycles("cuts", rounds, started)
        stage.figures["cuts_of_all"] = kinds.count(ALL)
        stage.figures["file_systems_cut"] = sum(_width(kind) for kind in kinds)
        stage.figures["snapshots"] = group.count("snapshot")
    stage.note_waits("ten_answers_after_cut", delays)


def drawn_kinds(random: Random, rounds: int) -> tuple[str, ...]:
    """Draw what each cut hits; at least one of four hits all."""
    count = -(-rounds // ALL_EACH)
    drawn = [ALL] * count + [random.choice(SOME) for _ in range(rounds - count)]
    random.shuffle(drawn)
    return tuple(drawn)


def _width(kind: str) -> int:
    return {ALL: len(NODES), "two": 2}.get(kind, 1)


@contextmanager
def _disks(stage: Stage, kind: str) -> Iterator[dict[int, LoopDisk]]:
    with ExitStack() as stack:
        try:
            made = {
                node: stack.enter_context(loop_disk(stage.home / f"disk-{node}", kind))
                for node in NODES
            }
        except NoLoopDisk as error:
            raise Skipped(str(error)) from None
        yield made


def _places(stage: Stage, disks: Mapping[int, LoopDisk]) -> dict[int, Place]:
    return {
        node: replace(place, data=disks[node].mounted / "node")
        for node, place in loopback_places(stage.random).items()
    }


def _wait_for_snapshot(stage: Stage, group: Cluster, nodes: list[int]) -> None:
    """Return a moment after one of the nodes has begun to write a snapshot, if one does."""
    end = time.monotonic() + AIM_SECONDS
    pattern = f"data/tflux.snapshot*{TEMPORARY_SUFFIX}"
    while time.monotonic() < end:
        if any(list(group.data(node).glob(pattern)) for node in nodes):
            Event().wait(stage.random.uniform(0.0, SNAPSHOT_SECONDS))  # the moment is what is tried
            _count(stage, "aimed_at_snapshots")
            return
        Event().wait(0.001)  # looked at more often than a snapshot takes


def _cut(stage: Stage, group: Cluster, disks: Mapping[int, LoopDisk], nodes: list[int]) -> None:
    """Cut the power of nodes, end them, and give it back to their file systems."""
    stage.random.shuffle(nodes)
    _cut_power(group, disks, nodes)
    if len(nodes) == 1 and stage.random.random() < LEFT_RUNNING:
        _expect_stopped(stage, group, nodes[0])
    _start_again(group, disks, nodes)
    if stage.random.random() < CUT_AGAIN:
        Event().wait(stage.random.uniform(0.0, START_SECONDS))  # the moment is what is tried
        _cut_power(group, disks, nodes)
        _start_again(group, disks, nodes)
        _count(stage, "cut_again_at_start")


def _cut_power(group: Cluster, disks: Mapping[int, LoopDisk], nodes: list[int]) -> None:
    for node in nodes:
        group.expected_failures.add(group.life(node).pid)
        disks[node].cut_power()


def _start_again(group: Cluster, disks: Mapping[int, LoopDisk], nodes: list[int]) -> None:
    for node in nodes:
        group.kill(node)  # harmless if it has ended
    for node in nodes:
        disks[node].unmount()
        disks[node].mount()
        group.start(node)


def _count(stage: Stage, name: str) -> None:
    stage.figures[name] = stage.figures.get(name, 0) + 1


def _expect_stopped(stage: Stage, group: Cluster, node: int) -> None:
    """Wait until a node without a disk has stopped; the load gives it something to sync."""
    life = group.life(node)
    wait_until(lambda: not life.is_running, f"node {node}, whose file system is gone, stops")
    _count(stage, "stopped_by_themselves")
    if life.wait() == 0 or not life.said("failed"):
        stage.problems.append(
            f"node {node} without a disk ended with {life.wait()}: {life.events[-3:]} {life.words}"
        )


def _expect_started(group: Cluster, node: int) -> None:
    """Wait until a node listens. Raises ``NodeEnded`` with its own words if it does not like what it has found."""
    life = group.life(node)
    if life.ends_instead_of("listening"):
        texts = [str(row.get("text", row)) for row in life.events] + life.words
        raise NodeEnded(
            f"node {node} did not start after a cut and ended with {life.wait()}: {texts}"
        )
