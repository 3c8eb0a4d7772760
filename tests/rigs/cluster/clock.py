"""Wall clocks that jump by up to an hour, forwards and back, on the leader and on followers.

By a hook of the rig, since neither a time namespace nor anything else of the system moves the wall clock of one
process: before a node starts, ``time.time_ns``, the node's clock, is replaced in its process by one that adds what a file
says. The monotonic clock stays as it is, as it does on a real machine, and so do the times in the node's log, by which the
rig knows when who led.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import pack
from threading import Event
from typing import Final

from penstock.errors import LeaseLost, PenstockError
from rigs.cluster.load import LEASE_SECONDS
from rigs.cluster.processes import NODES, Cluster
from rigs.cluster.stage import Stage
from support.node_process import PATIENCE_SECONDS

ROUNDS: Final = 12
JUMPS: Final = (3600, -3600, 30, -30, 2, -2)
LEASED: Final = "watched"
EMPTY: Final = "empty"
WAIT_SECONDS: Final = 10.0
SUFFIX: Final = ".clock"

HOOK: Final = f"""
import mmap, struct, time
with open(sys.argv[sys.argv.index("--data") + 1] + {SUFFIX!r}, "rb") as _file:
    _jump = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)
_time_ns = time.time_ns
time.time_ns = lambda: _time_ns() + struct.unpack("<q", _jump[:8])[0]
"""


def run(stage: Stage, rounds: int, *flags: str | float) -> None:
    """Let clocks jump, the leader's every second time; they stay wrong until they jump again."""
    for node in NODES:
        _file(stage.home, node).write_bytes(bytes(8))
    # A lease may end early or late with its clock: any redelivery is explained.
    with stage.group(*flags, before=HOOK) as group, stage.work(group, lease_time=0.0) as load:
        for number in range(rounds):
            load.wait_for_more(stage.random.randint(50, 150))
            leader = group.wait_leader()
            node = leader if number % 2 == 0 else stage.another_than(leader)
            jump = JUMPS[(number // 2) % len(JUMPS)]
            stage.say(f"round {number + 1} of {rounds}: node {node} jumps {jump} s, {leader} leads")
            with stage.fault(f"jump {jump} s"), _watched(stage, group):
                _jump(stage.home, node, jump)
                load.wait_for_more(50)
            if group.wait_leader() != leader:
                stage.figures["changes_of_leader"] = stage.figures.get("changes_of_leader", 0) + 1
            group.wait_whole()
        stage.figures["jumps"] = rounds
        for node in NODES:
            _jump(stage.home, node, 0)


@contextmanager
def _watched(stage: Stage, group: Cluster) -> Iterator[None]:
    """Hold a lease and let somebody wait over a jump: both must end, by whatever clock."""
    with group.client(retry=PATIENCE_SECONDS, timeout=10.0) as client:
        for queue in (LEASED, EMPTY):
            client.create_queue(queue, exist_ok=True)
        client.purge(LEASED)
        client.enqueue(LEASED, b"held")
        held = client.dequeue_many(LEASED, 1, lease=LEASE_SECONDS)
        assert len(held) == 1
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(_wait_for_nothing, group)
            Event().wait(0.3)  # nobody says when a node has heard it, and it may not yet have ended
            yield
            if problem := waiting.result():
                stage.problems.append(problem)
        again = client.dequeue_many(LEASED, 1, wait=WAIT_SECONDS, lease=60.0)
        if not again:
            stage.problems.append(
                f"a lease of {LEASE_SECONDS} s did not end within {WAIT_SECONDS} s after a jump"
            )
        with suppress(LeaseLost):
            client.ack(again)


def _wait_for_nothing(group: Cluster) -> str:
    with group.client(timeout=5.0) as client:
        try:
            client.dequeue_many(EMPTY, 1, wait=1.0)
        except PenstockError as error:
            return f"a dequeue that waits for 1 s over a jump was not answered: {error}"
    return ""


def _file(home: Path, node: int) -> Path:
    return home / f"node-{node}{SUFFIX}"


def _jump(home: Path, node: int, seconds: int) -> None:
    """Set a clock. In place: a file that were cut, even for a moment, would end the process that has it mapped."""
    with open(_file(home, node), "r+b") as file:
        file.write(pack("<q", seconds * 10**9))
