"""The writes of a TaskFlux node of January 2024, as far as they decide whether another program can follow it.

It opens the files as that program does, with its checks, and writes as it does: the first 16 bytes of the metadata in
place, records and an end marker at the end of the log, the commit index in the header, a snapshot by a rename and then
a shorter log by another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

from penstock.binary import checksum

RECORD = Struct(">4siIi")
RECORD_MARKER = bytes.fromhex("AAF534C4")
LOG_MARKER = bytes.fromhex("1276AD55")
SNAPSHOT_MARKER = bytes.fromhex("B6380FC9")
OLD_MARKER = bytes.fromhex("2F6F0F2F")
METADATA_MARKER = bytes.fromhex("5A6EA012")


@dataclass
class Program:
    """A node of generation 2: ``data/tflux.*`` as on 2024-01-21, or the mix of the day before in ``consensus``."""

    root: Path
    is_mixed: bool = False
    term: int = field(init=False)
    records: list[tuple[int, bytes]] = field(init=False)
    commit: int = field(init=False)

    def __post_init__(self) -> None:
        self._open_metadata()
        self._open_log()
        self._open_snapshot()

    @property
    def home(self) -> Path:
        return self.root / ("consensus" if self.is_mixed else "data")

    def path(self, kind: str) -> Path:
        return self.home / f"{'raft' if self.is_mixed else 'tflux'}.{kind}"

    def _open_metadata(self) -> None:
        data = self.path("metadata").read_bytes()
        assert len(data) >= 16, "TaskFlux refuses metadata below 16 bytes"
        assert data[:4] == (OLD_MARKER if self.is_mixed else METADATA_MARKER)
        self.term = int.from_bytes(data[8:12], "big")

    def _open_log(self) -> None:
        data = self.path("log").read_bytes()
        assert data[:8] == LOG_MARKER + bytes((0, 0, 0, 1))
        self.commit = int.from_bytes(data[8:12], "big", signed=True)
        self.records, at = [], 12
        while data[at : at + 4] not in (bytes(4), b""):
            marker, term, stored, size = RECORD.unpack_from(data, at)
            payload = data[at + 16 : at + 16 + size]
            assert marker == RECORD_MARKER
            assert not size or checksum(payload) == stored
            self.records.append((term, payload))
            at += 16 + size
        assert self.commit < len(self.records), "TaskFlux refuses a commit index beyond the log"

    def _open_snapshot(self) -> None:
        path = self.path("snapshot")
        data = path.read_bytes() if path.exists() else b""
        if not data:
            return
        assert data[:4] == (OLD_MARKER if self.is_mixed else SNAPSHOT_MARKER)
        if not self.is_mixed:
            size = int.from_bytes(data[12:16], "big")
            assert checksum(data[16 : 16 + size]) == int.from_bytes(data[16 + size :][:4], "big")

    def vote(self, node: int) -> None:
        """Begin a term and vote: the first 16 bytes are written in place."""
        self.term += 1
        with self.path("metadata").open("r+b") as file:
            file.seek(8)
            file.write(self.term.to_bytes(4, "big") + node.to_bytes(4, "big"))

    def append(self, *payloads: bytes) -> None:
        """Write records behind the last one and commit them."""
        at = 12 + sum(16 + len(payload) for _, payload in self.records)
        self.records += [(self.term, payload) for payload in payloads]
        self.commit = len(self.records) - 1
        with self.path("log").open("r+b") as file:
            file.seek(at)
            file.write(b"".join(self._record(self.term, payload) for payload in payloads))
            file.write(bytes(4))
            file.seek(8)
            file.write(self.commit.to_bytes(4, "big", signed=True))

    def save_snapshot(self, snapshot: bytes) -> None:
        """Put a snapshot of all entries in place, then a log without them."""
        self._replace("snapshot", snapshot)
        self._replace("log", LOG_MARKER + bytes((0, 0, 0, 1)) + b"\xff" * 4 + bytes(4))

    def _replace(self, kind: str, data: bytes) -> None:
        temporary = self.home / "temporary" / "random"
        temporary.parent.mkdir(exist_ok=True)
        temporary.write_bytes(data)
        temporary.rename(self.path(kind))

    @staticmethod
    def _record(term: int, payload: bytes) -> bytes:
        return RECORD.pack(RECORD_MARKER, term, checksum(payload), len(payload)) + payload
