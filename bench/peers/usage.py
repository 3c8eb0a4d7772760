"""What processes cost: time of the processors, and bytes between nodes as the kernel counts them for each connection."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# linux/sock_diag.h, linux/inet_diag.h, linux/tcp.h
NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY, NLMSG_ERROR, NLMSG_DONE = 20, 2, 3
NLM_F_DUMP_REQUEST = 0x301
INET_DIAG_INFO = 2
ESTABLISHED = 1 << 1
HEADER = struct.Struct("=IHHII")
REQUEST = struct.Struct("=BBBxI48x")
ANSWER_SIZE = 72  # of inet_diag_msg; its attributes follow
PORTS = struct.Struct(">HH")  # from its byte 4 on
INODE = struct.Struct("=I")  # its last field
ATTRIBUTE = struct.Struct("=HH")
BYTES = struct.Struct("=QQ")  # acknowledged and received, of tcp_info
BYTES_START = 120
BUFFER_SIZE = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a node has used so far, or between two looks."""

    cpu_seconds: float
    sent: int  # bytes to other nodes, without headers of the network
    received: int

    def since(self, before: Usage) -> Usage:
        return Usage(
            cpu_seconds=self.cpu_seconds - before.cpu_seconds,
            sent=self.sent - before.sent,
            received=self.received - before.received,
        )


def usage(pids: Sequence[int], client_ports: Sequence[int]) -> Usage:
    """Return what a node's processes have used; connections on ``client_ports`` are those of clients, not of nodes."""
    own = {inode for pid in pids for inode in _sockets(pid)}
    sent = received = 0
    for ports, inode, acknowledged, taken in connections():
        if inode in own and not set(ports) & set(client_ports):
            sent, received = sent + acknowledged, received + taken
    return Usage(cpu_seconds=sum(map(_cpu_seconds, pids)), sent=sent, received=received)


def connections() -> Iterator[tuple[tuple[int, int], int, int, int]]:
    """Yield of each TCP connection on this machine its ports, its inode, and the bytes that were sent and received."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as asked:
        for family in (socket.AF_INET, socket.AF_INET6):
            body = REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), ESTABLISHED)
            head = HEADER.pack(
                HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_DUMP_REQUEST, 0, 0
            )
            asked.send(head + body)
            for message in _answers(asked):
                inode = INODE.unpack_from(message, ANSWER_SIZE - INODE.size)[0]
                yield PORTS.unpack_from(message, 4), inode, *_bytes(message)


def _answers(asked: socket.socket) -> Iterator[bytes]:
    while True:
        data = asked.recv(BUFFER_SIZE)
        offset = 0
        while offset < len(data):
            size, kind, *_ = HEADER.unpack_from(data, offset)
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR:
                raise OSError("the kernel does not tell of its connections")
            yield data[offset + HEADER.size : offset + size]
            offset += (size + 3) & ~3


def _bytes(message: bytes) -> tuple[int, int]:
    offset = ANSWER_SIZE
    while offset + ATTRIBUTE.size <= len(message):
        size, kind = ATTRIBUTE.unpack_from(message, offset)
        if kind == INET_DIAG_INFO:
            found: tuple[int, int] = BYTES.unpack_from(
                message, offset + ATTRIBUTE.size + BYTES_START
            )
            return found
        offset += (size + 3) & ~3
    raise OSError("the kernel does not count the bytes of its connections")


def _sockets(pid: int) -> Iterator[int]:
    """Yield the inodes of a process's sockets."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                yield int(target[len("socket:[") : -1])


def _cpu_seconds(pid: int) -> float:
    """Return what a process has run, in the kernel and outside, threads that ended counted."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
