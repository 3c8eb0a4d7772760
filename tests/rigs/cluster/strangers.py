"""A sender that was never given a nonce: mutated peer frames of every kind, to the peer ports of all nodes, under load.

A connection carries a claim, guessed nonces and one mutated frame, at which the node closes it. The sender waits for that, and
counts the mutated frame only, and only where the node read it. Neither term nor leader may change.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from random import Random
from struct import pack
from typing import Final, Self

from penstock.binary import CHECKSUM_START, checksum_of_one
from penstock.formats.taskflux.deltas import encode_delta
from penstock.model import DEFAULT_QUEUE, TERM_MAX, AddTask
from penstock.protocol.peers import Packet, Standing, encode_packet
from penstock.protocol.peers import packets as p
from penstock.raft.configuration import Configuration, encode_configuration
from rigs.cluster.processes import Cluster
from rigs.cluster.stage import Stage
from support.group_processes import wait_until

ROUNDS: Final = 100
FRAMES: Final = 10_000
"""Mutated frames of a round: 100 rounds are a million, each on a connection of its own."""

WINDOW: Final = 48
"""Connections that are open at once; a node keeps 64 unproven ones, and nothing is to be closed unread."""

PATIENCE: Final = ("--heartbeat", 100, "--election-timeout", 5000)
"""The sender takes all the processor time there is: an election for lack of it would not be the frames' doing."""

MEMORY_GROWTH_MAX: Final = 192 * 2**20
"""Bytes that a node may grow from the first round to the last; it keeps up to 64 MiB of entries in memory for followers."""

FILES_GROWTH_MAX: Final = 80
"""Descriptors that a node may have open beyond those at the start: 64 unproven links, clients, segments."""

PATIENCE_SECONDS: Final = 30.0
_SOURCES: Final = (
    200  # addresses of loopback to connect from: one has too few ports for a million connections
)


GUESSES: Final = (0, 0, 1, 3, 8, 20)
"""Nonces that are guessed on a link; a node takes 64 wrong ones."""

HELLO: Final = p.Hello(incarnation="f" * 16, knows="0" * 16, client_address="stranger:1")


class Frames:
    """Frames that a stranger can make: valid ones with extreme contents, and damaged ones."""

    def __init__(self, random: Random, *, leader: int, term: int) -> None:
        self._random = random
        self._numbers = (leader, leader, 1, 2, 3, 1, 2, 3, 77, 2**31 - 1, 0, -1)
        self._terms = (0, 1, term, term + 1, 10**6, TERM_MAX, TERM_MAX + 1, 2**63 - 1, -1)

    def connection(self, node: int) -> tuple[bytes, int]:
        """Return what is sent to a node on one connection, and how many mutated frames of it the node judges: one or none.

        It closes the link at the first frame that it may not take; none behind that is counted.
        """
        kind = self._random.randrange(24)
        if kind < 4:
            return self._mutated(), 1
        if kind == 4:
            return self._old_greeting() + self._mutated(), 0
        number = self._number()
        if (
            number == node and kind > 6
        ):  # a claim to be the node itself is refused: seldom worth a connection
            number = 1 + node % 3
        claim = encode_packet(p.Connect(node=number, nonce=self._nonce()))
        guesses = [p.Proof(nonce=self._nonce()) for _ in range(self._random.choice(GUESSES))]
        proofs = b"".join(map(encode_packet, guesses))
        if kind == 5:
            return claim + proofs + encode_packet(HELLO), 0
        is_refused = number < 1 or number == node
        return claim + proofs + self._mutated(), 0 if is_refused else 1

    def _number(self) -> int:
        return self._random.choice(self._numbers)

    def _term(self) -> int:
        return self._random.choice(self._terms)

    def _index(self) -> int:
        return self._random.choice((-2, -1, 0, 1, 7, 10**6, 2**62, 2**63 - 1))

    def _nonce(self) -> bytes:
        return self._random.randbytes(p.NONCE_SIZE)

    def _old_greeting(self) -> bytes:
        """Return how a link began before it had to be proven; without the complement it is TaskFlux's connect."""
        payload = pack(">i", self._number())
        mask = self._random.choice((0, CHECKSUM_START))
        return b"C" + payload + pack(">I", checksum_of_one(payload) ^ mask)

    # --- frames ---

    def _mutated(self) -> bytes:
        random, frame = self._random, encode_packet(self._packet())
        kind = random.randrange(6)
        if kind == 0:
            return frame
        if kind == 1:
            return frame[: random.randrange(1, len(frame))]
        if kind == 2:
            other = encode_packet(self._packet())
            return frame[: random.randrange(1, len(frame))] + other[random.randrange(len(other)) :]
        changed = bytearray(frame)
        for _ in range(random.randint(1, 4)):
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        if kind == 3:
            return bytes(changed)
        payload = bytes(changed[1:-4])  # with a checksum that is right
        return bytes(frame[:1]) + payload + pack(">I", checksum_of_one(payload))

    def _packet(self) -> Packet:
        return self._random.choice(self._PACKETS)(self)

    def _append(self) -> Packet:
        random, size = self._random, self._random.choice((0, 0, 1, 3))
        task = encode_delta(AddTask(queue=DEFAULT_QUEUE, key=1, payload=b"a stranger's"))
        return p.Append(
            commit=self._index(), term=self._term(), previous_term=self._term(),
            previous_index=self._index(), leader=self._number(),
            terms=[self._term() for _ in range(size)],
            payloads=[random.choice((task, b"", b"no entry")) for _ in range(size)],
        )  # fmt: skip

    def _place(self) -> dict[str, int]:
        return {"leader_term": self._term(), "index": self._index(), "term": self._term()}

    def _offer(self) -> Packet:
        group = encode_configuration(Configuration(voters=(77,)))
        return p.Offer(**self._place(), size=2**40, checksum=1, configuration=group)

    def _votes(self) -> dict[str, int]:
        return {"term": self._term(), "last_term": self._term(), "last_index": self._index()}

    def _reply(self) -> dict[str, int]:
        return {"term": self._term(), "hint_index": self._index(), "hint_term": self._term()}

    _PACKETS: Final[tuple[Callable[[Frames], Packet], ...]] = (
        lambda self: p.Connect(node=self._number(), nonce=self._nonce()),
        lambda self: p.Connected(node=self._number(), nonce=self._nonce()),
        lambda self: p.Proof(nonce=self._nonce()),
        lambda _: HELLO,
        lambda _: p.Members(index=2**62, addresses={1: "stranger:1", 77: "stranger:2"}),
        lambda self: p.Vote(candidate=self._number(), **self._votes()),
        lambda self: p.TransferVote(**self._votes()),
        lambda self: p.PreVote(**self._votes()),
        lambda self: p.VoteReply(term=self._term(), is_granted=True),
        lambda self: p.HintedVoteReply(is_granted=True, **self._reply()),
        lambda self: p.PreVoteReply(is_granted=True, **self._reply()),
        lambda self: p.AppendReply(index=self._index(), is_rejected=False, **self._reply()),
        lambda self: p.Heartbeat(term=self._term(), commit=self._index(), context=1),
        lambda self: p.HeartbeatReply(term=self._term(), context=2**63 - 1),
        lambda self: p.TimeoutNow(term=self._term()),
        lambda self: p.Read(origin=self._number(), context=1),
        lambda self: p.ReadReply(context=1, index=self._index()),
        lambda self: p.OfferReply(**self._place(), offset=0, standing=Standing.IS_WHOLE),
        lambda self: p.Chunk(**self._place(), offset=0, size=2**40, data=b"stranger"),
        lambda self: p.ChunkReply(**self._place(), offset=2**40, standing=Standing.GOES_ON),
        _append,
        _append,
        _offer,
    )


def run(stage: Stage, rounds: int, *flags: str | float, frames: int = FRAMES) -> None:
    """Send ``rounds`` times ``frames`` mutated frames, and compare term and leader before and after."""
    with (
        stage.group(*PATIENCE, *flags) as group,
        stage.work(group, workers=1) as load,
        _Sender(
            group, seed=stage.seed, leader=(before := group.wait_whole()).node, term=before.term
        ) as sender,
    ):
        sent = connections = 0
        sizes: dict[int, int] = {}
        files = {node: group.life(node).file_count() for node in group.nodes}
        for number in range(rounds):
            sent, connections = sender.send(frames)
            load.wait_for_more(1)
            if not sizes:
                sizes = {node: group.life(node).memory_size() for node in group.nodes}
            stage.say(f"round {number + 1} of {rounds}: {sent} mutated frames")
        after = group.wait_whole()
        stage.figures |= {"mutated_frames": sent, "connections": connections, "term": after.term}
        if (before.node, before.term) != (after.node, after.term):
            stage.problems.append(
                f"node {before.node} led in term {before.term}, now node {after.node} in {after.term}"
            )
        growth = {node: group.life(node).memory_size() - sizes[node] for node in group.nodes}
        stage.figures["memory_growth_mib_max"] = round(max(growth.values()) / 2**20, 1)
        if max(growth.values()) > MEMORY_GROWTH_MAX:
            stage.problems.append(f"memory grew by {growth} bytes")
        wait_until(
            lambda: all(
                group.life(node).file_count() <= files[node] + FILES_GROWTH_MAX
                for node in group.nodes
            ),
            "descriptors are closed",
        )
        stage.figures["lines_about_strangers"] = group.count("stranger")
        if not group.count("stranger"):
            stage.problems.append("no node said anything about strangers")


class _Sender:
    """A process that sends frames: the threads of the load would keep it waiting in this one."""

    def __init__(self, group: Cluster, *, seed: int, leader: int, term: int) -> None:
        addresses = [f"{host}:{port}" for host, port in map(group.peer_address, group.nodes)]
        words = [str(word) for word in (seed, leader, term, *addresses)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rigs.cluster.strangers", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            text=True,
        )

    def send(self, frames: int) -> tuple[int, int]:
        """Send so many mutated frames or a few more; return frames and connections so far, when all of these are closed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{frames}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the sender ended with {self._process.wait()}"
        sent, connections = map(int, line.split())
        return sent, connections

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class _Strangers:
    """Opens connections from loopback addresses in turn, a window at a time."""

    def __init__(self, frames: Frames, places: Sequence[tuple[int, tuple[str, int]]]) -> None:
        self._places = places  # numbers and addresses
        self._frames = frames
        self.sent = 0
        self.connections = 0

    def send(self, frames: int) -> None:
        goal = self.sent + frames
        while self.sent < goal:
            with contextlib.ExitStack() as stack:
                opened = [stack.enter_context(self._opened()) for _ in range(WINDOW)]
                for link in opened:
                    _wait_closed(link)

    def _opened(self) -> socket.socket:
        self.connections += 1
        node, address = self._places[self.connections % len(self._places)]
        source = f"127.0.1.{1 + self.connections % _SOURCES}"
        link = socket.create_connection(address, PATIENCE_SECONDS, (source, 0))
        data, judged = self._frames.connection(node)
        self.sent += judged
        with contextlib.suppress(OSError):  # the node may have closed after the first bytes
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
        return link


def _wait_closed(link: socket.socket) -> None:
    with contextlib.suppress(ConnectionError):
        while link.recv(2**12):
            pass


def main() -> None:
    """Send as many mutated frames as each line of stdin says, and answer with how many were sent in all, on how many links."""
    seed, leader, term, *places = sys.argv[1:]
    frames = Frames(Random(int(seed)), leader=int(leader), term=int(term))
    addresses = [(host, int(port)) for host, port in (place.rsplit(":", 1) for place in places)]
    strangers = _Strangers(frames, list(enumerate(addresses, 1)))
    for line in sys.stdin:
        strangers.send(int(line))
        sys.stdout.write(f"{strangers.sent} {strangers.connections}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
