"""Groups that a test drives with the lines of a script, and looks into."""

from __future__ import annotations

from penstock.raft.configuration import Change, Configuration, Step, decode_change
from penstock.raft.core import Raft
from penstock.raft.messages import EntryKind, Kind
from raft.script import run_check, run_line
from raft.stepping import Stepped
from raft.world import World

THREE = Configuration(voters=(1, 2, 3))


def run(seed: int, *lines: str) -> World:
    """Return a new world after these lines of a script."""
    world = World(seed)
    go_on(world, *lines)
    return world


def go_on(world: World, *lines: str) -> None:
    for line in lines:
        run_line(world, line)


def check(world: World, *checks: str) -> None:
    for line in checks:
        run_check(world, line.split())


def leaders(world: World) -> list[int]:
    return [one.number for one in world.up() if one.core is not None and one.core.is_leader]


def one_step(step: Step, member: int) -> Change:
    return Change(((step, member),))


def changes(core: Raft) -> list[Change]:
    """Return the changes of members in a log."""
    log = core.log
    found = log.entries(log.first, log.last + 1, size_max=2**20)
    return [decode_change(e.payload) for e in found if e.kind is EntryKind.CONFIGURATION]


def leading(configuration: Configuration = THREE) -> Stepped:
    """Return a leader that has committed the first entry of its term, and that all others have it."""
    one = Stepped(configuration=configuration)
    one.lead()
    for peer in configuration.members[1:]:
        one.asked(Kind.APPEND_REPLY, peer, index=1)
    assert one.core.log.applied == 1
    return one


def agree(one: Stepped, *peers: int) -> None:
    """Let peers acknowledge all that a leader has, and once more if that makes it write on."""
    for _ in range(2):
        one.pump()
        for peer in peers:
            if one.core.is_leader and peer in one.core.configuration.members:
                one.asked(Kind.APPEND_REPLY, peer, index=one.core.log.last)
