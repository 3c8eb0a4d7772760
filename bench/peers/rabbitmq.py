"""RabbitMQ: a durable classic queue, persistent messages, publisher confirms; AMQP 0-9-1 by hand."""

from __future__ import annotations

import struct
from pathlib import Path

from peers.base import Conversation, Peer, Refused, Server, Unavailable, Wire, free_port
from peers.packages import SYSTEM, environment, find, root_of

METHOD, HEADER, BODY = 1, 2, 3
END = b"\xce"
PERSISTENT = struct.pack(">HB", 0x1000, 2)  # only the delivery mode is given, and it is 2

CONNECTION_START, CONNECTION_TUNE = (10, 10), (10, 30)
PUBLISHED, REFUSED, DELIVER = (60, 80), (60, 120), (60, 60)
CLOSED = ((10, 50), (20, 40))

Frame = tuple[int, bytes]


def frame(kind: int, channel: int, body: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(body)) + body + END


def method(channel: int, class_id: int, method_id: int, *parts: bytes) -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + b"".join(parts))


def short(words: str) -> bytes:
    return struct.pack(">B", len(words)) + words.encode()


def long(words: bytes) -> bytes:
    return struct.pack(">I", len(words)) + words


class RabbitmqWire(Wire):
    arguments = b""  # of the queue, a table of AMQP's

    def greet(self) -> None:
        self._rest = b""
        self._settled, self._early = 0, set[int]()  # all tags up to the first; single ones above it
        self._prefetch = self._tag = self._got = 0
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self._expect(CONNECTION_START)
        login = short("PLAIN") + long(b"\0guest\0guest") + short("en_US")
        self.socket.sendall(method(0, 10, 11, long(b""), login))
        self._expect(CONNECTION_TUNE)
        tuned = method(0, 10, 31, struct.pack(">HIH", 1, 131072, 0))
        self.socket.sendall(tuned + method(0, 10, 40, short("/"), short(""), b"\0"))
        self._expect((10, 41))
        self.socket.sendall(method(1, 20, 10, short("")))
        self._expect((20, 11))
        declare = struct.pack(">H", 0) + short(self.queue) + b"\x02" + long(self.arguments)
        self.socket.sendall(method(1, 50, 10, declare))
        self._expect((50, 11))
        self.socket.sendall(method(1, 85, 10, b"\0"))
        self._expect((85, 11))

    def _expect(self, wanted: tuple[int, int]) -> None:
        while True:
            for kind, body in self._frames(self.receive()):
                if kind == METHOD and struct.unpack_from(">HH", body) == wanted:
                    return

    def put(self, payload: bytes) -> bytes:
        publish = struct.pack(">H", 0) + short("") + short(self.queue) + b"\0"
        header = struct.pack(">HHQ", 60, 0, len(payload)) + PERSISTENT
        return method(1, 60, 40, publish) + frame(HEADER, 1, header) + frame(BODY, 1, payload)

    def answers(self, data: bytes) -> int:
        count = 0
        for _, body in self._frames(data):
            if struct.unpack_from(">HH", body) != PUBLISHED:
                raise Refused(f"no confirmation: {body[:80]!r}")
            tag, multiple = struct.unpack_from(">QB", body, 4)
            count += self._settle(tag, multiple=bool(multiple))
        return count

    def _settle(self, tag: int, *, multiple: bool) -> int:
        before = self._settled + len(self._early)
        if multiple:
            self._settled = max(self._settled, tag)
            self._early = {one for one in self._early if one > tag}
        else:
            self._early.add(tag)
        while self._settled + 1 in self._early:
            self._settled += 1
            self._early.remove(self._settled)
        return self._settled + len(self._early) - before

    def take(self, count: int, *, wait: bool) -> Conversation:
        """Acknowledge the batch before this one, and return its size once the next one came.

        RabbitMQ does not answer acknowledgements; that it delivers more shows that it has seen them.
        """
        del wait  # The server pushes.
        request, before = self._next_request(count)
        self._got = 0
        data = yield request
        while True:
            for kind, body in self._frames(data):
                if kind == METHOD and struct.unpack_from(">HH", body) == DELIVER:
                    self._tag = struct.unpack_from(">Q", body, 5 + body[4])[0]
                elif kind == BODY:
                    self._got += 1
            if self._got >= count:
                return before
            data = yield b""

    def _next_request(self, count: int) -> tuple[bytes, int]:
        if self._prefetch:
            return method(1, 60, 80, struct.pack(">QB", self._tag, 1)), self._got
        self._prefetch = count
        limit = method(1, 60, 10, struct.pack(">IHB", 0, count, 0))
        consume = struct.pack(">H", 0) + short(self.queue) + short("") + b"\0" + long(b"")
        return limit + method(1, 60, 20, consume), 0

    def _frames(self, data: bytes) -> list[Frame]:
        data = self._rest + data if self._rest else data
        position, found = 0, list[Frame]()
        while position + 7 <= len(data):
            kind, _, size = struct.unpack_from(">BHI", data, position)
            end = position + 8 + size
            if end > len(data):
                break
            body = data[position + 7 : end - 1]
            if kind == METHOD and struct.unpack_from(">HH", body) in (*CLOSED, REFUSED):
                raise Refused(f"RabbitMQ refused: {body[:200]!r}")
            found.append((kind, body))
            position = end
        self._rest = data[position:]
        return found


class Rabbitmq(Peer):
    name = "RabbitMQ"
    promise = (
        "durable classic queue, persistent messages, confirms; prefetch 100, acknowledged together"
        " (RabbitMQ neither syncs nor answers acknowledgements)"
    )

    def obtain(self) -> str:
        where = "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"
        self._program = find("rabbitmq-server", where)
        self._erlang = root_of(self._program) / "usr/lib/erlang"
        if not self._erlang.is_dir():
            raise Unavailable("RabbitMQ is here, but not the Erlang it runs on")
        if root_of(self._program) != SYSTEM:
            _move_erlang(self._erlang)
        return self._program.parent.parent.name.split("-")[1]

    def tool(self, name: str) -> Path:
        """Return one of the programs that come with the server."""
        return self._program.with_name(name)

    def launch(self, server: Server, home: Path, *, sync: bool) -> None:
        del sync  # It cannot be told not to.
        env = self.environment(home, names=free_port(), node="bench", port=server.port)
        self.launch_names(server, home, env)
        self.launch_one(server, home, env)

    def environment(self, home: Path, *, names: int, node: str, port: int) -> dict[str, str]:
        """Return the settings of a node; ``names`` is the port of the daemon that knows where nodes are."""
        variables = {
            "HOME": str(home),
            "PATH": f"{self._erlang / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"{node}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RUNNING_UNDER_SYSTEMD": "1",  # makes the script become the server, not its parent
        }
        return environment(self._program, **variables)

    def launch_names(self, server: Server, home: Path, env: dict[str, str]) -> None:
        """Start the daemon that knows where nodes are: one that a node starts by itself would outlive it."""
        command = [str(self._erlang / "bin" / "epmd"), "-port", env["ERL_EPMD_PORT"]]
        server.run(command, cwd=home, env=env)

    def launch_one(self, server: Server, home: Path, env: dict[str, str]) -> None:
        server.run(["sh", str(self._program)], cwd=home, env=env)

    def connect(self, queue: str) -> Wire:
        return RabbitmqWire(self.port, queue)


def _move_erlang(root: Path) -> None:
    """Tell an unpacked Erlang where it is: its start script names the place it was built for."""
    script = root / "bin" / "erl"
    words = script.read_text().replace("ROOTDIR=/usr/lib/erlang", f"ROOTDIR={root}")
    script.write_text(words)
