"""``penstock dev-cluster``: a group on this machine in one command, for trying things out.

Each node is a ``penstock serve`` of its own, as on machines of their own. Nothing is decided here but ports.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from penstock.cli.output import Exit, emit, printable, say
from penstock.cli.paths import new_directory
from penstock.errors import ConnectionFailed

NODES_MAX: Final = 9
BASE_PORT: Final = 2602
PEERS_OFFSET: Final = 100
"""Between the ports for clients and those among nodes: as many as there are nodes lie between."""

START_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.1
RESTART_SECONDS: Final = 1.0
"""Before a node is started again: one that cannot start must not keep the machine busy."""

_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a node is."""

    node: int
    data: Path
    client_port: int
    peer_port: int

    @property
    def address(self) -> str:
        return f"{_LOOPBACK}:{self.client_port}"

    @property
    def peer_address(self) -> str:
        return f"{_LOOPBACK}:{self.peer_port}"


@dataclass(frozen=True, slots=True)
class _News:
    """Something that the main thread has to hear."""

    kind: Literal["listening", "leading", "ended", "signal"]
    node: int | None = None
    code: int = 0


def dev_cluster(
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=NODES_MAX, help="How many.")] = 3,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            parser=new_directory,
            help="Where their directories are; else they go with the command.",
        ),
    ] = None,
    base_port: Annotated[
        int,
        typer.Option(
            "--base-port",
            min=0,
            max=65_535 - PEERS_OFFSET - NODES_MAX,
            help="The first node's port; 0: whatever is free.",
        ),
    ] = BASE_PORT,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start a node again that ended by itself.")
    ] = False,
) -> None:
    """Start a group of nodes on this machine, and print where they are, until Ctrl-C.

    Their log lines go to stderr, each with the number of its node. A node that ends is told of, and stays away.

    \b
    Examples:
      penstock dev-cluster
      penstock dev-cluster --nodes 5 --data cluster --base-port 2800 --restart
    """
    with contextlib.ExitStack() as stack:
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")))
        group = _Group(_places(nodes, data, base_port), is_restarting=restart)
        stack.enter_context(group.hearing_signals())
        is_well = group.run()
    raise typer.Exit(Exit.OK if is_well else Exit.DAMAGE)


def _places(count: int, data: Path, base_port: int) -> list[_Place]:
    if base_port:
        starts = (base_port, base_port + PEERS_OFFSET)
        ports = [port for start in starts for port in range(start, start + count)]
    else:
        ports = _free_ports(2 * count)
    return [
        _Place(number + 1, data / f"node-{number + 1}", ports[number], ports[count + number])
        for number in range(count)
    ]


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody has; somebody may be faster than the nodes, who then say so."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server((_LOOPBACK, 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in held]


class _Group:
    """The processes, and what they say."""

    def __init__(self, places: list[_Place], *, is_restarting: bool) -> None:
        self._places = {place.node: place for place in places}
        self._peers = ",".join(f"{place.node}={place.peer_address}" for place in places)
        self._is_restarting = is_restarting
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._threads: list[threading.Thread] = []
        self._silent = set(self._places)  # nodes that have not listened yet
        self._is_stopping = False

    @contextlib.contextmanager
    def hearing_signals(self) -> Iterator[None]:
        """Take SIGINT, SIGTERM and SIGHUP as news while the block runs."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {
            number: signal.signal(number, lambda *_: self._news.put(_News("signal")))
            for number in numbers
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self) -> bool:
        """Run the nodes until a signal comes, and return whether it was that what ended them."""
        try:
            for node in self._places:
                self._start(node)
            return self._watch()
        finally:
            self._is_stopping = True
            self._end(signal.SIGKILL)
            for thread in self._threads:
                thread.join()

    def _start(self, node: int) -> None:
        place = self._places[node]
        words = ["serve", "--data", str(place.data), "--listen", place.address]
        words += ["--node", str(node), "--peers", self._peers]
        process = subprocess.Popen(  # noqa: S603 - our own program, with our own words
            [sys.executable, "-m", "penstock.cli.main", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,  # Ctrl-C reaches us alone: nodes are told once
        )
        self._processes[node] = process
        self._begin(self._read, node, process)

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _read(self, node: int, process: subprocess.Popen[str]) -> None:
        """Pass on what a node says until it ends; in a thread of its own."""
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                sys.stderr.write(f"[{node}] {printable(line.rstrip())}\n")
                if '"event": "listening"' in line:
                    self._news.put(_News("listening", node))
        self._news.put(_News("ended", node, process.wait()))

    def _watch(self) -> bool:
        """Hear news until all nodes have ended."""
        is_asked = False
        while self._processes:
            news = self._news.get()
            match news.kind:
                case "signal":
                    # Once is asking, twice is insisting.
                    self._end(signal.SIGKILL if self._is_stopping else signal.SIGTERM)
                    self._is_stopping = is_asked = True
                case "listening":
                    self._note_listening(news.node)
                case "leading":
                    self._tell(news.node)
                case "ended":
                    self._note_ended(news.node, news.code)
        return is_asked

    def _note_listening(self, node: int | None) -> None:
        if node in self._silent:
            self._silent.discard(node)
            if not self._silent:
                self._begin(self._look_for_leader)

    def _look_for_leader(self) -> None:
        """Wait until a node leads; in a thread of its own."""
        self._news.put(_News("leading", self._leader()))

    def _note_ended(self, node: int | None, code: int) -> None:
        """Tell of a node that ended by itself, and start it again if that is wanted."""
        assert node is not None
        del self._processes[node]
        if self._is_stopping:
            return
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if self._silent:
            say(f"node {node} did not start ({cause}); the others are stopped")
            self._is_stopping = True
            self._end(signal.SIGTERM)
        elif self._is_restarting:
            say(f"node {node} ended ({cause}) and is started again")
            time.sleep(RESTART_SECONDS)
            self._start(node)
        else:
            say(f"node {node} ended ({cause})")

    def _end(self, number: int) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    @property
    def _connect(self) -> str:
        return ",".join(place.address for place in self._places.values())

    def _tell(self, leader: int | None) -> None:
        """Print where the nodes are, now that all of them listen."""
        nodes = [self._described(node) for node in self._places]
        emit({"connect": self._connect, "leader": leader, "nodes": nodes})
        sys.stdout.flush()

    def _described(self, node: int) -> dict[str, Any]:
        place = self._places[node]
        return {
            "node": node,
            "address": place.address,
            "peer_address": place.peer_address,
            "data": str(place.data),
            "pid": self._processes[node].pid if node in self._processes else None,
        }

    def _leader(self) -> int | None:
        """Wait until a node leads, and return its number; ``None`` if that takes too long."""
        from penstock.client.blocking import connect

        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and not self._is_stopping:
            with (
                contextlib.suppress(ConnectionFailed),
                connect(self._connect, retry=LOOK_SECONDS) as client,
            ):
                info = client.cluster()
                if info.is_leading:
                    return info.node
            time.sleep(LOOK_SECONDS)
        return None
