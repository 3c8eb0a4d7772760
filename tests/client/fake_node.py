"""A node of the tests: real sockets and the real codec around a few dictionaries.

It breaks connections on request: before it applied a request, or after that and before the answer.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

from penstock.errors import BadData
from penstock.model import Policy, QueueName, QueueOptions
from penstock.protocol import version1
from penstock.protocol import version2 as v2
from penstock.protocol.frames import FrameReader
from penstock.protocol.version2 import Answer, Request

Answers = list[tuple[int, Answer]]


@dataclass
class FakeQueue:
    create: v2.Create
    tasks: list[tuple[int, int, bytes]] = field(default_factory=list)  # (key, id, payload)
    attempts: dict[int, int] = field(default_factory=dict)
    last_id: int = 0

    @property
    def count_max(self) -> int:
        limit = self.create.policy.size_max
        return 2**31 if limit is None else limit


@dataclass(eq=False)
class Peer:
    """One connection, as the node sees it."""

    sock: socket.socket
    leases: dict[int, tuple[QueueName, tuple[int, int, bytes]]] = field(default_factory=dict)
    subscriptions: dict[int, v2.Subscribe] = field(default_factory=dict)
    waiting: dict[int, v2.Dequeue] = field(default_factory=dict)
    by_token: dict[int, int] = field(default_factory=dict)  # token to subscription
    started: set[int] = field(default_factory=set)  # tokens
    acked: set[int] = field(default_factory=set)  # tokens whose ack was announced


class FakeNode:
    """Listens on a loopback port until closed."""

    def __init__(self, port: int = 0) -> None:
        self.queues: dict[QueueName, FakeQueue] = {}
        self.add_queue("")
        self.requests: list[Request] = []  # all that were read, in order
        self.taken: dict[tuple[bytes, int], v2.Enqueued] = {}
        self.refusal: str | None = None  # refuses the greeting
        self.script: Callable[[Request], Answer | None] = lambda _request: None
        self.greetings = 0
        self.is_mute = False  # reads and says nothing
        self.refuses: v2.Failed | None = None  # what a node that does not lead answers
        self.cluster: v2.ClusterInfo | None = None
        self._drops: list[tuple[type[Request], int, bool]] = []
        self._tokens = count(1)
        self._indexes = count(1)
        self.changed = threading.Condition()
        self._peers: set[Peer] = set()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add_queue(self, name: str) -> None:
        queue = QueueName(name)
        self.queues[queue] = FakeQueue(v2.Create(queue, Policy()))

    def drop(self, kind: type[Request], *, nth: int = 1, applied: bool) -> None:
        """Break the connection at the nth request of a kind from now on, applied or not, unanswered."""
        with self.changed:
            self._drops.append((kind, nth + self.count(kind), applied))

    def count(self, kind: type[Request]) -> int:
        return sum(isinstance(request, kind) for request in self.requests)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout=10), "the node never saw it"

    def disconnect(self) -> None:
        """Break every connection."""
        with self.changed:
            for peer in list(self._peers):
                self._end(peer)

    def step_down(self, failed: v2.Failed) -> None:
        """Lead no more: leases and subscriptions end, and those who wait are told."""
        with self.changed:
            self.refuses = failed
            for peer in self._peers:
                ended = [*peer.subscriptions, *peer.waiting]
                peer.subscriptions.clear()
                peer.waiting.clear()
                for token in list(peer.leases):
                    self._end_lease(peer, token)
                self._send(peer, [(number, failed) for number in ended])

    def share(self, other: FakeNode) -> None:
        """Have the queues of another node: both are of one group."""
        self.queues, self.taken = other.queues, other.taken

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.disconnect()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    # --- connections ---

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = Peer(sock)
            with self.changed:
                self._peers.add(peer)
            thread = threading.Thread(target=self._serve, args=(peer,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer: Peer) -> None:
        with suppress(OSError, BadData):
            rest = self._greet(peer)
            frames = FrameReader()
            data = rest
            while rest is not None:
                for kind, number, body in frames.receive(data) if data else []:
                    self._take(peer, number, v2.decode_request(kind, body))
                data = peer.sock.recv(65536)
                if not data:
                    break
        with self.changed:
            self._end(peer)

    def _greet(self, peer: Peer) -> bytes:
        data, seen = b"", 0
        while seen < 2:
            packet = version1.decode_request(data)
            if packet is None:
                more = peer.sock.recv(65536)
                if not more:
                    raise OSError("gone")
                data += more
                continue
            seen, data = seen + 1, data[packet[1] :]
        self.greetings += 1
        peer.sock.sendall(version1.encode_response(version1.Authorized(reason=None)))
        peer.sock.sendall(version1.encode_response(version1.Bootstrapped(reason=self.refusal)))
        if self.refusal is not None:
            raise OSError("refused")
        return data

    def _end(self, peer: Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        with suppress(OSError):
            peer.sock.shutdown(socket.SHUT_RDWR)
        peer.sock.close()
        for token in list(peer.leases):
            self._end_lease(peer, token)
        self._deliver()
        self.changed.notify_all()

    def _take(self, peer: Peer, number: int, request: Request) -> None:
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()
            drop = next(
                (d for d in self._drops if isinstance(request, d[0]) and self.count(d[0]) == d[1]),
                None,
            )
            if drop is not None and not drop[2]:
                raise OSError("dropped before")
            answer = self.script(request)
            if isinstance(request, v2.Start):
                self._start(peer, request)
                return
            answers = [(number, answer)] if answer else self._answer(peer, number, request)
            if drop is not None:
                raise OSError("dropped after")
            if not self.is_mute:
                self._send(peer, answers)
                self._deliver()

    def _send(self, peer: Peer, answers: Answers) -> None:
        data = b"".join(v2.encode_answer(answer, number) for number, answer in answers)
        with suppress(OSError):
            peer.sock.sendall(data)

    # --- what requests do ---

    def _answer(self, peer: Peer, number: int, request: Request) -> Answers:
        assert not isinstance(request, v2.Start)
        is_for_leader = not isinstance(request, v2.Ping | v2.Node | v2.Read | v2.Cluster)
        if self.refuses is not None and is_for_leader:
            return [(number, self.refuses)]
        match request:
            case v2.Cluster():
                assert self.cluster is not None
                return [(number, self.cluster)]
            case v2.ChangeMembers() | v2.Transfer():
                return [(number, v2.Ok())]
            case v2.Ping():
                return [(number, v2.Ok())]
            case v2.Node():
                return [(number, NODE)]
            case v2.Ack() | v2.Nack() | v2.Release() | v2.Extend():
                return [(number, self._settle(peer, request))]
            case v2.Read():
                return [(number, self._read(request))]
            case v2.Stat(queue=None):
                return [(number, v2.Stats([self._stat(each) for each in self.queues.values()]))]
            case v2.Create():
                return [(number, self._create(request))]
            case v2.Unsubscribe():
                if peer.subscriptions.pop(request.subscription, None) is None:
                    return [(number, v2.Failed(v2.Failure.INVALID, "no subscription"))]
                for token in [*peer.leases]:
                    if peer.by_token[token] == request.subscription and token not in peer.started:
                        self._end_lease(peer, token)
                return [(number, v2.Ok())]
        assert request.queue is not None
        queue = self.queues.get(request.queue)
        if queue is None:
            return [(number, v2.Failed(v2.Failure.QUEUE_MISSING, "missing"))]
        match request:
            case v2.Enqueue():
                return [(number, self._enqueue(queue, request))]
            case v2.Dequeue():
                if queue.tasks or not request.wait_ms:
                    return [(number, self._lease(peer, queue, request.count_max, request.lease_ms))]
                peer.waiting[number] = request
                return []
            case v2.Subscribe():
                peer.subscriptions[number] = request
                return [(number, v2.Ok())]
            case v2.Peek():
                return [(number, self._peek(queue, request.count_max))]
            case v2.Purge():
                purged = v2.Purged(len(queue.tasks))
                queue.tasks.clear()
                return [(number, purged)]
            case v2.Delete():
                del self.queues[request.queue]
                return [(number, v2.Ok())]
            case v2.Stat():
                return [(number, v2.Stats([self._stat(queue)]))]

    def _create(self, request: v2.Create) -> Answer:
        if request.queue in self.queues:
            return v2.Failed(v2.Failure.QUEUE_EXISTS, "exists")
        self.queues[request.queue] = FakeQueue(request)
        return v2.Ok()

    def _enqueue(self, queue: FakeQueue, request: v2.Enqueue) -> Answer:
        assert request.producer is not None
        name = (request.producer.id, request.producer.sequence)
        if name in self.taken:
            return self.taken[name]
        total = len(request.keys)
        if len(queue.tasks) + total > queue.count_max:
            return v2.Enqueued([v2.Run(v2.Outcome.QUEUE_FULL, total, 0)])
        first = queue.last_id + 1
        queue.last_id += total
        ids = range(first, first + total)
        queue.tasks += zip(request.keys, ids, request.payloads, strict=True)
        queue.tasks.sort()
        self.taken[name] = v2.Enqueued([v2.Run(v2.Outcome.ACCEPTED, total, first)])
        return self.taken[name]

    def _lease(
        self, peer: Peer, queue: FakeQueue, count_max: int, lease_ms: int, by: int = 0
    ) -> v2.Delivered:
        taken, queue.tasks[:] = queue.tasks[:count_max], queue.tasks[count_max:]
        tokens = [next(self._tokens) for _ in taken]
        for token, task in zip(tokens, taken, strict=True):
            peer.leases[token] = (queue.create.queue, task)
            peer.by_token[token] = by
        return v2.Delivered(
            tokens[0] if tokens else 0,
            lease_ms or queue.create.lease_ms or 60_000,
            [task[1] for task in taken],
            [task[0] for task in taken],
            [queue.attempts.get(task[1], 0) + 1 for task in taken],
            [task[2] for task in taken],
        )

    def _deliver(self) -> None:
        """Serve subscriptions with room and dequeues that wait."""
        for peer in list(self._peers):
            for number, waiting in list(peer.waiting.items()):
                queue = self.queues[waiting.queue]
                if queue.tasks:
                    del peer.waiting[number]
                    delivered = self._lease(peer, queue, waiting.count_max, waiting.lease_ms)
                    self._send(peer, [(number, delivered)])
            for number, request in peer.subscriptions.items():
                queue = self.queues[request.queue]
                out = sum(peer.by_token[token] == number for token in peer.leases)
                if queue.tasks and out < request.prefetch:
                    room = request.prefetch - out
                    delivered = self._lease(peer, queue, room, request.lease_ms, by=number)
                    self._send(peer, [(number, delivered)])

    def _start(self, peer: Peer, request: v2.Start) -> None:
        peer.started.update(request.tokens)
        peer.acked.update(request.acked)

    def _settle(self, peer: Peer, request: v2.Ack | v2.Nack | v2.Release | v2.Extend) -> Answer:
        lost = [token for token in request.tokens if token not in peer.leases]
        for token in request.tokens:
            if token in peer.leases and isinstance(request, v2.Nack | v2.Release):
                self._return(peer, token, is_attempt=isinstance(request, v2.Nack))
            elif isinstance(request, v2.Ack):
                peer.leases.pop(token, None)
        return v2.Settled(lost)

    def _return(self, peer: Peer, token: int, *, is_attempt: bool) -> None:
        name, task = peer.leases.pop(token)
        queue = self.queues.get(name)
        if queue is not None:
            queue.tasks.append(task)
            queue.tasks.sort()
            queue.attempts[task[1]] = queue.attempts.get(task[1], 0) + is_attempt

    def _end_lease(self, peer: Peer, token: int) -> None:
        """End a lease that nobody settled."""
        if token in peer.acked:
            del peer.leases[token]
        else:
            is_prefetched = bool(peer.by_token[token]) and token not in peer.started
            self._return(peer, token, is_attempt=not is_prefetched)

    def _peek(self, queue: FakeQueue, count_max: int) -> Answer:
        tasks = queue.tasks[:count_max]
        keys, ids, payloads = zip(*tasks, strict=True) if tasks else ((), (), ())
        return v2.Peeked(ids, keys, [queue.attempts.get(i, 0) for i in ids], payloads)

    def _stat(self, queue: FakeQueue) -> v2.QueueStat:
        create = queue.create
        return v2.QueueStat(
            name=create.queue,
            policy=create.policy,
            options=QueueOptions(
                lease_ms=create.lease_ms or 60_000,
                attempts_max=create.attempts_max,
                dead_letter=create.dead_letter,
            ),
            count=len(queue.tasks),
            leased=sum(n == create.queue for p in self._peers for n, _ in p.leases.values()),
            delayed=0,
            size=sum(len(task[2]) for task in queue.tasks),
            last_id=queue.last_id,
        )

    def _read(self, request: v2.Read) -> Answer:
        if request.first < FIRST_ENTRY:
            return v2.Failed(v2.Failure.COMPACTED, "gone", FIRST_ENTRY)
        indexes = range(request.first, min(request.first + 3, LAST_ENTRY + 1))
        payloads = [b"%d" % index for index in indexes]
        return v2.Entries(3, request.first, LAST_ENTRY, [1] * len(payloads), payloads)


FIRST_ENTRY = 5
LAST_ENTRY = 15

NODE = v2.NodeInfo(
    node=0,
    leader=0,
    version="fake",
    generation=3,
    term=1,
    first=FIRST_ENTRY,
    committed=LAST_ENTRY,
    frame_size_max=2**20,
    payload_size_max=2**20,
)


@contextmanager
def fake_node() -> Iterator[FakeNode]:
    node = FakeNode()
    try:
        yield node
    finally:
        node.close()
