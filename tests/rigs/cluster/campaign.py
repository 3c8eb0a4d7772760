"""Partitions for minutes: fourteen configurations, each one kind of split in a group of its own.

A split is held for 10 or 30 seconds, mended, and made again when the group is whole, until the time is over. Two do not
wait: one cuts and mends the leader's links at once, one follows each cut by another without mending.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Event
from typing import Final

from rigs.cluster.load import Load
from rigs.cluster.namespaces import Network, network
from rigs.cluster.partition import hold, note_new_leaders
from rigs.cluster.processes import Cluster
from rigs.cluster.splits import Split, is_cut_off, links
from rigs.cluster.stage import Stage

SECONDS: Final = 180
FLAP_SECONDS: Final = (0.05, 2.0)
"""How long a link that flaps is there, or not: from less than a heartbeat to about an election."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One kind of split, or several to draw from."""

    name: str
    splits: tuple[Split, ...]
    hold_seconds: float
    node_count: int = 3
    is_flapping: bool = False  # cut and mended all the time while it is held
    is_restless: bool = False  # followed by the next cut, not by mending


def _steady(split: Split, hold_seconds: float, node_count: int = 3) -> Configuration:
    name = f"{split}, {hold_seconds:.0f} s" + (f", {node_count} nodes" if node_count > 3 else "")
    return Configuration(
        name=name, splits=(split,), hold_seconds=hold_seconds, node_count=node_count
    )


CONFIGURATIONS: Final = (
    _steady(Split.LEADER_ALONE, 10.0),
    _steady(Split.LEADER_IN_MINORITY, 30.0, 5),
    _steady(Split.FOLLOWER_ALONE, 30.0),
    _steady(Split.HALVES, 10.0, 5),
    _steady(Split.LEADER_AT_END, 30.0),
    _steady(Split.LEADER_IN_MIDDLE, 10.0),
    _steady(Split.LEADER_UNHEARD, 10.0),
    _steady(Split.LEADER_DEAF, 30.0),
    _steady(Split.FOLLOWER_UNHEARD, 10.0),
    _steady(Split.FOLLOWER_DEAF, 10.0),
    _steady(Split.ALL_APART, 10.0),
    _steady(Split.RING, 30.0, 5),
    Configuration(
        name="leader's links flap, 10 s",
        splits=(Split.LEADER_ALONE,),
        hold_seconds=10.0,
        is_flapping=True,
    ),
    Configuration(
        name="one cut after another, 10 s, 5 nodes",
        splits=tuple(split for split in Split if split is not Split.ALL_APART),
        hold_seconds=10.0,
        node_count=5,
        is_restless=True,
    ),
)


class _Campaign:
    """One configuration while it runs."""

    def __init__(
        self, stage: Stage, configuration: Configuration, group: Cluster, made: Network
    ) -> None:
        self._stage = stage
        self._configuration = configuration
        self._group = group
        self._network = made
        self.cut_count = 0
        self.new_leader: list[float] = []  # seconds, where the old one was cut off
        self.other_leader: list[float] = []  # where the group could go on with the old one
        self.whole_again: list[float] = []

    def split(self, seconds: float, end: float) -> None:
        """Cut, hold, mend."""
        with self._stage.fault(self._configuration.name):
            if self._configuration.is_flapping:
                self._flap(seconds)
            else:
                self._hold(seconds)
            while self._configuration.is_restless and time.monotonic() < end:
                self._hold(seconds)
            self._network.cut(())

    def _hold(self, seconds: float) -> None:
        split = self._stage.random.choice(self._configuration.splits)
        leader = self._group.wait_leader()
        nodes, before = self._group.nodes, self._network.dropped
        cut = links(split, leader, nodes, self._stage.random)
        is_due = is_cut_off(leader, cut, nodes, before=before)
        self._stage.say(f"{split}, node {leader} leads, for {seconds:.0f} s")
        wait = hold(self._group, self._network, leader, cut, seconds, is_due=is_due)
        self.cut_count += 1
        if wait is not None:
            (self.new_leader if is_due else self.other_leader).append(wait)

    def _flap(self, seconds: float) -> None:
        leader = self._group.wait_leader()
        self._stage.say(f"links of node {leader}, which leads, flap for {seconds:.0f} s")
        cut = links(Split.LEADER_ALONE, leader, self._group.nodes, self._stage.random)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for links_now in (cut, ()):
                self._network.cut(links_now)
                Event().wait(
                    self._stage.random.uniform(*FLAP_SECONDS)
                )  # the length is what is tried
            self.cut_count += 1

    def wait_whole(self, load: Load) -> None:
        """Wait until the group, just mended, answers and is whole."""
        healed = time.monotonic()
        load.wait_for_more(20)
        self._group.wait_whole()
        self.whole_again.append(time.monotonic() - healed)
        self._stage.say(f"whole again after {self.whole_again[-1]:.1f} s")


def run(stage: Stage, configuration: Configuration, seconds: float) -> None:
    """Split a group again and again for some time; a single hold takes at most half of it."""
    held = min(configuration.hold_seconds, seconds / 2)
    with (
        network(range(1, configuration.node_count + 1)) as made,
        stage.group("--allow-remote", places=made.places()) as group,
        stage.work(group) as load,
    ):
        done = _Campaign(stage, configuration, group, made)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            load.wait_for_more(50)
            done.split(held, end)
            done.wait_whole(load)
        stage.figures |= {"nodes": len(group.nodes), "partitions": done.cut_count}
    stage.note_waits("whole_again", done.whole_again)
    stage.note_waits("other_leader", done.other_leader)
    note_new_leaders(stage, done.new_leader)
