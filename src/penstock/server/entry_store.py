"""A node's log as the core of the group sees it, and what its entries look like in files and on the wire.

Here is the one conversion between the two ways to count: the core's indexes begin with 1, those of files with 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.binary import UINT64
from penstock.errors import Compacted as FileCompacted
from penstock.errors import CorruptData
from penstock.formats.taskflux.deltas import (
    ADD,
    DELETE,
    KEY_AND_SIZE,
    REMOVE,
    decode_change,
    encode_delta,
)
from penstock.formats.taskflux.extensions import decode_extension, is_extension
from penstock.model import NOTHING, QUEUE_NAME_SIZE_MAX, RESERVED_PREFIX, Index
from penstock.raft.configuration import Configuration
from penstock.raft.configuration import decode_change as decode_group_change
from penstock.raft.log import Compacted, Unavailable
from penstock.raft.messages import Entry, EntryKind, Snapshot
from penstock.raft.refusals import InvalidChange
from penstock.storage.directory import NodeDirectory

EMPTY: Final = encode_delta(NOTHING)
"""What begins a term: it says nothing, to us and to plain readers."""

MEMBERS: Final = (RESERVED_PREFIX + "members.").encode()
"""The name of a queue that no one can have: what follows is a change of members."""

_MEMBERS_START: Final = 2  # behind the delta's type and the name's length
CHANGE_SIZE_MAX: Final = QUEUE_NAME_SIZE_MAX - len(MEMBERS)

HELD_SIZE_MAX: Final = 64 * 2**20
"""Bytes of the newest entries that are kept in memory: what followers ask for is mostly among them."""

ENTRY_OVERHEAD: Final = 120
"""About what an entry costs in memory beyond its payload."""


def stored_payload(entry: Entry) -> bytes:
    """Return what the log and the wire hold of an entry. Raises ``InvalidChange`` if a change does not fit."""
    if entry.kind is EntryKind.NORMAL:
        return entry.payload
    if len(entry.payload) > CHANGE_SIZE_MAX:
        raise InvalidChange(
            f"the change takes {len(entry.payload)} bytes and {CHANGE_SIZE_MAX} fit an entry; make it in parts"
        )
    name = MEMBERS + entry.payload
    return bytes((DELETE, len(name))) + name


def is_change(payload: bytes) -> bool:
    """Return whether a stored payload is a change of members."""
    return payload[:1] == _DELETE and payload.startswith(MEMBERS, _MEMBERS_START)


_DELETE: Final = bytes((DELETE,))


def change_in(payload: bytes) -> bytes:
    """Return the change in a stored payload that is one. Raises ``CorruptData``."""
    if payload[1] != len(payload) - _MEMBERS_START:
        raise CorruptData(
            "the name's length does not fit the delta",
            offset=1,
            expected=str(len(payload) - _MEMBERS_START),
            found=str(payload[1]),
        )
    return payload[_MEMBERS_START + len(MEMBERS) :]


def entry_of(index: int, term: int, payload: bytes) -> Entry:
    """Return an entry from what the log or the wire hold of it; ``index`` as the core counts."""
    if payload[:1] != _DELETE or not is_change(payload):  # a call less for most of them
        return Entry(index, term, payload)
    return Entry(index, term, change_in(payload), EntryKind.CONFIGURATION)


_ADD_HEAD_SIZE: Final = KEY_AND_SIZE.size


def check_payloads(payloads: Sequence[bytes]) -> None:
    """Raise ``BadData`` unless every payload is an entry that the state machine can decode."""
    known = b""  # the type and queue name of the last payload that was decoded: most that follow have the same
    for payload in payloads:
        if not payload:
            continue  # it keeps an index in use
        if known and payload.startswith(known):
            left = len(payload) - len(known)
            if payload[0] == REMOVE and left == UINT64.size:
                continue
            if payload[0] == ADD and left >= _ADD_HEAD_SIZE:
                size = KEY_AND_SIZE.unpack_from(payload, len(known))[1]
                if left == _ADD_HEAD_SIZE + size:
                    continue
        _check_payload(payload)
        known = payload[: 2 + payload[1]]


def _check_payload(payload: bytes) -> None:
    if is_change(payload):
        decode_group_change(change_in(payload))
    elif (
        not is_extension(payload, 0, len(payload))
        or decode_extension(payload, 0, len(payload)) is None
    ):
        decode_change(payload, 0, len(payload), by_id=True)


class EntryStore:
    """What the disk holds for sure, as the core asks for it. Its newest entries are held in memory.

    It moves only with ``stored``, ``compacted`` and ``restarted``, on the loop: what a write under way does to the files is
    not seen before.
    """

    def __init__(self, directory: NodeDirectory, configuration: Configuration) -> None:
        """``configuration`` is the one at the snapshot, if there is one."""
        self._directory = directory
        self._log = directory.log
        self._held: list[Entry] = []  # the last ones, without a gap up to ``last``
        self._held_size = 0
        self._last = int(self._log.end)
        self._snapshot_configuration = configuration
        self._note_beginning()

    def _note_beginning(self) -> None:
        log, point = self._log, self._directory.snapshot.point
        self._point = point
        if point is not None and log.first <= point.index + 1:
            # The term before the first entry is known only where the snapshot ends. Elsewhere the first entry that the
            # log holds stands for it, and cannot be asked for itself.
            self._base = log.first + 1 if log.first <= point.index else point.index + 1
        else:
            self._base = 0
        self._base_term = self._term_of_base()

    def _term_of_base(self) -> int:
        if self._base == 0:
            return 0
        index = Index(self._base - 1)
        if self._point is not None and index == self._point.index:
            return int(self._point.term)
        return int(self._log.term(index))

    @property
    def first(self) -> int:
        return self._base + 1

    @property
    def last(self) -> int:
        return self._last

    def term(self, index: int) -> int:
        if index > self._last:
            raise Unavailable(index)
        if index < self._base:
            raise Compacted(index)
        if index == self._base:
            return self._base_term
        place = index - (self._last - len(self._held)) - 1
        if place >= 0:
            return self._held[place].term
        try:
            return int(self._log.term(Index(index - 1)))
        except FileCompacted:
            raise Compacted(index) from None

    def entries(self, first: int, end: int, *, size_max: int) -> Sequence[Entry]:
        if first <= self._base:
            raise Compacted(first)
        end = min(end, self._last + 1)
        held_first = self._last - len(self._held) + 1
        if first < held_first:
            return self._read(first, min(end, held_first), size_max)
        found: list[Entry] = []
        size = 0
        for place in range(first - held_first, end - held_first):
            entry = self._held[place]
            size += entry.size
            if found and size > size_max:
                break
            found.append(entry)
        return found

    def _read(self, first: int, end: int, size_max: int) -> list[Entry]:
        try:
            read = self._log.read(Index(first - 1), Index(end - 1), size_max=size_max)
        except FileCompacted:
            raise Compacted(first) from None
        return [
            entry_of(first + place, int(entry.term), entry.payload)
            for place, entry in enumerate(read)
        ]

    def snapshot(self) -> Snapshot | None:
        if self._point is None:
            return None
        return Snapshot(self._point.index + 1, int(self._point.term), self._snapshot_configuration)

    # --- moving ---

    def stored(self, entries: Sequence[Entry]) -> None:
        """Note entries that are durable now; what stood from the first of them on is gone."""
        if not entries:
            return
        cut = entries[0].index - (self._last - len(self._held)) - 1
        if cut < len(self._held):
            self._held_size -= sum(e.size + ENTRY_OVERHEAD for e in self._held[max(0, cut) :])
            del self._held[max(0, cut) :]
        self._held += entries
        self._held_size += sum(e.size + ENTRY_OVERHEAD for e in entries)
        self._last = entries[-1].index
        if self._held_size > HELD_SIZE_MAX:
            self._let_go()

    def _let_go(self) -> None:
        """Drop the older half at once: dropping one by one would move all others each time."""
        dropped = 0
        while self._held_size > HELD_SIZE_MAX // 2 and dropped < len(self._held) - 1:
            self._held_size -= self._held[dropped].size + ENTRY_OVERHEAD
            dropped += 1
        del self._held[:dropped]

    def compacted(self, configuration: Configuration) -> None:
        """Note that a snapshot of this state is in place and the log may begin later."""
        self._snapshot_configuration = configuration
        self._note_beginning()

    def restarted(self, configuration: Configuration) -> None:
        """Note that a leader's snapshot is in place, and the log is empty behind it."""
        self._held.clear()
        self._held_size = 0
        self._last = int(self._log.end)
        self.compacted(configuration)
