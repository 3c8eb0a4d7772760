"""A producer that spools and a node that takes, both killed, stopped and started again at random.

Every task whose ``enqueue`` had returned must arrive once, and in order within its key. The producer is a process of its
own, with several threads; it says on its stdout which tasks are durable, and goes on where it was when it is started again.

    scripts/kill-spool [--seconds N] [--seed N] [--only node|producer] [--keep DIR]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event, Thread

import penstock
from rigs.spool_producer import QUEUES
from support.node_process import NodeProcess

THREADS = 3
SPOOL_SIZE = 2**22  # small enough that segments come and go, and that producers wait for room
FLUSH_SECONDS = 60.0

TESTS = Path(__file__).parent.parent


@dataclass
class Figures:
    """What happened."""

    node_kills: int = 0
    node_stops: int = 0
    producer_kills: int = 0
    producer_stops: int = 0
    durable: int = 0
    arrived: int = 0
    unpromised: int = 0  # of a call that was cut short: may have arrived or not

    def __str__(self) -> str:
        return (
            f"node killed {self.node_kills} times and stopped {self.node_stops}, producer killed"
            f" {self.producer_kills} times and stopped {self.producer_stops}, {self.durable:,} tasks durable in the"
            f" spool, {self.arrived:,} arrived, {self.unpromised} of these unpromised"
        )


class Account:
    """What the producer said."""

    def __init__(self) -> None:
        self.place: dict[
            tuple[int, int], tuple[str, int]
        ] = {}  # queue and key, by thread and number
        self.promised: set[tuple[int, int]] = set()
        self._begun: dict[int, list[tuple[int, int]]] = {}  # the last call of each thread
        self.nexts = [0] * THREADS  # numbers that no task has yet

    def hear(self, line: str) -> None:
        match line.split():
            case ["begin", name, first, count, queue, key]:
                thread, number = int(name), int(first)
                self._begun[thread] = [(thread, n) for n in range(number, number + int(count))]
                for task in self._begun[thread]:
                    self.place[task] = queue, int(key)
                self.nexts[thread] = number + int(count)
            case ["durable", name, _]:
                self.promised.update(self._begun[int(name)])


class Producer:
    """The process that spools."""

    def __init__(self, address: str, directory: Path, account: Account, seed: int) -> None:
        self._account = account
        words = [address, str(directory), str(SPOOL_SIZE), str(seed), *map(str, account.nexts)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rigs.spool_producer", *words],
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.has_begun = Event()
        self._listening = Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = raw.decode()
            if line.endswith("\n"):  # a line that was cut short by a kill says nothing
                self._account.hear(line)
                self.has_begun.set()

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def stop(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._end()

    def _end(self) -> int:
        code = self._process.wait(FLUSH_SECONDS)
        self._listening.join(FLUSH_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return code


class Rig:
    """A spool and a node, and everything that is known of them."""

    def __init__(self, path: Path, *, seed: int, only: str | None = None) -> None:
        self._path = path
        self._seed = seed
        self._random = Random(seed)
        self._only = only
        self.account = Account()
        self.figures = Figures()

    def run(self, seconds: float) -> list[str]:
        """Run for so long and return what went wrong; nothing is as it should be."""
        node = NodeProcess(self._path / "node").wait_listening()
        address = node.address
        with node.client() as client:
            for queue in QUEUES:
                client.create_queue(queue)
        producer = self._start_producer(address)
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                Event().wait(self._random.uniform(0.05, 1.5))
                if self._chooses("node"):
                    self._end_node(node)
                    Event().wait(self._random.choice((0.0, 0.0, 0.5)))
                    node = NodeProcess(self._path / "node", listen=address)
                    if self._random.random() < 0.7:
                        node.wait_listening()
                if self._chooses("producer"):
                    self._end_producer(producer)
                    producer = self._start_producer(address)
            node.wait_listening()
            self._end_producer(producer)
            return self._verify(address)
        finally:
            producer.kill()
            node.kill()

    def _chooses(self, what: str) -> bool:
        return self._only == what or (self._only is None and self._random.random() < 0.6)

    def _start_producer(self, address: str) -> Producer:
        producer = Producer(address, self._path / "spool", self.account, self._seed)
        if self._random.random() < 0.8:
            producer.has_begun.wait(FLUSH_SECONDS)
        return producer

    def _end_node(self, node: NodeProcess) -> None:
        is_gentle = self.figures.node_kills > 0 and self._random.random() < 0.2
        if is_gentle and node.said("listening"):
            assert node.stop() == 0, node.events
            self.figures.node_stops += 1
        else:
            node.kill()
            self.figures.node_kills += 1
        assert node.said("failed") == node.said("bug") == [], node.events

    def _end_producer(self, producer: Producer) -> None:
        if self.figures.producer_kills > 0 and self._random.random() < 0.2:
            producer.stop()
            self.figures.producer_stops += 1
        else:
            producer.kill()
            self.figures.producer_kills += 1

    def _verify(self, address: str) -> list[str]:
        """Send the rest, take everything out, and compare."""
        with penstock.connect(address, spool=self._path / "spool", spool_size=SPOOL_SIZE) as client:
            if not client.flush(FLUSH_SECONDS):
                return ["the spool is not empty after a minute"]
            found = {queue: _drained(client, queue) for queue in QUEUES}
        self.figures.durable = len(self.account.promised)
        self.figures.arrived = sum(map(len, found.values()))
        return self.compare(found)

    def compare(self, found: dict[str, list[tuple[int, bytes]]]) -> list[str]:
        problems = []
        seen: set[tuple[int, int]] = set()
        last: dict[tuple[str, int, int], int] = defaultdict(lambda: -1)
        for queue, tasks in found.items():
            for key, payload in tasks:
                name, number = map(int, payload.split(b" ")[:2])
                if (name, number) in seen:
                    problems.append(f"doubled: {name} {number}")
                seen.add((name, number))
                if self.account.place.get((name, number)) != (queue, key):
                    problems.append(f"invented or changed: {name} {number} in {queue}, key {key}")
                if number < last[queue, key, name]:
                    problems.append(f"order: {name} {number} after {last[queue, key, name]}")
                last[queue, key, name] = number
        problems += [f"lost: {name} {n}" for name, n in sorted(self.account.promised - seen)]
        self.figures.unpromised = len(seen - self.account.promised)
        return problems


def _drained(client: penstock.SpoolClient, queue: str) -> list[tuple[int, bytes]]:
    """Take out all that a queue holds."""
    held: list[tuple[int, bytes]] = []
    while deliveries := client.dequeue_many(queue, 1024):
        held += [(delivery.key, delivery.payload) for delivery in deliveries]
        client.ack(deliveries)
    return held


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/kill-spool", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--only", choices=("node", "producer"), help="kill only this one")
    parser.add_argument("--keep", type=Path, help="a new directory for all files")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="penstock-kill-") as temporary:
        rig = Rig(
            Path(temporary) if given.keep is None else given.keep, seed=given.seed, only=given.only
        )
        started = time.monotonic()
        problems = rig.run(given.seconds)
        print(f"{rig.figures} in {time.monotonic() - started:.0f} s")
        for problem in problems[:20]:
            print(problem)
        print(f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
