"""Kills a node under load, again and again, and compares what it holds with what it had answered.

Every seventh end or so is a SIGTERM instead.

Several connections of both versions enqueue, take out, ack and give back, and each keeps account of what was
answered. ``kill -9`` comes at a random moment: under load, while a snapshot is written, within a start. Then the node
starts again, everything in it is taken out and compared.

    scripts/kill-node [--rounds N] [--seed N] [--generation 2|3] [--keep DIR]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event, Lock, Thread

from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import Implementation, Policy, QueueName
from penstock.protocol import version2 as v2
from penstock.storage.directory import layout_for
from penstock.storage.files import TEMPORARY_SUFFIX
from rigs.account import Account, Held, compare
from rigs.load import QUEUES, Load
from support.at_rest import identified
from support.node_process import NodeProcess
from support.wire import Wire2

SNAPSHOT_BYTES = 2**20  # as often as a node allows


@dataclass
class Figures:
    rounds: int = 0
    kills: int = 0  # the starts that were killed counted
    stops: int = 0
    killed_starts: int = 0
    in_snapshots: int = 0  # ends while the file of a snapshot was half written
    snapshots: int = 0
    cuts: int = 0  # torn tails that recovery cut
    enqueued: int = 0
    acked: int = 0
    verified: int = 0  # tasks taken out and compared, all rounds together
    retried: int = 0

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds, {self.kills} kills ({self.killed_starts} within a start),"
            f" {self.stops} stops, {self.in_snapshots} of these within a snapshot,"
            f" {self.snapshots} snapshots,"
            f" {self.cuts} torn tails, {self.enqueued:,} tasks enqueued, {self.acked:,} acked,"
            f" {self.retried} enqueues sent again, {self.verified:,} tasks verified"
        )


class Rig:
    """One directory, and everything that is known of it."""

    def __init__(self, data: Path, *, seed: int, generation: int = 3, before: str = "") -> None:
        """``before`` runs in the node's process ahead of it: for a test that makes the node wrong."""
        self._data = data
        self._random = Random(seed)
        self._generation = generation
        self._before = before
        self.account = Account()
        self.figures = Figures()
        self._lock = Lock()
        self._loads = [Load(self.account, self._lock, seed * 100 + n, n) for n in range(6)]
        self._old_tokens: list[int] = []

    def run(self, rounds: int) -> list[str]:
        """Run rounds and return what the node got wrong; none is as it should be."""
        for number in range(rounds):
            problems = self._round(number)
            if problems:
                return [f"round {number}: {problem}" for problem in problems]
        return self._verify_at_rest()

    def _start(self) -> NodeProcess:
        flags = ("--snapshot-bytes", SNAPSHOT_BYTES, "--generation", self._generation)
        return NodeProcess(self._data, *flags, before=self._before)

    def _round(self, number: int) -> list[str]:
        figures = self.figures
        if number and self._random.random() < 0.25:
            self._kill_a_start()
        with self._start() as node:
            node.wait_listening()
            figures.cuts += len(node.said("cut"))
            problems = self._verify(node)
            if not problems:
                self._work(node)
            node.kill()  # harmless if it has ended
            figures.snapshots += len(node.said("snapshot"))
            assert node.words == [], node.words
            assert node.said("failed") == node.said("bug") == [], node.events
        figures.rounds += 1
        figures.enqueued = sum(load.enqueued for load in self._loads)
        figures.acked = sum(load.acked for load in self._loads)
        figures.retried = sum(load.retried for load in self._loads)
        return problems

    def _kill_a_start(self) -> None:
        with self._start() as node:
            Event().wait(self._random.uniform(0.05, 0.5))  # somewhere before, in or after recovery
            node.kill()
        self.figures.kills += 1
        self.figures.killed_starts += 1

    def _work(self, node: NodeProcess) -> None:
        """Load the node until it is killed."""
        port = node.port
        threads = [Thread(target=load.run, args=(port,), daemon=True) for load in self._loads]
        for thread in threads:
            thread.start()
        if self._random.random() < 0.4:
            self._wait_snapshot()
        else:
            Event().wait(self._random.uniform(0.02, 1.5))
        self._end(node)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a connection outlived the node"
        for load in self._loads:
            self.account.problems += load.problems
            self._old_tokens += load.open_tokens

    def _end(self, node: NodeProcess) -> None:
        """Kill the node, or now and then ask it to stop, which must not lose anything either."""
        if self._random.random() < 0.15:
            code = node.stop()
            assert code == 0, (code, node.events)
            self.figures.stops += 1
        else:
            node.kill()
            self.figures.kills += 1

    def _wait_snapshot(self) -> None:
        """Wait until the file of a snapshot is being written; not for ever, the load may be small."""
        layout = layout_for(self._data, WRITTEN[Generation(self._generation)])
        growing = layout.snapshot.with_name(layout.snapshot.name + TEMPORARY_SUFFIX)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            if growing.exists():
                self.figures.in_snapshots += 1
                return

    def _verify(self, node: NodeProcess) -> list[str]:
        """Take everything out, compare it, and give it back by leaving."""
        with node.wire2() as wire:
            self._make_queues(wire)
            lost = wire.ask(v2.Ack(self._old_tokens), v2.Settled).lost
            problems = [] if list(lost) == self._old_tokens else ["a token outlived its node"]
            self._old_tokens.clear()
            found = {queue: drain(wire, queue) for queue in QUEUES}
        self.figures.verified += sum(map(len, found.values()))
        return problems + compare(self.account, found)

    def _make_queues(self, wire: Wire2) -> None:
        names = {stat.name for stat in wire.ask(v2.Stat(), v2.Stats).queues}
        for name, policy in QUEUES.items():
            if name == "archive" and self._generation == 3:
                policy = Policy(implementation=Implementation.PAGED)
            if name not in names:
                wire.ask(v2.Create(QueueName(name), policy), v2.Ok)

    def _verify_at_rest(self) -> list[str]:
        """Compare what the tools read from the files of a node that was killed."""
        found: dict[str, Held] = {queue: [] for queue in QUEUES}
        for queue, task_id, key, payload in identified(self._data, uncommitted=True):
            if queue in found:
                found[queue].append((key, task_id, payload))
        return [f"at rest: {problem}" for problem in compare(self.account, found)]


def drain(wire: Wire2, queue: str) -> Held:
    """Take out all that a queue holds."""
    held: Held = []
    while True:
        delivered = wire.ask(v2.Dequeue(QueueName(queue), 1024), v2.Delivered)
        if not delivered.ids:
            return held
        held += zip(delivered.keys, delivered.ids, delivered.payloads, strict=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/kill-node", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--generation", type=int, choices=(2, 3), default=3)
    parser.add_argument("--keep", type=Path, help="a new directory for the node's files")
    given = parser.parse_args()
    print(f"seed {given.seed}, generation {given.generation}", flush=True)
    with tempfile.TemporaryDirectory(prefix="penstock-kill-") as temporary:
        data = Path(temporary) / "node" if given.keep is None else given.keep
        rig = Rig(data, seed=given.seed, generation=given.generation)
        started = time.monotonic()
        problems = rig.run(given.rounds)
        print(f"{rig.figures} in {time.monotonic() - started:.0f} s")
        for problem in problems[:20]:
            print(problem)
        print(f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
