"""Redis with its append-only file synced before every answer; a list is the queue."""

from __future__ import annotations

import subprocess
from pathlib import Path

from peers.base import Conversation, Peer, Refused, Server, Wire
from peers.packages import environment, find

# Moves a batch from the queue to the consumer's own list in one step, which is cheaper than a hundred LMOVE.
RESERVE = b"""local t = redis.call('LRANGE', KEYS[1], -ARGV[1], -1)
if #t > 0 then redis.call('LTRIM', KEYS[1], 0, -#t - 1) redis.call('RPUSH', KEYS[2], unpack(t)) end
return t"""


def command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


class RedisWire(Wire):
    def greet(self) -> None:
        self._key = self.queue.encode()
        self._mine = b"%s:%d" % (self._key, self.socket.getsockname()[1])
        self.socket.sendall(command(b"SCRIPT", b"LOAD", RESERVE))
        heard = self.receive()
        if not heard.startswith(b"$40"):
            raise Refused(heard.decode(errors="replace"))
        while heard.count(b"\n") < 2:
            heard += self.receive()
        self._script = heard.split()[1]

    def put(self, payload: bytes) -> bytes:
        return command(b"LPUSH", self._key, payload)

    def put_many(self, payloads: list[bytes]) -> tuple[bytes, int]:
        return command(b"LPUSH", self._key, *payloads), 1

    def answers(self, data: bytes) -> int:
        if b"-" in data:
            raise Refused(data[:80].decode(errors="replace"))
        return data.count(b"\n")

    def take(self, count: int, *, wait: bool) -> Conversation:
        if wait:
            request = command(b"BLMOVE", self._key, self._mine, b"RIGHT", b"LEFT", b"1")
        else:
            keys = (self._key, self._mine)
            request = command(b"EVALSHA", self._script, b"2", *keys, b"%d" % count)
        data = yield request
        while (found := count_values(data)) < 0:
            data += yield b""
        if found:
            data = yield command(b"DEL", self._mine)
            while not data.endswith(b"\n"):
                data += yield b""
        return found


class RedisPopWire(RedisWire):
    """Takes and removes in one command, and never waits."""

    def take(self, count: int, *, wait: bool) -> Conversation:
        del wait
        data = yield command(b"RPOP", self._key, b"%d" % count)
        while (found := count_values(data)) < 0:
            data += yield b""
        return found


def count_values(data: bytes) -> int:
    """Return how many strings a whole reply holds (none or a list or one), -1 while it is not whole."""
    end = data.find(b"\r\n")
    if end < 0:
        return -1
    if data[:1] == b"-":
        raise Refused(data[:80].decode(errors="replace"))
    if data[:1] == b"*":
        wanted, position = max(0, int(data[1:end])), end + 2
    else:
        wanted, position = 1, 0
    found = 0
    for _ in range(wanted):
        end = data.find(b"\r\n", position)
        if end < 0:
            return -1
        size = int(data[position + 1 : end])
        if size < 0:
            return 0
        position, found = end + 4 + size, found + 1
    return found if position <= len(data) else -1


class Redis(Peer):
    name = "Redis list"
    promise = (
        "`appendfsync always`; LPUSH; a script moves a batch to the consumer's own list, then DEL"
    )

    def obtain(self) -> str:
        self._program = find("redis-server", "usr/bin/redis-server")
        told = subprocess.run(
            [self._program, "--version"],
            capture_output=True,
            text=True,
            check=True,
            env=environment(self._program),
        )
        return told.stdout.split("v=")[1].split()[0]

    def launch(self, server: Server, home: Path, *, sync: bool) -> None:
        settings = {
            "bind": "127.0.0.1",
            "port": str(server.port),
            "dir": str(home),
            "appendonly": "yes",
            "appendfsync": "always" if sync else "everysec",
            "save": "",
        }
        words = [word for key, value in settings.items() for word in (f"--{key}", value)]
        server.run([str(self._program), *words], cwd=home, env=environment(self._program))

    def connect(self, queue: str) -> Wire:
        return RedisWire(self.port, queue)


class RedisPop(Redis):
    name = "Redis list, at most once"
    promise = "`appendfsync always`; RPOP with a count: a task is lost with the consumer that dies with it"

    def connect(self, queue: str) -> Wire:
        return RedisPopWire(self.port, queue)
