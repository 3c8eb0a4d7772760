"""How long nobody answers: the node that leads is killed, and the clock stops with the first enqueue that another answers."""

from __future__ import annotations

import contextlib
import select
import time
from dataclasses import dataclass
from random import Random

from peers.base import Refused, Unavailable, Wire, say
from peers.group import NODES, Group

# A survivor that refuses, for not leading, is asked again after this long; one that says nothing, too.
REFUSED_SECONDS = 0.002
SILENT_SECONDS = 0.02
# Nobody answers for so long: there is no new leader, and that is a finding.
FAILOVER_SECONDS_MAX = 60.0
# A kill comes at any moment between two heartbeats.
PAUSE_SECONDS_MAX = 0.3
SEED = 7
PAYLOAD = bytes(100)


@dataclass(slots=True)
class Survivor:
    """A connection to a node that goes on."""

    wire: Wire
    ask_again: float = 0.0  # when

    def ask(self, now: float) -> None:
        # A new request each time: the last one may be under way, and its number with it.
        self.wire.socket.sendall(self.wire.put(PAYLOAD))
        self.ask_again = now + SILENT_SECONDS

    def hear(self, now: float) -> bool:
        """Take what came, and return whether the task is durable."""
        try:
            return self.wire.answers(self.wire.receive()) > 0
        except Refused:
            self.ask_again = now + REFUSED_SECONDS
            return False


def failovers(peer: Group, kills: int) -> list[float]:
    """Kill the leader so many times and return the seconds of each failover. The group runs and is whole."""
    random = Random(SEED)
    taken: list[float] = []
    while len(taken) < kills:
        queue = f"f{len(taken)}"
        with contextlib.closing(peer.connect(queue)) as wire:
            killed = peer.leading
            seconds = _failover(peer, queue, wire, killed, random)
        if seconds is None:
            continue
        taken.append(seconds)
        say(f"  kill {len(taken)} of {kills}, node {killed + 1}: {seconds * 1000:,.0f} ms")
        peer.start_node(killed)
        peer.wait_whole(queue)
    return taken


def _failover(peer: Group, queue: str, wire: Wire, killed: int, random: Random) -> float | None:
    """Kill a node and return the seconds until another answers; ``None``, and nobody is killed, if it leads no more."""
    peer.wait_whole(queue)
    with contextlib.ExitStack() as stack:
        survivors = [
            Survivor(stack.enter_context(contextlib.closing(peer.connect_to(node, queue))))
            for node in range(NODES)
            if node != killed
        ]
        # A connection of RabbitMQ's that was never used before the kill would wait for the dead node for good.
        for one in survivors:
            _enqueues(one.wire)
        time.sleep(PAUSE_SECONDS_MAX * random.random())
        if not _enqueues(wire):
            return None
        begin = time.perf_counter()
        peer.kill_node(killed)
        return _wait_answer(survivors, begin) - begin


def _enqueues(wire: Wire) -> bool:
    """Whether the node at the other end takes a task."""
    wire.socket.sendall(wire.put(PAYLOAD))
    try:
        while not wire.answers(wire.receive()):
            pass
    except Refused:
        return False
    return True


def _wait_answer(survivors: list[Survivor], begin: float) -> float:
    """Ask all survivors again and again, and return when the first said yes."""
    poll = select.poll()
    by_descriptor = {one.wire.socket.fileno(): one for one in survivors}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    while (now := time.perf_counter()) < begin + FAILOVER_SECONDS_MAX:
        for one in survivors:
            if now >= one.ask_again:
                one.ask(now)
        wait = min(one.ask_again for one in survivors) - now
        for descriptor, _ in poll.poll(max(0.0, wait) * 1000):
            if by_descriptor[descriptor].hear(time.perf_counter()):
                return time.perf_counter()
    raise Unavailable(f"no enqueue was answered for {FAILOVER_SECONDS_MAX:g} s after the kill")
