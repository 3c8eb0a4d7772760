"""Disks that fail one node of three: full, a sync that fails, a bit that flips in what was committed.

The full disk is a tmpfs whose size is cut down under node 3 (needs root). A sync fails by ``strace``, which answers EIO in
the system's place (needs strace and the right to trace). The bit is flipped in the file of a node that is down.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.formats.taskflux.log import LogLayout, parse_segment_name, walk
from penstock.formats.taskflux.sync_point import decode_sync_point
from rigs.cluster.load import Load
from rigs.cluster.processes import NODES, Cluster
from rigs.cluster.stage import Skipped, Stage
from rigs.cluster.wipe import come_back
from simulation.checking.history import Op, Outcome
from support.group_processes import wait_until

SMALL: Final = 3  # the node whose disk is a tmpfs
ROOM: Final = 256 * 2**20
ROOM_LEFT: Final = 256 * 2**10
PAYLOAD_SIZE_MAX: Final = 30_000
"""Large enough to fill what a segment has set aside, 16 MiB, within seconds."""

KINDS: Final = ("sync follower", "sync leader", "flip", "full follower", "full leader")
ROUNDS: Final = len(KINDS)


def run(stage: Stage, rounds: int, *flags: str | float) -> None:
    """Break each in turn, ``rounds`` times in all."""
    for tool in ("strace", "mount"):
        if shutil.which(tool) is None:
            raise Skipped(f"needs {tool}: it is not installed")
    if os.geteuid() != 0:
        raise Skipped("needs root: a tmpfs for one node")
    with (
        _tmpfs(stage.home / f"node-{SMALL}") as disk,
        stage.group("--snapshot-bytes", 2**20, *flags) as group,
        stage.work(group, payload_size_max=PAYLOAD_SIZE_MAX) as load,
    ):
        for number in range(rounds):
            load.wait_for_more(50)
            kind = KINDS[number % len(KINDS)]
            stage.say(f"round {number + 1} of {rounds}: {kind}")
            with stage.fault(kind):
                match kind:
                    case "sync follower" | "sync leader":
                        _fail_sync(stage, group, load, is_leader=kind == "sync leader")
                    case "flip":
                        _flip(stage, group)
                    case _:
                        _fill(stage, group, load, disk, is_leader=kind == "full leader")
            group.wait_whole()
            load.wait_for_more(20)
            stage.figures[kind] = stage.figures.get(kind, 0) + 1


# --- a sync that fails ---------------------------------------------------------------------------


def _fail_sync(stage: Stage, group: Cluster, load: Load, *, is_leader: bool) -> None:
    """Let a sync of the log fail: the node must stop at once, say why, and hold what it had answered afterwards."""
    leader = group.wait_leader()
    node = leader if is_leader else stage.another_than(leader)
    segment = max((group.data(node) / "data" / "log").glob("*.log"))
    with _failing_sync(group, node, segment, when=stage.random.randint(1, 5)):
        _expect_failure(stage, group, node)
    load.wait_for_more(10)  # two of three go on
    group.start(node).wait_listening()


@contextlib.contextmanager
def _failing_sync(group: Cluster, node: int, path: Path, *, when: int) -> Iterator[None]:
    life = group.life(node)
    rule = ("-e", "trace=fdatasync", "-e", f"inject=fdatasync:error=EIO:when={when}")
    command = ["strace", "-f", "-qq", "-o", os.devnull, "-p", str(life.pid), "-P", str(path), *rule]
    tracing = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        tracing.terminate()
        _, words = tracing.communicate()
        if life.is_running and "Operation not permitted" in words:
            raise Skipped(f"needs ptrace: {words.strip()}")


def _expect_failure(stage: Stage, group: Cluster, node: int) -> None:
    life = group.life(node)
    group.expected_failures.add(life.pid)
    wait_until(lambda: not life.is_running, f"node {node} stops")
    code = life.wait()
    said = life.said("failed")
    if code == 0 or not said:
        stage.problems.append(f"node {node} ended with {code} and said {said}, {life.words}")
    elif "text" in said[0]:
        stage.say(f"node {node} ended with {code}: {said[0]['text']}")


# --- a full disk ---------------------------------------------------------------------------------


def _fill(stage: Stage, group: Cluster, load: Load, disk: Path, *, is_leader: bool) -> None:
    """Leave a node no room: it stops and says why, or takes nothing more; the group goes on, and so does it later."""
    _move_leader(group, to=SMALL if is_leader else next(n for n in NODES if n != SMALL))
    life = group.life(SMALL)
    group.expected_failures.add(life.pid)
    before = len(load.book.operations)
    # Smaller than what is used it cannot be made, and that grows meanwhile.
    wait_until(
        lambda: _is_resized(disk, _used(disk) + ROOM_LEFT), f"the disk of node {SMALL} is full"
    )
    try:
        if is_leader:
            wait_until(
                lambda: _is_told(group, load, before), "somebody is told that there is no room"
            )
        else:
            wait_until(lambda: not life.is_running, f"node {SMALL} stops")
        if not life.is_running:
            _expect_failure(stage, group, SMALL)
        reasons = {o.reason for o in load.book.operations[before:] if o.op is Op.ENQUEUE}
        stage.say(
            f"node {SMALL} {'runs' if life.is_running else 'has stopped'}, node {group.leader()} leads,"
            f" refusals: {sorted(reasons - {''})[:2]}"
        )
        load.wait_for_more(10)  # by one that has room: a full leader has to make way
        stage.say(f"answers go on; node {group.leader()} leads")
    finally:
        wait_until(lambda: _is_resized(disk, ROOM), f"the disk of node {SMALL} has room again")
    if not life.is_running:
        group.start(SMALL).wait_listening()
    load.wait_for_more(10)


def _is_told(group: Cluster, load: Load, before: int) -> bool:
    """Whether the full leader has stopped, handed over, or refused an enqueue for want of room."""
    refused = any(
        o.op is Op.ENQUEUE and o.outcome is Outcome.FAIL and "LimitReached" in o.reason
        for o in load.book.operations[before:]
    )
    return refused or not group.is_running(SMALL) or group.leader() not in (None, SMALL)


def _move_leader(group: Cluster, *, to: int) -> None:
    with group.client(retry=30.0) as client:
        client.transfer(to)
    wait_until(lambda: group.leader() == to, f"node {to} leads")


def _used(disk: Path) -> int:
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _is_resized(disk: Path, size: int) -> bool:
    return not _mount("-o", f"remount,size={size}", str(disk))


def _mount(*words: str) -> str:
    """Mount, and return what was said if it failed."""
    done = subprocess.run(["mount", *words], check=False, capture_output=True, text=True)
    return done.stderr.strip() or "failed" if done.returncode else ""


@contextlib.contextmanager
def _tmpfs(path: Path) -> Iterator[Path]:
    path.mkdir()
    problem = _mount("-t", "tmpfs", "-o", f"size={ROOM},mode=0700", "penstock-rig", str(path))
    if problem:
        raise Skipped(f"needs root: a tmpfs: {problem}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=False, capture_output=True)


# --- a flipped bit -------------------------------------------------------------------------------


def _flip(stage: Stage, group: Cluster) -> None:
    """Flip a bit of a committed entry: the node must refuse to start and name the place; wiped, it comes back."""
    node = stage.random.choice(NODES)
    group.kill(node)
    path, offset = _damage(stage, group.data(node) / "data" / "log")
    life = group.start(node)
    group.expected_failures.add(life.pid)
    if not life.ends_instead_of("listening"):
        stage.problems.append(f"node {node} serves with a flipped bit in {path} at {offset}")
        group.kill(node)
    else:
        text = " ".join([*life.words, *[str(row.get("text")) for row in life.events]])
        stage.say(f"node {node} refused with {life.wait()}: {text}")
        for word in (path.name, "offset", "expected", "found"):
            if word not in text:
                stage.problems.append(f"the refusal of node {node} does not name {word}: {text}")
        if life.wait() == 0:
            stage.problems.append(f"node {node} refused its files and ended with 0")
    group.wipe(node)
    group.start(node).wait_listening()
    come_back(stage, group, node)


def _damage(stage: Stage, logs: Path) -> tuple[Path, int]:
    """Flip one bit in the payload of a committed entry; return where."""
    point = decode_sync_point((logs / "penstock.synced").read_bytes())
    assert point is not None
    path = max(logs.glob("*.log"))
    first = parse_segment_name(path.name)
    assert first is not None
    data = bytearray(path.read_bytes())
    layout = LogLayout.THREE
    found = walk(data, layout, offset=layout.header_size, end=len(data))
    count = min(len(found.offsets) - 1, point.committed + 1 - first)
    assert count > 0, f"{path} has no committed entry"
    start = found.offsets[stage.random.randrange(count)]
    body = start + layout.record_header.size
    size = layout.record_header.unpack_from(data, start)[-1]
    place = body + stage.random.randrange(size)
    data[place] ^= 1 << stage.random.randrange(8)
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(data[place : place + 1])
    return path, place
