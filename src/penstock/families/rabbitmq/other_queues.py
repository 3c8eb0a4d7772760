"""Queues of a node that are not classic: quorum queues and streams. They are detected and named, not read.

Their messages are outside ``msg_stores``: a quorum queue has a directory below ``quorum``, a stream one below ``stream``.
The node's metadata names queues whose directory is missing, and tells the name of a stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import PathRefused
from penstock.formats.rabbitmq.metadata import (
    QueueKey,
    QueueRecord,
    decode_member_config,
    scan_log,
)
from penstock.storage.files import FILES, read_whole

METADATA_MAX: Final = 64 * 2**20
"""Bytes of a metadata file that are read. Mnesia empties its log at 4 MiB; a queue's record takes some 300 bytes."""

LOGS: Final = (
    "rabbit_durable_queue.DCD",
    "rabbit_durable_queue.DCL",
    "PREVIOUS.LOG",
    "LATEST.LOG",
)
"""The files that hold queue records, in the order in which a node replays them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherQueue:
    """A queue that is not classic."""

    type: str  # quorum or stream
    path: Path  # its directory; the node's if it has none
    vhost: bytes | None  # None if no file tells it
    queue: bytes | None

    def is_asked_for(self, of_vhost: bytes | None, named: bytes | None) -> bool:
        """Return whether the queue may be of this vhost and have this name; ``None`` is any."""
        is_of_vhost = of_vhost is None or self.vhost in (None, of_vhost)
        return is_of_vhost and (named is None or self.queue in (None, named))

    @property
    def words(self) -> str:
        """The type and the name, for people."""
        if self.queue is None:
            return f"{self.type} {self.path.name!r}"
        name = self.queue.decode("utf-8", "backslashreplace")
        vhost = (self.vhost or b"").decode("utf-8", "backslashreplace")
        return f"{self.type} {name!r} of vhost {vhost!r}"


def find_other_queues(node: Path) -> tuple[OtherQueue, ...]:
    """Return the quorum queues and streams that a node's data directory holds or names."""
    records, local = _records(node)
    found = [*_quorum_queues(node), *_streams(node, records)]
    known = {(other.vhost, other.queue) for other in found}
    for key, record in records.items():
        # A record without a directory: the directory is lost, or the queue has its copies on other nodes.
        is_here = local is None or not record.nodes or local in record.nodes
        if record.type is not None and key not in known and is_here:
            found.append(
                OtherQueue(type=record.type, path=node, vhost=record.vhost, queue=record.queue)
            )
    found.sort(key=lambda each: (each.vhost or b"", each.queue or b"", str(each.path)))
    return tuple(found)


def _records(node: Path) -> tuple[dict[QueueKey, QueueRecord], str | None]:
    """Return the queues that the metadata describes, and the name of the node that wrote it."""
    records: dict[QueueKey, QueueRecord] = {}
    local: str | None = None
    for name in LOGS:
        content = scan_log(_read(node / name))
        local = content.node or local
        for key, record in content.changes:
            if record is None:
                records.pop(key, None)
            else:
                records[key] = record
    return records, local


def _quorum_queues(node: Path) -> Iterator[OtherQueue]:
    """Yield a queue for each directory of a member: ``quorum/<node>/<id>``."""
    for home in _directories(node / "quorum"):
        for path in _directories(home):
            vhost, queue = decode_member_config(_read(path / "config")) or (None, None)
            yield OtherQueue(type="quorum", path=path, vhost=vhost, queue=queue)


def _streams(node: Path, records: dict[QueueKey, QueueRecord]) -> Iterator[OtherQueue]:
    names = {record.directory: key for key, record in records.items() if record.type == "stream"}
    for path in _directories(node / "stream"):
        vhost, queue = names.get(path.name, (None, None))
        yield OtherQueue(type="stream", path=path, vhost=vhost, queue=queue)


def _directories(path: Path) -> Iterator[Path]:
    """Yield the directories in a directory; the directory itself if it cannot be listed, for it may hold some."""
    try:
        names = FILES.names(path) if path.is_dir() else []
        found = [path / name for name in sorted(names) if (path / name).is_dir()]
    except (OSError, PathRefused):
        found = [path]
    yield from found


def _read(path: Path) -> bytes:
    """Return a metadata file; nothing if it is missing or cannot be read, for then the directories report."""
    try:
        return read_whole(FILES, path, size_max=METADATA_MAX) or b""
    except (OSError, PathRefused):
        return b""
