"""Queue records in a node's metadata: Mnesia's logs and the configuration of a quorum queue.

These files say which queues a node has and of which type. They are read only to name queues that are not classic
(docs/formats/rabbitmq-messages.md). Bytes that are no record are skipped: Mnesia has formats of its own for damage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Final

from penstock.binary import Bytes
from penstock.errors import BadData
from penstock.formats.rabbitmq.terms import Atom, ErlangTerm, Map, decode_term

LOG_MARKER: Final = bytes((1, 2, 3, 4))
LOG_HEADER_SIZE: Final = 8
ITEM_HEAD: Final = Struct(">I4s")
"""Size of a term, and a marker."""

ITEM_MARKERS: Final = (b"bWLA", bytes((12, 33, 44, 55)))
LARGE_SIZE: Final = 65_528
"""Terms of this size or more have an MD5 of their size between head and term."""
_MD5_SIZE: Final = 16

TABLE: Final = Atom("rabbit_durable_queue")
TYPES: Final = {
    Atom("rabbit_quorum_queue"): "quorum",
    Atom("rabbit_stream_queue"): "stream",
}
"""Types of queues that keep their messages outside ``msg_stores``."""

QueueKey = tuple[bytes, bytes]
"""Vhost and queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRecord:
    """A queue as a node's metadata describes it."""

    vhost: bytes
    queue: bytes
    type: str | None  # quorum or stream; None for every other type
    nodes: tuple[str, ...] = ()  # members that hold a copy; empty if the record does not say
    directory: str | None = None  # of a stream, below ``stream``


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContent:
    """What one log of Mnesia says about queues."""

    node: str | None  # the node that wrote the log
    changes: list[tuple[QueueKey, QueueRecord | None]]  # None: deleted


def scan_log(data: Bytes) -> LogContent:
    """Return the queue records of a ``.DCD``, ``.DCL`` or ``.LOG`` file, in the order of the file."""
    node: str | None = None
    changes: list[tuple[QueueKey, QueueRecord | None]] = []
    for term in _terms(data):
        if not isinstance(term, tuple) or not term:
            continue
        if term[0] == Atom("log_header") and len(term) >= 5 and isinstance(term[4], Atom):
            node = term[4].name
        elif term[0] == Atom("commit"):
            for part in term:
                for change in part if isinstance(part, list) else ():
                    changes.extend(_of_change(change))
        elif (record := _record(term)) is not None:
            changes.append(((record.vhost, record.queue), record))
        else:
            changes.extend(_of_change(term))
    return LogContent(node=node, changes=changes)


def _terms(data: Bytes) -> Iterator[ErlangTerm]:
    if bytes(data[: len(LOG_MARKER)]) != LOG_MARKER:
        return
    position, end = LOG_HEADER_SIZE, len(data)
    while position + ITEM_HEAD.size <= end:
        size, marker = ITEM_HEAD.unpack_from(data, position)
        position += ITEM_HEAD.size + (_MD5_SIZE if size >= LARGE_SIZE else 0)
        if marker not in ITEM_MARKERS or position + size > end:
            return
        with suppress(BadData):  # a term that no queue needs, such as a function
            yield decode_term(data[position : position + size])
        position += size


def _of_change(change: ErlangTerm) -> Iterator[tuple[QueueKey, QueueRecord | None]]:
    """Yield what ``{{Table, Key}, Record, Operation}`` says, if it is about a queue."""
    match change:
        case ((table, key), record, Atom(operation)) if table == TABLE:
            found = _resource(key)
            if found is not None:
                yield found, None if operation.startswith("delete") else _record(record)


def _resource(term: ErlangTerm) -> QueueKey | None:
    match term:
        case (Atom("resource"), bytes(vhost), Atom("queue"), bytes(queue)):
            return vhost, queue
    return None


def _record(term: ErlangTerm) -> QueueRecord | None:
    """Return the queue of an ``amqqueue`` record: its type is an atom, its state the map behind it."""
    if not isinstance(term, tuple) or len(term) < 2 or term[0] != Atom("amqqueue"):
        return None
    key = _resource(term[1])
    if key is None:
        return None
    known = next((TYPES[item] for item in term if isinstance(item, Atom) and item in TYPES), None)
    states = [item for item in term if isinstance(item, Map)]
    nodes = next((state.get("nodes") for state in states if state.get("nodes")), [])
    name = next((state.get("name") for state in states if state.get("name")), None)
    return QueueRecord(
        vhost=key[0],
        queue=key[1],
        type=known,
        nodes=tuple(node.name for node in nodes if isinstance(node, Atom))
        if isinstance(nodes, list)
        else (),
        directory=_text(name),
    )


def _text(term: ErlangTerm | None) -> str | None:
    """Return a string of Erlang's, which is a list of characters, or a binary."""
    if isinstance(term, bytes):
        return term.decode("utf-8", "replace")
    if isinstance(term, list) and all(type(each) is int and 0 < each < 0x110000 for each in term):
        return "".join(chr(each) for each in term if isinstance(each, int))
    return None


# --- the configuration of a quorum queue ---------------------------------------------------------

_BINARY: Final = rb'<<((?:"(?:[^"\\]|\\.)*"|[0-9]{1,3}|/utf8|[\s,])*)>>'
_RESOURCE: Final = re.compile(
    rb"\{resource,\s*" + _BINARY + rb",\s*queue,\s*" + _BINARY + rb"\}", re.DOTALL
)
_PART: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"|/utf8|([0-9]{1,3})', re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
_NAMED: Final = dict(zip(b"abdefnrstv", b"\a\b\x7f\x1b\f\n\r \t\v", strict=True))


def decode_member_config(data: Bytes) -> QueueKey | None:
    """Return vhost and queue of the file ``config`` of a quorum queue, ``None`` if it names none.

    The file is a printed Erlang term. Only the resource in it is looked for.
    """
    found = _RESOURCE.search(bytes(data))
    return None if found is None else (_printed(found[1]), _printed(found[2]))


def _printed(parts: bytes) -> bytes:
    """Return the bytes of a binary as Erlang prints it: strings with escapes, or numbers."""
    return b"".join(
        bytes((int(number) & 0xFF,)) if number else _ESCAPE.sub(_unescaped, text)
        for text, number in _PART.findall(parts)
    )


def _unescaped(match: re.Match[bytes]) -> bytes:
    code: bytes = match[1]
    if code[0] in b"01234567":
        return bytes((int(code, 8) & 0xFF,))
    return bytes((_NAMED.get(code[0], code[0]),))
