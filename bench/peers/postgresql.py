"""PostgreSQL as a queue: a table, SKIP LOCKED, every commit synced."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from peers.base import Conversation, Peer, Refused, Server, Unavailable, Wire, unprivileged
from peers.packages import environment, find

BATCH = 100
PROTOCOL_VERSION = 196608
USER = "bench"


def message(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return kind + struct.pack(">I", len(body) + 4) + body


def text(words: str) -> bytes:
    return words.encode() + b"\0"


def execute(statement: str, values: list[bytes]) -> bytes:
    """Return one execution of a prepared statement, a transaction of its own."""
    arguments = b"".join(struct.pack(">I", len(value)) + value for value in values)
    bind = text("") + text(statement) + struct.pack(">HHH", 1, 1, len(values)) + arguments
    return (
        message(b"B", bind, struct.pack(">HH", 1, 1))
        + message(b"E", text(""), struct.pack(">I", 0))
        + message(b"S")
    )


class PostgresqlWire(Wire):
    def greet(self) -> None:
        self._rest = b""
        table = f'"{self.queue}"'
        words = text("user") + text(USER) + text("database") + text("postgres") + b"\0"
        self._ask(message(b"", struct.pack(">I", PROTOCOL_VERSION), words))
        self._ask(
            message(
                b"Q",
                text(
                    "SET client_min_messages = error;"
                    f"CREATE TABLE IF NOT EXISTS {table} (id bigint GENERATED ALWAYS AS IDENTITY"
                    " PRIMARY KEY, payload bytea NOT NULL)"
                ),
            )
        )
        many = ",".join(f"(${number})" for number in range(1, BATCH + 1))
        # The array makes the planner look the ids up one by one, whatever it believes of the table.
        taken = f"SELECT id FROM {table} ORDER BY id FOR UPDATE SKIP LOCKED LIMIT $1"
        self._prepare("put", f"INSERT INTO {table} (payload) VALUES ($1)")
        self._prepare("many", f"INSERT INTO {table} (payload) VALUES {many}")
        self._prepare(
            "take", f"DELETE FROM {table} WHERE id = ANY (ARRAY ({taken})) RETURNING id, payload"
        )

    def _prepare(self, name: str, statement: str) -> None:
        parse = text(name) + text(statement) + struct.pack(">H", 0)
        self._ask(message(b"P", parse) + message(b"S"))

    def _ask(self, request: bytes) -> None:
        self.socket.sendall(request)
        while not self.answers(self.receive()):
            pass

    def put(self, payload: bytes) -> bytes:
        return execute("put", [payload])

    def put_many(self, payloads: list[bytes]) -> tuple[bytes, int]:
        if len(payloads) != BATCH:
            return super().put_many(payloads)
        return execute("many", payloads), 1

    def answers(self, data: bytes) -> int:
        ready, _ = self._read(data)
        return ready

    def take(self, count: int, *, wait: bool) -> Conversation:
        del wait  # There is nothing to wait on: a consumer asks again.
        data = yield execute("take", [struct.pack(">Q", count)])
        ready, rows = self._read(data)
        while not ready:
            ready, more = self._read((yield b""))
            rows += more
        return rows

    def _read(self, data: bytes) -> tuple[int, int]:
        """Return how many times the server got ready, and how many rows came."""
        data = self._rest + data if self._rest else data
        position = ready = rows = 0
        while position + 5 <= len(data):
            kind = data[position]
            end = position + 1 + int.from_bytes(data[position + 1 : position + 5], "big")
            if end > len(data):
                break
            if kind == 0x5A:  # Z, ready for the next query: the transaction is on the disk
                ready += 1
            elif kind == 0x44:  # D, a row
                rows += 1
            elif kind == 0x45:  # E, an error
                raise Refused(
                    data[position + 5 : end].replace(b"\0", b" ").decode(errors="replace")
                )
            position = end
        self._rest = data[position:]
        return ready, rows


class Postgresql(Peer):
    name = "PostgreSQL"
    promise = (
        "`fsync`, `synchronous_commit` on; INSERT; DELETE of a SELECT … FOR UPDATE SKIP LOCKED, one"
        " transaction: a task is lost with the consumer that dies with it"
    )

    def obtain(self) -> str:
        self._program = find("postgresql", "usr/lib/postgresql/*/bin/postgres")
        told = subprocess.run(
            [self._program, "--version"],
            capture_output=True,
            text=True,
            check=True,
            env=environment(self._program),
        )
        return told.stdout.split()[2]

    def prepare(self, home: Path) -> None:
        owner = unprivileged()
        command = [str(self._program.with_name("initdb")), "--pgdata", str(home / "data")]
        done = subprocess.run(
            [*command, "--auth", "trust", "--username", USER, "--no-locale", "--encoding", "UTF8"],
            cwd=home,
            env=environment(self._program),
            capture_output=True,
            text=True,
            check=False,
            user=owner and owner[0],
            group=owner and owner[1],
            extra_groups=owner and [],
        )
        if done.returncode:
            raise Unavailable(f"initdb failed: {done.stderr.strip()[-500:]}")

    def launch(self, server: Server, home: Path, *, sync: bool) -> None:
        # Left from a kill, it may name a process that is somebody else's by now.
        (home / "data" / "postmaster.pid").unlink(missing_ok=True)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(server.port),
            "unix_socket_directories": "",
            "fsync": "on",
            "synchronous_commit": "on" if sync else "off",
        }
        words = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        command = [str(self._program), "-D", str(home / "data"), *words]
        server.run(command, cwd=home, env=environment(self._program))

    def connect(self, queue: str) -> Wire:
        return PostgresqlWire(self.port, queue)
