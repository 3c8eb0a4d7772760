"""Wall clocks that jump by up to an hour, forwards and back, on the leader and on followers.

By a hook of the rig, since neither a time namespace nor anything else of the system moves the wall clock of one
process: before a node starts, ``time.time_ns``, the node's clock, is replaced in its process by one that adds what a file
says. The monotonic clock stays as it is, as it does on a real machine, and so do the times in the node's log, by which the
rig knows when who led.
"""

from __future__ import annotations

from pathlib import Path
from struct import pack
from typing import Final

from rigs.cluster.processes import NODES
from rigs.cluster.stage import Stage

ROUNDS: Final = 12
JUMPS: Final = (3600, -3600, 30, -30, 2, -2)
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
            node = leader if number % 2 == 0 else _another(stage, leader)
            jump = JUMPS[(number // 2) % len(JUMPS)]
            stage.say(f"round {number + 1} of {rounds}: node {node} jumps {jump} s, {leader} leads")
            with stage.fault(f"jump {jump} s"):
                _jump(stage.home, node, jump)
                load.wait_for_more(50)
            if group.wait_leader() != leader:
                stage.figures["changes_of_leader"] = stage.figures.get("changes_of_leader", 0) + 1
            group.wait_whole()
        stage.figures["jumps"] = rounds
        for node in NODES:
            _file(stage.home, node).write_bytes(bytes(8))


def _file(home: Path, node: int) -> Path:
    return home / f"node-{node}{SUFFIX}"


def _jump(home: Path, node: int, seconds: int) -> None:
    with open(_file(home, node), "r+b") as file:
        file.write(pack("<q", seconds * 10**9))


def _another(stage: Stage, leader: int) -> int:
    return stage.random.choice([node for node in NODES if node != leader])
