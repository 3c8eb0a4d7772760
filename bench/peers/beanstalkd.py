"""beanstalkd with its write-ahead log synced on every write."""

from __future__ import annotations

import subprocess
from pathlib import Path

from peers.base import Conversation, Peer, Refused, Server, Wire
from peers.packages import environment, find

# Longer than any run: a reservation never comes back by itself.
TIME_TO_RUN_SECONDS = 3600


class BeanstalkdWire(Wire):
    def greet(self) -> None:
        name = self.queue.encode()
        self.socket.sendall(b"use %s\r\nwatch %s\r\nignore default\r\n" % (name, name))
        heard = b""
        while heard.count(b"\n") < 3:
            heard += self.receive()

    def put(self, payload: bytes) -> bytes:
        return b"put 0 0 %d %d\r\n%s\r\n" % (TIME_TO_RUN_SECONDS, len(payload), payload)

    def answers(self, data: bytes) -> int:
        if b"_" in data:  # INSERTED has none, every error word has one.
            raise Refused(data[:80].decode(errors="replace"))
        return data.count(b"\n")

    def take(self, count: int, *, wait: bool) -> Conversation:
        data = yield b"reserve-with-timeout %d\r\n" % (1 if wait else 0) * count
        jobs: list[bytes] = []
        position = heard = 0
        while heard < count:
            end = data.find(b"\r\n", position)
            words = data[position:end].split() if end >= 0 else []
            after = end + 2 + (int(words[2]) + 2 if words[:1] == [b"RESERVED"] else 0)
            if end < 0 or after > len(data):
                data = data[position:] + (yield b"")
                position = 0
                continue
            if words[0] == b"RESERVED":
                jobs.append(words[1])
            position, heard = after, heard + 1
        if jobs:
            data = yield b"".join(b"delete %s\r\n" % job for job in jobs)
            while data.count(b"\n") < len(jobs):
                data += yield b""
        return data.count(b"DELETED")


class Beanstalkd(Peer):
    name = "beanstalkd"
    promise = "`-f 0`: a sync on every write; reserve, then delete, each written a batch at a time"

    def obtain(self) -> str:
        self._program = find("beanstalkd", "usr/bin/beanstalkd")
        told = subprocess.run([self._program, "-v"], capture_output=True, text=True, check=True)
        return told.stdout.split()[-1]

    def launch(self, server: Server, home: Path, *, sync: bool) -> None:
        often = ["-f", "0"] if sync else ["-F"]
        command = [str(self._program), "-b", str(home), *often, "-l", "127.0.0.1"]
        server.run([*command, "-p", str(server.port)], cwd=home, env=environment(self._program))

    def connect(self, queue: str) -> Wire:
        return BeanstalkdWire(self.port, queue)
