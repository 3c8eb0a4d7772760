"""Data directories that RabbitMQ 3.10.8 wrote, and what its client knows must be in them.

``tests/golden/rabbitmq/`` holds them: an archive of the directory, and beside it the truth, one JSON
object per message that must remain, in queue order. Archives are read in memory, never unpacked.
"""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from base64 import b64decode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

GOLDEN = Path(__file__).parent.parent / "golden" / "rabbitmq"

QueueKey = tuple[str, str, int | None]
"""Vhost, queue, and the priority of a sub-queue or ``None``."""

Files = dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vhost:
    """One virtual host: how many entries its segments have, its store's files, its queues' files."""

    entry_count: int
    store: Files
    queues: dict[QueueKey, Files]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A data directory, and the messages that must remain by queue, in order."""

    vhosts: dict[str, Vhost]
    truth: dict[QueueKey, list[dict[str, Any]]]

    def queue(self, name: str) -> Files:
        """Return the files of the only queue with this name."""
        (files,) = [
            files
            for vhost in self.vhosts.values()
            for key, files in vhost.queues.items()
            if key[1] == name
        ]
        return files


@cache
def snapshot(name: str) -> Snapshot:
    """Return the golden directory ``name``."""
    truth = GOLDEN / f"{name}.truth.jsonl"
    if not truth.exists():
        truth = truth.with_name(truth.name + ".gz")
    return read_snapshot(GOLDEN / f"{name}.tar.gz", truth)


def read_snapshot(archive: Path, truth: Path) -> Snapshot:
    raw = truth.read_bytes()
    lines = (gzip.decompress(raw) if truth.suffix == ".gz" else raw).splitlines()
    by_queue: dict[QueueKey, list[dict[str, Any]]] = {}
    for row in map(json.loads, lines):
        by_queue.setdefault((row["vhost"], row["queue"], row["bucket"]), []).append(row)
    by_vhost: dict[str, Files] = {}
    for path, data in _members(archive):
        if path.parts[:2] == ("msg_stores", "vhosts"):
            by_vhost.setdefault(path.parts[2], {})["/".join(path.parts[3:])] = data
    vhosts = {files[".vhost"].decode(): _vhost(files) for files in by_vhost.values()}
    return Snapshot(vhosts=vhosts, truth=by_queue)


def members(name: str) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield the files of the golden directory ``name``."""
    yield from _members(GOLDEN / f"{name}.tar.gz")


def _members(archive: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None:
                yield PurePosixPath(member.name), file.read()


def _vhost(files: Files) -> Vhost:
    found = re.search(rb"segment_entry_count,\s*(\d+)", files[".config"])
    by_directory: dict[str, Files] = {}
    for path, data in files.items():
        if path.startswith("queues/"):
            _, directory, name = path.split("/")
            by_directory.setdefault(directory, {})[name] = data
    return Vhost(
        entry_count=int(found[1]) if found else 16_384,
        store={
            path.removeprefix("msg_store_persistent/"): data
            for path, data in files.items()
            if path.startswith("msg_store_persistent/") and path.endswith((".rdq", ".rdt"))
        },
        queues={_queue_key(queue[".queue_name"]): queue for queue in by_directory.values()},
    )


def _queue_key(stub: bytes) -> QueueKey:
    found = re.fullmatch(rb"VHOST: (.*)\nQUEUE: (.*?)\n(INDEX: v2\n)?", stub, re.DOTALL)
    assert found is not None
    name = found[2]
    is_sub_queue = len(name) > 2 and name[-2] == 0
    vhost = found[1].decode()
    return (vhost, name[:-2].decode(), name[-1]) if is_sub_queue else (vhost, name.decode(), None)


# --- comparing without decoding ------------------------------------------------------------------


def holds_body(message: bytes, row: dict[str, Any]) -> bool:
    """Return whether an encoded message holds the body that the truth says.

    A body of one fragment stands in it as it is, behind its length. Larger ones are not looked at.
    """
    size = row["body_len"]
    if size == 0 or size > 131_064:
        return True
    place = message.find(b"m" + size.to_bytes(4, "big"))
    while place >= 0:
        body = message[place + 5 : place + 5 + size]
        if "body_b64" in row and body == b64decode(row["body_b64"]):
            return True
        if "body_sha256" in row and sha256(body).hexdigest() == row["body_sha256"]:
            return True
        place = message.find(b"m" + size.to_bytes(4, "big"), place + 1)
    return False


def holds_expiry(expiry_us: int, row: dict[str, Any]) -> bool:
    """Return whether a stored expiry is the one that the truth allows."""
    if row["ttl_ms"] is None:
        return expiry_us == 0
    earliest, latest = row["published_us"]
    return bool(earliest <= expiry_us - row["ttl_ms"] * 1000 <= latest)


def contents(parts: Iterable[tuple[str, bytes]], suffixes: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the contents of the files with these suffixes."""
    return (data for name, data in parts if name.endswith(suffixes))


DAMAGE = {
    "c8_damage_crashed_merge": {"bad-marker"},
    "c8_damage_segment_all_zero": {"zeros"},
    "c8_damage_store_file_missing": {"missing"},
    "c8_damage_store_marker_bad": {"bad-marker", "missing"},
    "c8_damage_torn_journal": {"torn"},
    "c8_damage_torn_journal_ack": {"torn"},
    "c8_damage_torn_segment": {"torn"},
    "c8_damage_torn_store_tail": {"torn", "missing"},
}
"""What somebody did to some of the directories, as statuses of damage."""
