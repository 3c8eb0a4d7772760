"""What a measured system has to offer: a server to start and kill, and a wire to speak to it over.

A wire is one connection. It builds requests as bytes and reads answers from bytes, so that the same loops
(``drive.py``) load every system and no client library stands between us and a server.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

# What one side says (bytes to send, none: just wait) and hears (bytes that came), until it returns
# the number of tasks that were removed.
Conversation = Generator[bytes, bytes, int]

READ_SIZE = 256 * 1024
# A server that has not answered for so long is broken: RabbitMQ with a million tasks needs a fifth of it.
START_SECONDS_MAX = 120.0
ANSWER_SECONDS_MAX = 60.0


class Unavailable(Exception):
    """A system cannot be had on this machine; the run goes on without it."""


class Refused(Exception):
    """A server answered with an error, or with something that is no answer at all."""


class Wire(ABC):
    """One connection to one queue, ready to use once built."""

    def __init__(self, port: int, queue: str) -> None:
        self.queue = queue
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.greet()
        except BaseException:
            self.socket.close()
            raise

    @abstractmethod
    def greet(self) -> None:
        """Log in, make the queue if it is missing, prepare statements."""

    @abstractmethod
    def put(self, payload: bytes) -> bytes:
        """Return the request that enqueues one task."""

    def put_many(self, payloads: list[bytes]) -> tuple[bytes, int]:
        """Return the request that enqueues a batch the cheapest way, and how many answers it gets."""
        return b"".join(map(self.put, payloads)), len(payloads)

    def put_stream(self, payloads: list[bytes]) -> tuple[bytes, int]:
        """Return a part of a pipelined load as the system's own client sends it, and its answers."""
        return b"".join(map(self.put, payloads)), len(payloads)

    @abstractmethod
    def answers(self, data: bytes) -> int:
        """Return how many more enqueue requests are answered, given bytes that came.

        Raises ``Refused`` when one of them was refused.
        """

    @abstractmethod
    def take(self, count: int, *, wait: bool) -> Conversation:
        """Reserve up to ``count`` tasks, then remove them; ``wait`` for the first if there is none."""

    def close(self) -> None:
        self.socket.close()

    def receive(self) -> bytes:
        """Return what has come, at least a byte."""
        data = self.socket.recv(READ_SIZE)
        if not data:
            raise Refused("the server closed the connection")
        return data


@dataclass
class Server:
    """The processes of one running system."""

    log: Path
    port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(
        self, command: list[str], *, cwd: Path, env: dict[str, str] | None, ours: bool = False
    ) -> None:
        """Start one process of the system; only our own runs as whoever runs the benchmark."""
        owner = None if ours else unprivileged()
        with open(self.log, "ab") as log:
            self.processes.append(
                subprocess.Popen(
                    command,
                    cwd=cwd,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    user=owner and owner[0],
                    group=owner and owner[1],
                    extra_groups=owner and [],
                )
            )

    def pids(self) -> list[int]:
        """Return every process of the system, children and grandchildren included."""
        return self.tree(self.processes)

    def tree(self, processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
        """Return processes with their children and grandchildren."""
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                parents.setdefault(_parent(entry), []).append(int(entry.name))
        found = [process.pid for process in processes if process.poll() is None]
        for pid in found:  # Grows while we walk it, until no process has further children.
            found.extend(parents.get(pid, []))
        return found

    def signal(self, number: signal.Signals) -> None:
        for pid in self.pids():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kill(self) -> None:
        """End it as a power cut of the process would: no process has a say."""
        pids = self.pids()
        self.signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        while any(Path(f"/proc/{pid}").exists() and _parent(Path(f"/proc/{pid}")) for pid in pids):
            time.sleep(0.002)
        self.processes.clear()

    def memory(self) -> int:
        """Return resident bytes; a page that processes share is counted once."""
        return sum(_proportional_size(pid) for pid in self.pids())


class Peer(ABC):
    """A system to measure."""

    name: ClassVar[str]
    # How it is made to sync before it answers, and how tasks are reserved and removed.
    promise: ClassVar[str]

    def __init__(self) -> None:
        self.server: Server | None = None

    @abstractmethod
    def obtain(self) -> str:
        """Find or fetch the programs and return the version. Raises ``Unavailable``."""

    def prepare(self, home: Path) -> None:  # noqa: B027 - most need nothing.
        """Make what the server needs in its fresh directory, once."""

    @abstractmethod
    def launch(self, server: Server, home: Path, *, sync: bool) -> None:
        """Start the processes; without ``sync`` where the system can do so, to fill it fast."""

    @abstractmethod
    def connect(self, queue: str) -> Wire:
        """Return a new connection."""

    @property
    def port(self) -> int:
        assert self.server is not None, "started"
        return self.server.port

    def start(self, home: Path, *, sync: bool) -> float:
        """Start in ``home`` and return the seconds until a connection could be used."""
        if not home.exists():
            home.mkdir()
            give_away(home)
            self.prepare(home)
        self.server = Server(home.parent / f"{home.name}.log", free_port())
        begin = time.perf_counter()
        self.launch(self.server, home, sync=sync)
        while True:
            try:
                self.connect("start").close()
                return time.perf_counter() - begin
            except (OSError, Refused) as failure:
                self._check_alive(failure, begin)
                time.sleep(0.002)

    def kill(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server = None

    def pause(self) -> None:
        """Freeze it, so that its background work does not disturb the others' figures."""
        if self.server is not None:
            self.server.signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.server is not None:
            self.server.signal(signal.SIGCONT)

    def _check_alive(self, failure: Exception, begin: float) -> None:
        assert self.server is not None, "started"
        dead = any(process.poll() is not None for process in self.server.processes)
        if dead or time.perf_counter() - begin > START_SECONDS_MAX:
            tail = self.server.log.read_text(errors="replace")[-2000:]
            raise Unavailable(f"{self.name} does not start: {failure}\n{tail}") from failure


def unprivileged() -> tuple[int, int] | None:
    """Return whom to run somebody else's server as: never root, whom most of them refuse anyway."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def give_away(path: Path) -> None:
    """Make a directory belong to whom the servers run as."""
    owner = unprivileged()
    if owner:
        os.chown(path, *owner)


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return so many different ports that nobody has at this moment."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in held:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in held]


def say(words: str) -> None:
    sys.stderr.write(words + "\n")
    sys.stderr.flush()


def _parent(process: Path) -> int:
    """Return the parent's id; 0 for a process that is gone or only waits to be reaped."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except (OSError, IndexError):
        return 0
    return 0 if fields[0] == "Z" else int(fields[1])


def _proportional_size(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
