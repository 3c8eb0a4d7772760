"""What a path is: a node's data directory, a vhost, a queue, a store, or one file of them.

Directories are known by what is in them, files by name and content. The names of directories are
hashes; what they stand for is read from the small files beside them. A queue or a file below a
vhost is read with that vhost's stores and settings; one that stands alone is read alone.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from penstock.errors import BadData, PathMissing, PathRefused, UnknownFormat
from penstock.families.damage import Damage, words_of
from penstock.families.rabbitmq.damage import UNREADABLE, damage_at
from penstock.families.rabbitmq.other_queues import OtherQueue, find_other_queues
from penstock.families.rabbitmq.windows import begins_with_record
from penstock.formats.rabbitmq import message_store, queue_v2, segment
from penstock.formats.rabbitmq.names import (
    ENTRY_COUNT_DEFAULT,
    StoredQueue,
    decode_config,
    decode_queue_name,
)
from penstock.storage.files import FILES, read_whole

SMALL_FILE_MAX: Final = 2**16
"""Bytes of a name or a setting: brokers allow names of 255 bytes, and settings are a line."""

JOURNAL: Final = "journal.jif"
PERSISTENT: Final = "msg_store_persistent"
TRANSIENT: Final = "msg_store_transient"
MESSAGE_STORES: Final = "msg_stores"
_VHOSTS: Final = Path(MESSAGE_STORES) / "vhosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue's directory, or some of its files. A priority queue has one for each priority."""

    path: Path
    name: StoredQueue | None  # None if no file tells it
    journal: Path | None = None
    segments: tuple[tuple[int, Path], ...] = ()  # by number
    indexes: tuple[tuple[int, Path], ...] = ()  # of version 2, by number
    stores: tuple[tuple[int, Path], ...] = ()  # of version 2, by number

    @property
    def files(self) -> list[Path]:
        """The files in the order in which they are read."""
        numbered = [path for _, path in (*self.segments, *self.indexes, *self.stores)]
        return numbered if self.journal is None else [*numbered, self.journal]

    @property
    def label(self) -> bytes:
        """The queue's name; where nothing tells it, that of its directory."""
        return (
            self.path.name.encode("utf-8", "surrogateescape") if not self.name else self.name.queue
        )

    @property
    def priority(self) -> int:
        return 0 if self.name is None or self.name.priority is None else self.name.priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Vhost:
    """A vhost: its queues, in order of name with the highest priority first, and its two stores."""

    path: Path
    name: bytes | None  # None before 3.7, and for what stands alone
    entry_count: int = ENTRY_COUNT_DEFAULT
    queues: tuple[Queue, ...] = ()
    persistent: tuple[Path, ...] = ()
    transient: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """What stands at a path. ``lends_stores``: the stores are only there to look messages up."""

    path: Path
    kind: str  # node, vhost, queue, store, or journal, segment, index, queue-store, store-file
    vhosts: tuple[Vhost, ...]
    lends_stores: bool = False
    found_damage: tuple[Damage, ...] = ()  # met on the way: names and settings that cannot be read
    others: tuple[OtherQueue, ...] = ()  # quorum queues and streams, which are not read

    @property
    def files(self) -> list[Path]:
        return [path for vhost in self.vhosts for path in self.files_of(vhost)]

    def files_of(self, vhost: Vhost) -> list[Path]:
        """The files of a vhost that this location means, in the order in which they are read."""
        of_queues = [path for queue in vhost.queues for path in queue.files]
        return of_queues if self.lends_stores else [*of_queues, *vhost.persistent, *vhost.transient]

    @property
    def size(self) -> int:
        """The bytes that a full reading reads."""
        return sum(_size(path) for path in self.files)


def resolve(path: Path) -> Location:
    """Return what is at ``path``. Raises ``PathRefused``, or ``UnknownFormat`` for a file."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise PathMissing(f"{path}: no such file or directory; check the path") from None
    if stat.S_ISREG(mode):
        return _resolve_file(path)
    found = _resolve_directory(path) if stat.S_ISDIR(mode) else None
    if found is None:
        raise PathRefused(
            f"{path}: no files of RabbitMQ; name a node's data directory (with 'msg_stores' in it), a vhost,"
            " a queue, a store, or a single file"
        )
    return found


def is_rabbitmq(path: Path) -> bool:
    """Return whether a path is a directory of RabbitMQ, or a file that only RabbitMQ has."""
    if path.is_dir():
        return any(found(path) for found in (_is_node, _is_vhost, _is_queue, _is_store))
    return path.is_file() and _kind_of_file(path) is not None


# --- directories ---------------------------------------------------------------------------------


def _is_node(path: Path) -> bool:
    return (path / _VHOSTS).is_dir()


def _is_vhost(path: Path) -> bool:
    has_store = (path / PERSISTENT).is_dir() or (path / TRANSIENT).is_dir()
    return (path / ".vhost").is_file() or has_store


def _is_queue(path: Path) -> bool:
    names = FILES.names(path)
    return ".queue_name" in names or any(_is_index_name(name) for name in names)


def _is_index_name(name: str) -> bool:
    suffixes = (queue_v2.INDEX_SUFFIX, queue_v2.STORE_SUFFIX)
    if name == JOURNAL or segment.parse_segment_name(name) is not None:
        return True
    return any(_numbered(name, suffix) is not None for suffix in suffixes)


def _is_store(path: Path) -> bool:
    return any(message_store.parse_store_name(name) is not None for name in FILES.names(path))


def _resolve_directory(path: Path) -> Location | None:
    found_damage: list[Damage] = []
    lends_stores = False
    others: tuple[OtherQueue, ...] = ()
    if _is_node(path):
        kind, inside, others = "node", path / _VHOSTS, find_other_queues(path)
        found = [
            _vhost(inside / name, found_damage)
            for name in FILES.names(inside)
            if (inside / name).is_dir()
        ]
        vhosts = tuple(sorted(found, key=lambda vhost: (vhost.name or b"", vhost.path.name)))
    elif _is_vhost(path):
        kind, vhosts = "vhost", (_vhost(path, found_damage),)
    elif _is_queue(path):
        kind, lends_stores = "queue", True
        around = _around(path, found_damage)
        vhosts = (replace(around, queues=(_queue(path, found_damage),)),)
    elif _is_store(path):
        kind = "store"
        vhosts = (Vhost(path=path, name=None, persistent=_store_files(path)),)
    else:
        return None
    return Location(
        path=path,
        kind=kind,
        vhosts=vhosts,
        lends_stores=lends_stores,
        found_damage=tuple(found_damage),
        others=others,
    )


def _vhost(path: Path, found_damage: list[Damage]) -> Vhost:
    inside = path / "queues"
    names = FILES.names(inside) if inside.is_dir() else []
    queues = [_queue(inside / name, found_damage) for name in names if (inside / name).is_dir()]
    queues.sort(key=lambda queue: (queue.label, -queue.priority, queue.path.name))
    return replace(_around_vhost(path, found_damage), queues=tuple(queues))


def _around_vhost(path: Path, found_damage: list[Damage]) -> Vhost:
    """Return a vhost without its queues."""
    name = _read_small(path / ".vhost", found_damage)
    entry_count = ENTRY_COUNT_DEFAULT
    config = _read_small(path / ".config", found_damage)
    try:
        entry_count = entry_count if config is None else decode_config(config)
    except BadData as error:
        found_damage.append(
            damage_at(path / ".config", "bad-config", error.reason, offset=error.offset)
        )
    return Vhost(
        path=path,
        name=name,
        entry_count=entry_count,
        persistent=_store_files(path / PERSISTENT),
        transient=_store_files(path / TRANSIENT),
    )


def _around(queue: Path, found_damage: list[Damage]) -> Vhost:
    """Return the vhost that a queue's directory stands in, or one that only holds the queue."""
    queue = queue.absolute()
    vhost = queue.parent.parent
    if queue.parent.name == "queues" and _is_vhost(vhost):
        return _around_vhost(vhost, found_damage)
    return Vhost(path=queue, name=None)


def _store_files(path: Path) -> tuple[Path, ...]:
    """Return a store's files by number; what a merge kept stands behind the file that it is for."""
    found = []
    for name in FILES.names(path) if path.is_dir() else []:
        number = message_store.parse_store_name(name)
        if number is not None:
            found.append((number, name))
    return tuple(path / name for _, name in sorted(found))


def _queue(path: Path, found_damage: list[Damage]) -> Queue:
    names = FILES.names(path)
    return Queue(
        path=path,
        name=_queue_name(path, found_damage),
        journal=path / JOURNAL if JOURNAL in names else None,
        segments=tuple(_by_number(path, names, segment.SUFFIX)),
        indexes=tuple(_by_number(path, names, queue_v2.INDEX_SUFFIX)),
        stores=tuple(_by_number(path, names, queue_v2.STORE_SUFFIX)),
    )


def _queue_name(path: Path, found_damage: list[Damage]) -> StoredQueue | None:
    file = path / ".queue_name"
    data = _read_small(file, found_damage)
    try:
        return None if data is None else decode_queue_name(data, directory=path.absolute().name)
    except BadData as error:
        found_damage.append(damage_at(file, "bad-queue-name", error.reason, offset=error.offset))
        return None


def _by_number(path: Path, names: list[str], suffix: str) -> list[tuple[int, Path]]:
    numbered = ((_numbered(name, suffix), path / name) for name in names)
    return sorted((number, file) for number, file in numbered if number is not None)


def _numbered(name: str, suffix: str) -> int | None:
    if not name.endswith(suffix):
        return None
    return segment.parse_segment_name(name.removesuffix(suffix) + segment.SUFFIX)


def _read_small(path: Path, found_damage: list[Damage]) -> bytes | None:
    """Return a small file, or ``None`` if it is not there or cannot be read."""
    try:
        return read_whole(FILES, path, size_max=SMALL_FILE_MAX)
    except (OSError, PathRefused) as error:
        found_damage.append(damage_at(path, UNREADABLE, words_of(error)))
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # a file that went away, or may not be looked at: its reader reports that


# --- single files --------------------------------------------------------------------------------


def _resolve_file(path: Path) -> Location:
    if path.stat().st_size == 0:
        raise PathRefused(f"{path}: the file is empty; there is nothing in it to read")
    kind = _kind_of_file(path)
    if kind is None or not begins_with_record(path, kind):
        raise UnknownFormat(
            "not a file of RabbitMQ; name a journal.jif, or a file that ends in .idx, .rdq, .rdt, .qi or .qs"
            " and holds records",
            path=str(path),
            offset=0,
        )
    if kind == "store-file":
        vhost = Vhost(path=path.parent, name=None, persistent=(path,))
        return Location(path=path, kind=kind, vhosts=(vhost,))
    found_damage: list[Damage] = []
    alone = Queue(path=path.parent, name=_queue_name(path.parent, found_damage))
    number = _number_of(path)
    match kind:
        case "journal":
            queue = replace(alone, journal=path)
        case "segment":
            queue = replace(alone, segments=((number, path),))
        case "index":
            queue = replace(alone, indexes=((number, path),))
        case _:
            queue = replace(alone, stores=((number, path),))
    vhosts = (replace(_around(path.parent, found_damage), queues=(queue,)),)
    return Location(
        path=path, kind=kind, vhosts=vhosts, lends_stores=True, found_damage=tuple(found_damage)
    )


def _number_of(path: Path) -> int:
    return segment.parse_segment_name(path.stem + segment.SUFFIX) or 0


def _kind_of_file(path: Path) -> str | None:
    """Return the kind of file that a path is: by its marker, if it has one, else by its name."""
    name = path.name
    if name == JOURNAL:
        return "journal"
    if segment.parse_segment_name(name) is not None:
        return "segment"
    if message_store.parse_store_name(name) is not None:
        return "store-file"
    marker = read_whole(FILES, path, size_max=3)
    return {queue_v2.INDEX_MARKER: "index", queue_v2.STORE_MARKER: "queue-store"}.get(marker or b"")
