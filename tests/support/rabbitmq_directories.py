"""Data directories of RabbitMQ on a disk: the golden ones unpacked, and small ones made by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.formats.rabbitmq import journal, message_store, segment
from penstock.formats.rabbitmq.journal import Publish, SequenceNumber
from penstock.formats.rabbitmq.messages import Content, Message, encode_message
from penstock.formats.rabbitmq.names import (
    StoredQueue,
    encode_config,
    encode_queue_name,
    vhost_directory,
)
from support.archives import extract
from support.rabbitmq_golden import GOLDEN, snapshot

NAMES = sorted(path.name.removesuffix(".tar.gz") for path in GOLDEN.glob("*.tar.gz"))
ENTRY_COUNT = 16


def unpacked(name: str, directory: Path) -> Path:
    """Return ``directory`` with the golden data directory ``name`` in it."""
    return extract(GOLDEN / f"{name}.tar.gz", directory)


def truth(name: str) -> list[dict[str, Any]]:
    """Return what must remain of a golden directory, in the order in which it must be listed."""
    return [row for rows in snapshot(name).truth.values() for row in rows]


def message_id(number: int) -> bytes:
    return number.to_bytes(8, "big") + bytes(7) + b"\x01"


def message(number: int, body: bytes, **changes: Any) -> bytes:
    """Return the term of a message with the id ``number``."""
    fields: dict[str, Any] = {
        "vhost": b"/",
        "exchange": b"",
        "routing_keys": (b"orders",),
        "content": Content(stored_properties=bytes.fromhex("100002"), fragments=(body,)),
        "id": message_id(number),
        "is_persistent": True,
    }
    return encode_message(Message(**fields | changes))


def publish(
    number: int, body: bytes = b"body", *, expiry_us: int = 0, stored: bool = False, **changes: Any
) -> Publish:
    """Return what an index says of a message, embedded unless it is ``stored``."""
    return Publish(
        message_id=message_id(number),
        is_persistent=changes.get("is_persistent", True),
        expiry_us=expiry_us,
        body_size=len(body),
        embedded=b"" if stored else message(number, body, **changes),
    )


@dataclass
class Directory:
    """A data directory with one vhost, written file by file."""

    path: Path
    vhost: bytes = b"/"

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True)
        (self.home / ".vhost").write_bytes(self.vhost)
        (self.home / ".config").write_bytes(encode_config(ENTRY_COUNT))
        for store in ("msg_store_persistent", "msg_store_transient"):
            (self.home / store).mkdir()

    @property
    def home(self) -> Path:
        return self.path / "msg_stores" / "vhosts" / vhost_directory(self.vhost)

    def queue(self, name: bytes, *, priority: int | None = None, version: int = 1) -> Path:
        """Return the directory of a queue, new or old."""
        stored = StoredQueue(vhost=self.vhost, queue=name, priority=priority, version=version)
        directory = self.home / "queues" / stored.directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / ".queue_name").write_bytes(encode_queue_name(stored))
        return directory

    def journal(self, queue: Path, *records: bytes) -> Path:
        path = queue / "journal.jif"
        path.write_bytes(b"".join(records))
        return path

    def segment(self, queue: Path, number: int, *records: bytes) -> Path:
        path = queue / segment.segment_name(number)
        path.write_bytes(b"".join(records))
        return path

    def store(self, name: str, *records: bytes, kind: str = "persistent") -> Path:
        path = self.home / f"msg_store_{kind}" / name
        path.write_bytes(b"".join(records))
        return path


def journaled(sequence: int, published: Publish) -> bytes:
    return journal.encode_publish(SequenceNumber(sequence), published)


def stored(number: int, body: bytes, **changes: Any) -> bytes:
    """Return the record of a message in a store."""
    return message_store.encode_record(message_id(number), message(number, body, **changes))
