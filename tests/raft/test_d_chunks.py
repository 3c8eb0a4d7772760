"""D: snapshots in chunks, over a network that loses, repeats and reorders them, to a member that crashes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

import pytest

from penstock.protocol.peers import Packet
from penstock.protocol.peers import packets as p
from penstock.raft.messages import Kind, Message, Snapshot
from penstock.server.peers.transfers import RETRY_SECONDS, Reception, Sending, Transfer
from raft.groups import THREE
from raft.stepping import Stepped
from server.peers.wired import BytesFile, Clock

CHUNK_SIZE = 40
CHUNKS = 100
OLD = b"the state that was there before"


class Storage:
    """Where a member keeps what arrives; a crash takes some of what was not synced."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.state = OLD  # what is installed
        self.held = bytearray()
        self.wanted: tuple[Snapshot, int, int] | None = None

    def offset(self, snapshot: Snapshot, size: int, checksum: int) -> int:
        if self.wanted != (snapshot, size, checksum):
            self.wanted = (snapshot, size, checksum)
            self.held.clear()
        return len(self.held)

    def write(self, offset: int, data: bytes) -> bool:
        assert offset == len(self.held), "bytes that do not follow were taken"
        self.held += data
        return True

    def finish(self, then: Callable[[bool], None]) -> None:
        assert self.wanted is not None
        then((len(self.held), zlib.crc32(self.held)) == self.wanted[1:])

    def abandon(self) -> None:
        self.held.clear()
        self.wanted = None

    def install(self) -> None:
        self.state = bytes(self.held)
        self.abandon()

    def crash(self) -> None:
        del self.held[self._random.randrange(len(self.held) + 1) :]


@dataclass
class Leader:
    """A member that sends its snapshot until that has arrived."""

    number: int
    term: int
    snapshot: Snapshot
    data: bytes
    said: list[Packet] = field(default_factory=list)  # on its way to the follower
    sending: Sending | None = None
    outcomes: list[bool] = field(default_factory=list)

    def begin(self, clock: Clock) -> None:
        message = Message(
            kind=Kind.SNAPSHOT, sender=self.number, to=1, term=self.term, snapshot=self.snapshot
        )
        self.sending = Sending(
            message, BytesFile(self.data), self.said.append, clock, chunk_size=CHUNK_SIZE
        )
        self.sending.offer()

    def look(self) -> None:
        if self.sending is not None and self.sending.outcome is not None:
            self.outcomes.append(self.sending.outcome)
            self.sending = None


class Course:
    """One follower, the leaders that send to it, and a network at its worst."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = Clock()
        self.storage = Storage(self.random)
        self.reception = Reception()
        self.member = Stepped(log=[1, 1, 1], term=1, commit=3)
        self.answers: dict[int, list[Packet]] = {}
        self.leaders: list[Leader] = []
        self.allowed = {OLD}
        self.installed: list[Transfer] = []

    def add(self, number: int, term: int, index: int) -> Leader:
        size = CHUNKS * CHUNK_SIZE - self.random.randrange(CHUNK_SIZE)
        data = self.random.randbytes(size)
        leader = Leader(number, term, Snapshot(index, 2, THREE), data)
        self.leaders.append(leader)
        self.answers[number] = []
        self.allowed.add(data)
        leader.begin(self.clock)
        return leader

    def turn(self) -> None:
        """Let one packet arrive, or time pass."""
        for leader in self.leaders:
            self._deliver(leader.said, partial(self._to_follower, leader))
            self._deliver(self.answers[leader.number], partial(self._to_leader, leader))
            if leader.sending is not None and not leader.said and not self.answers[leader.number]:
                self.clock.seconds += RETRY_SECONDS
                leader.sending.tick()
            leader.look()
        assert self.storage.state in self.allowed, "a mix of states was installed"

    def _deliver(self, box: list[Packet], take: Callable[[Packet], None]) -> None:
        if not box:
            return
        packet = box.pop(self.random.randrange(min(3, len(box))))
        fate = self.random.random()
        if fate < 0.05:
            return
        if fate < 0.15:
            box.append(packet)
        take(packet)

    def _to_follower(self, leader: Leader, packet: Packet) -> None:
        back = self.answers[leader.number].append
        taken = partial(self._install, leader)
        if isinstance(packet, p.Offer):
            self.reception.offered(packet, self.storage, back, taken)
        else:
            assert isinstance(packet, p.Chunk)
            self.reception.arrived(packet, self.storage, back, taken)

    def _to_leader(self, leader: Leader, packet: Packet) -> None:
        assert isinstance(packet, p.OfferReply | p.ChunkReply)
        if leader.sending is not None:
            leader.sending.take(packet)

    def _install(self, leader: Leader, transfer: Transfer) -> bool:
        if transfer.snapshot.index > self.member.core.log.committed:
            self.storage.install()
        self.member.asked(
            Kind.SNAPSHOT, leader.number, term=transfer.leader_term, snapshot=transfer.snapshot
        )
        self.installed.append(transfer)
        return True

    def crash(self) -> None:
        """Let the follower forget what it had not stored; its connections break."""
        self.storage.crash()
        self.reception = Reception()
        for leader in self.leaders:
            leader.said.clear()
            self.answers[leader.number].clear()
            if leader.sending is not None:
                leader.sending.end(False)
                leader.look()


def run_until(course: Course, condition: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if condition():
            return
        course.turn()
    raise AssertionError("it does not get anywhere")


@pytest.mark.parametrize("seed", range(20))
def test_d18_chunked_transfer_faults(seed: int) -> None:
    course = Course(seed)
    random, storage = course.random, course.storage
    first = course.add(2, term=3, index=8)
    run_until(course, lambda: len(storage.held) > random.randrange(5, 60) * CHUNK_SIZE)
    assert storage.state == OLD
    # A crash of the follower in the middle: the same leader goes on where that leaves it.
    course.crash()
    assert storage.state == OLD
    kept = len(storage.held)
    first.begin(course.clock)
    run_until(course, lambda: len(storage.held) > max(kept, 70 * CHUNK_SIZE))
    # A change of leader in the middle: the new one begins anew, the old one is refused.
    second = course.add(3, term=4, index=9)
    run_until(course, lambda: first.sending is None)
    assert first.outcomes[-1] is False
    assert storage.state == OLD
    run_until(course, lambda: second.sending is None)
    assert second.outcomes == [True]
    assert storage.state == second.data
    assert [transfer.snapshot for transfer in course.installed] == [second.snapshot]
    log = course.member.core.log
    assert (log.committed, log.last, course.member.core.term) == (9, 9, 4)


@pytest.mark.parametrize("seed", range(10))
def test_d18_a_crash_at_any_moment_leaves_the_old_state_or_the_whole_new_one(seed: int) -> None:
    course = Course(seed)
    leader = course.add(2, term=3, index=8)
    crashes = 0
    while not course.installed:
        for _ in range(course.random.randrange(1, 150)):
            course.turn()
        if course.installed:
            break
        assert course.storage.state == OLD
        course.crash()
        crashes += 1
        leader.begin(course.clock)
    assert crashes > 0
    assert course.storage.state == leader.data


def test_d18_a_new_leader_with_the_same_snapshot_begins_anew() -> None:
    course = Course(0)
    first = course.add(2, term=3, index=8)
    run_until(course, lambda: len(course.storage.held) > 50 * CHUNK_SIZE)
    second = course.add(3, term=4, index=8)
    second.data = first.data
    second.said.clear()
    second.begin(course.clock)
    offer = second.said.pop(0)
    assert isinstance(offer, p.Offer)
    course.reception.offered(offer, course.storage, course.answers[3].append, lambda _: True)
    assert course.storage.held == b""
    reply = course.answers[3][-1]
    assert isinstance(reply, p.OfferReply)
    assert reply.offset == 0


def test_d18_the_whole_is_checked_before_it_is_installed() -> None:
    course = Course(0)
    leader = course.add(2, term=3, index=8)
    assert leader.sending is not None
    promised = leader.said[0]
    assert isinstance(promised, p.Offer)
    leader.said[0] = p.Offer(
        leader_term=3,
        index=promised.index,
        term=promised.term,
        size=promised.size,
        checksum=promised.checksum ^ 1,
        configuration=promised.configuration,
    )
    course.random.random = lambda: 1.0  # type: ignore[method-assign]  # nothing is lost or repeated
    course.random.randrange = lambda *_: 0  # type: ignore[method-assign]  # nor reordered
    run_until(course, lambda: leader.sending is None)
    assert leader.outcomes == [False]
    assert course.storage.state == OLD
    assert course.member.core.log.committed == 3
