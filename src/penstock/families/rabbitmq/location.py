"""What a path is: a node's data directory, a vhost, a queue, a store, or one file of them.

Directories are known by what is in them, files by name and content. The names of directories are
hashes; what they stand for is read from the small files beside them. A queue or a file below a
vhost is read with that vhost's stores and settings; one that stands alone is read alone.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from penstock.errors import (
    BadData,
    CannotConvert,
    InvalidQueueName,
    PathMissing,
    PathRefused,
    UnknownFormat,
)
from penstock.families.damage import Damage, words_of
from penstock.families.rabbitmq.damage import UNREADABLE, damage_at
from penstock.families.rabbitmq.family import (
    JOURNAL,
    PERSISTENT,
    TRANSIENT,
    VHOSTS,
    is_node,
    is_queue,
    is_store,
    is_vhost,
    kind_of_file,
    numbered,
)
from penstock.formats.rabbitmq import message_store, queue_v2, segment
from penstock.formats.rabbitmq.metadata import (
    QueueKey,
    QueueRecord,
    decode_member_config,
    scan_log,
)
from penstock.formats.rabbitmq.names import (
    ENTRY_COUNT_DEFAULT,
    StoredQueue,
    decode_config,
    decode_queue_name,
)
from penstock.model import RESERVED_PREFIX, QueueName
from penstock.storage.broker_files import begins_with_record
from penstock.storage.files import FILES, read_whole

SMALL_FILE_MAX: Final = 2**16
"""Bytes of a name or a setting: brokers allow names of 255 bytes, and settings are a line."""


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


# --- directories ---------------------------------------------------------------------------------


def _resolve_directory(path: Path) -> Location | None:
    found_damage: list[Damage] = []
    lends_stores = False
    others: tuple[OtherQueue, ...] = ()
    if is_node(path):
        kind, inside, others = "node", path / VHOSTS, find_other_queues(path)
        found = [
            _vhost(inside / name, found_damage)
            for name in FILES.names(inside)
            if (inside / name).is_dir()
        ]
        vhosts = tuple(sorted(found, key=lambda vhost: (vhost.name or b"", vhost.path.name)))
    elif is_vhost(path):
        kind, vhosts = "vhost", (_vhost(path, found_damage),)
    elif is_queue(path):
        kind, lends_stores = "queue", True
        around = _around(path, found_damage)
        vhosts = (replace(around, queues=(_queue(path, found_damage),)),)
    elif is_store(path):
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
    if queue.parent.name == "queues" and is_vhost(vhost):
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
    found = ((numbered(name, suffix), path / name) for name in names)
    return sorted((number, file) for number, file in found if number is not None)


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
    kind = kind_of_file(path)
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


# --- queues that are not classic -----------------------------------------------------------------
#
# Quorum queues and streams are detected and named, not read. Their messages are outside ``msg_stores``: a quorum queue has
# a directory below ``quorum``, a stream one below ``stream``. The node's metadata names queues whose directory is missing,
# and tells the name of a stream.

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


# --- names and places ----------------------------------------------------------------------------


def vhost_name(vhost: Vhost, queue: Queue) -> bytes | None:
    """Return the vhost that a queue says it is of, else the one that it stands in; ``None`` if unknown."""
    return queue.name.vhost if queue.name is not None else vhost.name


def is_asked_for(vhost: Vhost, queue: Queue, of_vhost: bytes | None, named: bytes | None) -> bool:
    """Return whether a queue is of this vhost and has this name; ``None`` is any."""
    return of_vhost in (None, vhost_name(vhost, queue)) and named in (None, queue.label)


DEFAULT_VHOST: Final = b"/"
SEPARATOR: Final = "~"
"""Between a vhost and a queue. It is escaped in both, so that no two sources make one name."""


_PLAIN: Final = frozenset(range(33, 127)) - frozenset(b"%~")


def target_name(vhost: bytes | None, queue: bytes) -> QueueName:
    """Return the name of a queue of ours (docs/formats/rabbitmq-envelope.md). Raises ``CannotConvert`` if that is too long."""
    name = _escaped(queue)
    if vhost not in (None, DEFAULT_VHOST):
        assert vhost is not None
        name = _escaped(vhost) + SEPARATOR + name
    if name.startswith(RESERVED_PREFIX):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    try:
        return QueueName(name)
    except InvalidQueueName as error:
        raise CannotConvert(f"queue {_shown(queue)} would become a {error}") from None


def _escaped(name: bytes) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name)


def _shown(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))


def last_write_us(location: Location) -> int:
    """Return when the newest of the files was written to that a reading may read."""
    lent = [path for vhost in location.vhosts for path in (*vhost.persistent, *vhost.transient)]
    written = [0]
    for path in (*location.files, *lent):
        with suppress(OSError):  # it went away, or may not be looked at: its reader reports that
            written.append(path.stat().st_mtime_ns // 1000)
    return max(written)


def home(location: Location) -> Path:
    """Return the directory that a reading reads in, and in which nothing may be written."""
    is_part = location.lends_stores or not location.path.is_dir()
    return location.vhosts[0].path if is_part else location.path
