"""Recorded conversations of TaskFlux's own client with TaskFlux's own server, and their replay against a node.

One JSON object a line in tests/golden/taskflux_wire, in the order in which things happened: ``conn`` numbers the
connections, ``dir`` is ``c2s`` or ``s2c``, ``hex`` what was sent before the next answer, or exactly one answer. Without
bytes: ``open`` and ``close`` of the client, ``eof`` of the server. ``pause_ms``: the server must have taken in what other
connections did. ``chunk``: sent in pieces of so many bytes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from penstock.client.blocking import Client
from penstock.protocol import version1 as v1
from support.group_processes import wait_until
from support.node_process import NodeProcess
from support.wire import Wire

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "taskflux_wire"
PACKETS_MAX: Final = 10
"""Packets of a stream: a long conversation becomes several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a recording."""

    step: str
    connection: int
    is_request: bool
    data: bytes
    is_open: bool
    is_close: bool
    is_end: bool
    is_after_pause: bool
    piece_size: int | None


def scenarios(part: str) -> list[str]:
    """Return the names of the conversations in ``single`` or ``cluster``."""
    return sorted(path.stem for path in (GOLDEN / part).glob("*.jsonl"))


@cache
def recorded(part: str, scenario: str) -> tuple[Line, ...]:
    rows = (GOLDEN / part / f"{scenario}.jsonl").read_text().splitlines()
    return tuple(_line(json.loads(row)) for row in rows)


def _line(row: dict[str, object]) -> Line:
    return Line(
        step=str(row["step"]),
        connection=int(str(row["conn"])),
        is_request=row["dir"] == "c2s",
        data=bytes.fromhex(str(row["hex"])),
        is_open="open" in row,
        is_close="close" in row,
        is_end="eof" in row,
        is_after_pause="pause_ms" in row,
        piece_size=int(str(row["chunk"])) if "chunk" in row else None,
    )


class Replay:
    """Sends a recording to a node and compares every answer; texts, addresses and the order of queues may differ."""

    def __init__(self, node: NodeProcess, client: Client) -> None:
        self._node = node
        self._client = client
        self._wires: dict[int, _Connection] = {}
        self._with_task: set[int] = set()  # connections that owe a verdict on a task
        self.different: list[str] = []  # steps, in their order
        self.equal = 0

    def run(self, lines: tuple[Line, ...]) -> None:
        with contextlib.ExitStack() as stack:
            for line in lines:
                if line.is_after_pause:
                    self._settle()
                if line.is_open:
                    self._wires[line.connection] = stack.enter_context(_Connection(self._node.port))
                elif line.connection in self._wires:  # else it is out of step
                    self._take(line)

    def _settle(self) -> None:
        """Let the node take in what other connections sent, and that they left.

        All of that is in its sockets, and each answer to a ping ends a turn of its loop. A task of a connection that left
        is back when it is not on lease any more.
        """
        for _ in range(3):
            self._client.ping()
        wait_until(
            lambda: sum(stat.leased for stat in self._client.queues()) == len(self._with_task),
            "tasks of connections that left are back",
        )

    def _take(self, line: Line) -> None:
        wire = self._wires[line.connection]
        if line.is_request:
            self._with_task.discard(line.connection)
            size = line.piece_size or max(1, len(line.data))
            for start in range(0, len(line.data), size):
                wire.send(line.data[start : start + size])
            if line.is_close:
                wire.close()
            return
        found, expected = wire.answer(), None if line.is_end else _decoded(line.data)
        if isinstance(found, v1.Delivered):
            self._with_task.add(line.connection)
        if found == expected:
            self.equal += 1
            return
        self.different.append(line.step)
        if _is_out_of_step(found, expected):
            self._wires.pop(line.connection).close()
            self._with_task.discard(line.connection)


class _Connection(Wire):
    """A connection that is read answer by answer."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._data = b""

    def answer(self) -> v1.Response | None:
        """Return the next answer, ``None`` if the node ended the connection."""
        while (found := v1.decode_response(self._data)) is None:
            try:
                part = self.socket.recv(2**16)
            except ConnectionError:
                part = b""
            if not part:
                assert not self._data, "half an answer"
                return None
            self._data += part
        self._data = self._data[found[1] :]
        return _comparable(found[0])


def _decoded(data: bytes) -> v1.Response:
    found = v1.decode_response(data)
    assert found is not None
    assert found[1] == len(data)
    return _comparable(found[0])


def _comparable(response: v1.Response) -> v1.Response:
    match response:
        case v1.Authorized() | v1.Bootstrapped() if response.reason is not None:
            return replace(response, reason="")
        case v1.ErrorPacket() | v1.Failed() | v1.PolicyViolated():
            return replace(response, text="")
        case v1.Cluster():
            return replace(response, addresses=("",) * len(response.addresses))
        case v1.Listed():
            queues = sorted(response.queues, key=lambda queue: queue.name)
            return replace(response, queues=tuple(queues))
        case _:
            return response


def _is_out_of_step(found: v1.Response | None, expected: v1.Response | None) -> bool:
    """Return whether what follows in the recording has no meaning after another answer."""
    if found is None or expected is None or isinstance(found, v1.Bootstrapped):
        return True
    continued = v1.Ok | v1.Delivered
    return isinstance(found, continued) != isinstance(expected, continued)


def streams() -> list[bytes]:
    """Return what clients sent in all recordings, each behind its greeting and at most ``PACKETS_MAX`` packets long."""
    found: dict[bytes, None] = {}
    for part in ("single", "cluster"):
        for scenario in scenarios(part):
            for packets in _sent(recorded(part, scenario)):
                greeting, rest = packets[:2], packets[2:]
                found[b"".join(greeting)] = None
                for start in range(0, len(rest), PACKETS_MAX):
                    found[b"".join(greeting + rest[start : start + PACKETS_MAX])] = None
    return list(found)


def _sent(lines: tuple[Line, ...]) -> Iterator[list[bytes]]:
    sent: dict[int, list[bytes]] = {}
    for line in lines:
        if line.is_request and line.data:
            sent.setdefault(line.connection, []).append(line.data)
    yield from sent.values()
