"""Real nodes on real sockets and files: a group that forms, replicates, and sends its state to one that fell behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from penstock.errors import PenstockError
from penstock.model import DEFAULT_QUEUE
from penstock.protocol import version2 as v2
from penstock.server.disk import InlineDisk
from penstock.server.node import Node
from penstock.server.peers.transport import PeerTransport, bind
from penstock.server.settings import GroupSettings, Settings
from penstock.server.shortage import Shortage
from penstock.server.snapshots import Snapshots
from server.peers.test_transport import listening, run, until
from support.node_rig import RecordingCaller, Told
from support.small_disk import leave, small_disk

TICK_SECONDS = 0.01
MIB = 2**20


class Member:
    """A node with its sockets and its clock."""

    def __init__(self, number: int, addresses: dict[int, str], data: Path) -> None:
        self.number = number
        self.addresses = addresses
        self.data = data
        self.failures: list[PenstockError] = []
        # Nothing is kept behind a snapshot: who is behind it needs one.
        place = GroupSettings(node=number, peers=addresses, kept_bytes=0)
        settings = Settings(data=data, group=place)
        self.node = Node(settings, InlineDisk(), on_failure=self.failures.append)
        assert self.node.group is not None
        self.group = self.node.group
        self.loop = asyncio.get_running_loop()
        self.transport = PeerTransport(self.group, self.loop, lambda *_: None)
        self._timer = self.loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = self.loop.call_later(TICK_SECONDS, self._tick)
        self.group.tick()

    @property
    def is_leading(self) -> bool:
        return self.group.replica.is_leading

    def count(self) -> int:
        return len(self.group.replica.state.by_name[DEFAULT_QUEUE])

    def close(self) -> None:
        self._timer.cancel()
        self.transport.close()
        self.node.close()


@asynccontextmanager
async def started(count: int, home: Path) -> AsyncIterator[list[Member]]:
    """Start all members of a group; those in the list are closed in the end."""
    sockets = {number: listening() for number in range(1, count + 1)}
    addresses = {number: address for number, (_, address) in sockets.items()}
    members = [Member(number, addresses, home / str(number)) for number in addresses]
    try:
        for member in members:
            await member.transport.start(sockets[member.number][0])
        yield members
        assert not [failure for member in members for failure in member.failures]
    finally:
        for member in members:
            member.close()
        await asyncio.sleep(0)


async def leader_of(members: list[Member]) -> Member:
    await until(lambda: any(member.is_leading for member in members))
    return next(member for member in members if member.is_leading)


async def enqueue(leader: Member, payloads: list[bytes]) -> None:
    """Put tasks in, and wait until they are acknowledged."""
    told: list[Told] = []
    caller = RecordingCaller(told)
    for payload in payloads:
        request = v2.Enqueue(DEFAULT_QUEUE, [1], [payload])
        leader.node.broker.enqueue(caller, caller.number(), request)
    leader.group.replica.advance()
    await until(lambda: len(told) == len(payloads))
    assert all(isinstance(one.answer, v2.Enqueued) for one in told), told[-1]


async def cut_log(leader: Member) -> None:
    """Take a snapshot, and keep no log behind it."""
    snapshots = Snapshots(leader.node, InlineDisk(), leader.loop.call_later, lambda _: None)
    snapshots.begin()
    await until(lambda: not snapshots.is_under_way)


async def agree(members: list[Member], count: int) -> None:
    """Wait until all have this many tasks; then their states are the same."""
    await until(lambda: all(member.count() == count for member in members))
    assert len({member.node.state_digest() for member in members}) == 1


def test_a_group_forms_and_all_have_what_was_acknowledged(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(3, tmp_path) as members:
            leader = await leader_of(members)
            for batch in range(10):
                await enqueue(leader, [b"task %d of %d" % (place, batch) for place in range(50)])
            await agree(members, 500)

    run(test)


def test_another_leads_when_the_leader_is_gone_and_the_old_one_follows(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(3, tmp_path) as members:
            old = await leader_of(members)
            await enqueue(old, [b"before"])
            members.remove(old)
            old.close()
            leader = await leader_of(members)
            await enqueue(leader, [b"after"])
            back = Member(old.number, old.addresses, old.data)
            members.append(back)
            await back.transport.start(bind(back.addresses[back.number]))
            await agree(members, 2)

    run(test)


def test_a_node_that_fell_behind_the_log_gets_a_snapshot(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(3, tmp_path) as members:
            leader = await leader_of(members)
            await enqueue(leader, [b"first"])
            await agree(members, 1)
            late = next(member for member in members if member is not leader)
            members.remove(late)
            late.close()
            for _ in range(3):  # a segment and a little more
                await enqueue(leader, [bytes([place]) * MIB for place in range(9)])
            await cut_log(leader)
            assert leader.node.directory.log.first > late.node.directory.log.end
            back = Member(late.number, late.addresses, late.data)
            members.append(back)
            assert back.node.directory.snapshot.point is None
            await back.transport.start(bind(back.addresses[back.number]))
            await agree(members, 28)
            assert back.node.directory.snapshot.point is not None
            await enqueue(leader, [b"last"])
            await agree(members, 29)

    run(test)


def test_a_node_without_room_for_the_leaders_snapshot_takes_it_when_there_is_room(
    tmp_path: Path,
) -> None:
    async def test(disks: dict[int, Path]) -> None:
        async with started(3, tmp_path) as members:
            leader = await leader_of(members)
            await enqueue(leader, [b"first"])
            await agree(members, 1)
            late = next(member for member in members if member is not leader)
            members.remove(late)
            late.close()
            for _ in range(3):
                await enqueue(leader, [bytes([place]) * MIB for place in range(9)])
            await cut_log(leader)
            ballast = leave(disks[late.number], 4 * MIB)
            back = Member(late.number, late.addresses, late.data)
            members.append(back)
            said: list[str] = []
            back.group.replica.receipt.shortage = Shortage(say=said.append)
            await back.transport.start(bind(back.addresses[back.number]))
            await until(lambda: bool(said))
            assert back.failures == []
            assert back.node.directory.snapshot.point is None
            assert list(back.data.rglob("*.penstock-temporary")) == []
            await enqueue(leader, [b"meanwhile"])
            ballast.unlink()
            await agree(members, 29)
            assert len(said) == 1

    with ExitStack() as stack:
        disks = {
            n: stack.enter_context(small_disk(tmp_path / str(n), 160 * MIB)) for n in (1, 2, 3)
        }
        run(lambda: test(disks))
