"""A node in a process of its own: started, watched, told to stop, killed.

Nothing sleeps: the node says on stderr what happens to it, and a thread here listens.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Final, Self

from penstock.client.blocking import Client, connect
from support.forking import COMMAND_LINE, Forked
from support.wire import Wire, Wire2

PATIENCE_SECONDS: Final = 60.0
"""For machines that are busy with something else; a test that gets here has failed."""


class NodeProcess:
    """``penstock serve`` on a directory, with a port that the system chose."""

    def __init__(
        self,
        data: Path,
        *flags: str | float,
        listen: str = "127.0.0.1:0",
        before: str = "",
        prepare: Callable[[], None] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Start it. ``before`` is Python that runs ahead of the node in its process."""
        self.data = data
        words = ["serve", "--data", str(data), "--listen", listen, *map(str, flags)]
        hearing, stderr = os.pipe()
        self._stderr = open(hearing, "rb")  # noqa: SIM115 - the thread below closes it
        try:
            self._process: Forked | subprocess.Popen[bytes] = (
                _started(words, before, prepare, descriptors, stderr)
                if before or prepare or descriptors
                else _forked(words, stderr)
            )
        finally:
            os.close(stderr)
        self.events: list[dict[str, Any]] = []  # JSON lines that it said
        self.words: list[str] = []  # all other lines
        self._changed = Condition()
        self._is_silent = False  # whether its stderr has ended
        self._listening = Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        with self._stderr as lines:
            for raw in lines:
                line = raw.decode().rstrip("\n")
                with self._changed:
                    if line.startswith("{"):
                        self.events.append(json.loads(line))
                    else:
                        self.words.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._is_silent = True
            self._changed.notify_all()

    # What it said.

    def said(self, event: str) -> list[dict[str, Any]]:
        with self._changed:
            return [row for row in self.events if row["event"] == event]

    def wait_said(self, event: str, *, count: int = 1) -> dict[str, Any]:
        """Wait until it has said something ``count`` times, and return the last of them."""
        with self._changed:
            is_there = self._changed.wait_for(
                lambda: len(self.said(event)) >= count or self._is_silent, PATIENCE_SECONDS
            )
            found = self.said(event)
        assert is_there, f"the node did not say {event!r}: {self.events} {self.words}"
        assert len(found) >= count, f"the node ended: {self.events} {self.words}"
        return found[count - 1]

    def ends_instead_of(self, event: str) -> bool:
        """Wait until it says something or ends, and return whether it ended first."""
        with self._changed:
            self._changed.wait_for(lambda: self.said(event) or self._is_silent, PATIENCE_SECONDS)
            return not self.said(event)

    def wait_listening(self) -> Self:
        self.wait_said("listening")
        return self

    @property
    def address(self) -> str:
        return str(self.wait_said("listening")["address"])

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    # Talking to it.

    def client(self, *, timeout: float = PATIENCE_SECONDS, retry: float = 0.0) -> Client:
        return connect(self.address, timeout=timeout, retry=retry)

    def wire(self) -> Wire:
        """Return a bare connection."""
        return Wire(self.port)

    def wire1(self) -> Wire:
        """Return a connection that has been greeted in version 1."""
        wire = Wire(self.port)
        wire.greet(1)
        return wire

    def wire2(self) -> Wire2:
        wire = Wire2(self.port)
        wire.greet(2)
        return wire

    # Its life.

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def memory_size(self, field: str = "VmRSS") -> int:
        """Return the bytes of memory that it has, or had at most (``VmHWM``)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {field}")

    def forget_peak(self) -> None:
        """Let ``VmHWM`` begin anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def file_count(self) -> int:
        """Return how many descriptors it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end and return its exit code; negative for a signal."""
        code = self._process.wait(PATIENCE_SECONDS)
        self._listening.join(PATIENCE_SECONDS)
        return code

    def stop(self) -> int:
        """Ask it to stop and return its exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it as the system would in need of memory; harmless when it has ended."""
        self._process.kill()
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _forked(words: Sequence[str], stderr: int) -> Forked:
    with open(os.devnull, "r+b") as nothing:
        return Forked(words, stdin=nothing.fileno(), stdout=nothing.fileno(), stderr=stderr)


def _started(
    words: Sequence[str],
    before: str,
    prepare: Callable[[], None] | None,
    descriptors: Sequence[int],
    stderr: int,
) -> subprocess.Popen[bytes]:
    """Start a Python of its own, in which ``before`` runs ahead of everything."""
    code = f"import sys; sys.argv[0] = 'penstock'\n{before}\n{COMMAND_LINE}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=descriptors,
        preexec_fn=prepare,  # noqa: PLW1509 - the child only lowers a limit of its own
    )


def start(
    data: Path,
    *flags: str | float,
    before: str = "",
    prepare: Callable[[], None] | None = None,
) -> NodeProcess:
    """Start a node and wait until it listens."""
    node = NodeProcess(data, *flags, before=before, prepare=prepare)
    try:
        return node.wait_listening()
    except BaseException:
        node.kill()
        raise


@contextmanager
def attacked(data: Path, *flags: str | float) -> Iterator[NodeProcess]:
    """Start a node for tests that attack it, and check in the end that it reported no bug and printed nothing else."""
    with start(data, *flags) as running:
        yield running
        assert running.said("bug") == []
        assert running.words == []


def file_size_limit(size: int) -> Callable[[], None]:
    """Return what makes every file of a process end at ``size``: its disk is full there."""

    def prepare() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return prepare


def descriptor_limit(count: int, *, hard: int | None = None) -> Callable[[], None]:
    def prepare() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (count, count if hard is None else hard))

    return prepare
