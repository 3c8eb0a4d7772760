"""The messages of a queue that are still there, in order, each read when its turn comes.

Unless told otherwise these are the messages that a broker would have after a restart: persistent ones
that can be found, and that have not expired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from penstock.errors import BadData, PathRefused, UnsupportedVersion
from penstock.families.damage import Damage, Report
from penstock.families.family import Progress, no_progress
from penstock.families.rabbitmq.damage import BAD_MESSAGE, REASONS
from penstock.families.rabbitmq.location import Queue, Vhost
from penstock.families.rabbitmq.plausible import BAD_SIZE, size_reason
from penstock.families.rabbitmq.queue_index import (
    Embedded,
    Indexed,
    Nowhere,
    Own,
    Shared,
    message_damage,
    read_index,
)
from penstock.families.rabbitmq.store_map import StoreMap, build_map
from penstock.families.tables import MISSING
from penstock.formats.rabbitmq import queue_v2
from penstock.formats.rabbitmq.journal import begins_like_message
from penstock.formats.rabbitmq.messages import Message, decode_message
from penstock.formats.rabbitmq.queue_v2 import RecordStatus
from penstock.storage.files import OpenFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which messages are asked for, beside those that survive a restart."""

    as_of_us: int  # messages that expire at this time or before are expired
    transient: bool = False
    expired: bool = False


class Held(NamedTuple):
    """A message that a queue still holds."""

    indexed: Indexed
    message: Message


@dataclass(slots=True)
class Count:
    """How many messages a reading met; it grows as the reading goes on."""

    messages: int = 0
    transient: int = 0  # left out: a restart forgets them
    expired: int = 0  # left out
    lost: int = 0  # left out: no whole message was found
    body_size: int = 0  # of the messages


@dataclass(slots=True, kw_only=True)
class Bodies:
    """Finds the bodies of a vhost's messages. A store is scanned when it is first needed."""

    vhost: Vhost
    files: OpenFiles
    report: Report  # what is no whole record in the stores
    progress: Progress = no_progress
    _persistent: StoreMap | None = field(default=None, init=False)
    _transient: StoreMap | None = field(default=None, init=False)

    @property
    def persistent(self) -> StoreMap:
        if self._persistent is None:
            self._persistent = build_map(self.vhost.persistent, self.report, progress=self.progress)
        return self._persistent

    @property
    def transient(self) -> StoreMap:
        if self._transient is None:
            self._transient = build_map(self.vhost.transient, self.report, progress=self.progress)
        return self._transient

    def read(self, indexed: Indexed) -> bytes | Damage:
        """Return the message that an index speaks of, or why it is not there."""
        body = indexed.body
        match body:
            case Embedded():
                return self._read_embedded(indexed, body)
            case Shared():
                return self._read_shared(indexed, body)
            case Own():
                return self._read_own(indexed, body)
            case Nowhere():
                return _missing(indexed, "the message was only in the broker's memory")
            case _ as never:
                assert_never(never)

    def _read_embedded(self, indexed: Indexed, body: Embedded) -> bytes | Damage:
        try:
            data = self.files.read(body.path, body.offset, body.length)
        except (OSError, PathRefused):
            return _missing(indexed, "the file cannot be read any more")
        return data if len(data) == body.length else _missing(indexed, "the file was cut")

    def _read_shared(self, indexed: Indexed, body: Shared) -> bytes | Damage:
        found = self.persistent.read(body.message_id, self.files)
        if found is None and not indexed.is_persistent:
            found = self.transient.read(body.message_id, self.files)
        return _missing(indexed, REASONS[MISSING]) if found is None else found

    def _read_own(self, indexed: Indexed, body: Own) -> bytes | Damage:
        slot, head_size = body.slot, queue_v2.RECORD_HEAD.size
        offset = slot.message_offset
        try:
            head = self.files.read(body.path, offset, head_size)
            # Only a length that the index confirms is worth reading; without one the head says enough.
            length = int.from_bytes(head[:4], "big")
            size = head_size + (length if length == slot.message_length else 0)
            data = self.files.read(body.path, offset, size)
        except (OSError, PathRefused, OverflowError):
            return _missing(indexed, f"{body.path.name} cannot be read")
        if len(head) == head_size and length != slot.message_length:
            return _missing(indexed, f"offset {offset} of {body.path.name}: another length")
        # The record as if it stood first in its file: a header's room before it, and nothing behind.
        alone = slot._replace(message_offset=queue_v2.HEADER_SIZE)
        view = bytes(queue_v2.HEADER_SIZE) + data
        record = queue_v2.find_record(view, alone)
        if offset >= queue_v2.HEADER_SIZE and record.status is RecordStatus.OK:
            return queue_v2.decode_message(view, record)
        return _missing(
            indexed, f"offset {offset} of {body.path.name}: {REASONS[record.status.word]}"
        )


def _missing(indexed: Indexed, reason: str) -> Damage:
    return message_damage(indexed, MISSING, reason)


def read_queue(
    queue: Queue,
    bodies: Bodies,
    wanted: Wanted,
    *,
    report: Report,
    count: Count | None = None,
    progress: Progress = no_progress,
) -> Iterator[Held]:
    """Yield the messages of a queue's directory in order; report what is damaged or cannot be found."""
    count = Count() if count is None else count
    entry_count = bodies.vhost.entry_count
    for indexed in read_index(queue, entry_count=entry_count, report=report, progress=progress):
        if indexed.is_acked:
            continue
        if not indexed.is_persistent and not wanted.transient:
            count.transient += 1
        elif is_expired(indexed, wanted.as_of_us) and not wanted.expired:
            count.expired += 1
        else:
            held = read_held(indexed, bodies, report)
            if held is None:
                count.lost += indexed.is_persistent
                count.transient += not indexed.is_persistent
            elif is_forgotten(held) and not wanted.transient:
                count.transient += 1
            else:
                count.messages += 1
                count.body_size += held.message.content.body_size
                yield held


def is_expired(indexed: Indexed, as_of_us: int) -> bool:
    return 0 < indexed.expiry_us <= as_of_us


def is_forgotten(held: Held) -> bool:
    """Return whether a broker drops a message that its index calls persistent."""
    return isinstance(held.indexed.body, Embedded) and not held.message.is_persistent


def read_held(indexed: Indexed, bodies: Bodies, report: Report) -> Held | None:
    """Return a message that an index knows; report one that cannot be found or read."""
    data = bodies.read(indexed)
    if isinstance(data, Damage):
        # Where a transient message was is none of a restart's business: mostly it was in memory alone.
        if indexed.is_persistent:
            report(data)
        return None
    message = decode(data, lambda status, reason: report(message_damage(indexed, status, reason)))
    if message is None:
        return None
    size = message.content.body_size
    if size != indexed.body_size:
        report(message_damage(indexed, BAD_SIZE, size_reason(indexed.body_size, size)))
    return Held(indexed, message)


def decode(data: bytes, report: Callable[[str, str], None]) -> Message | None:
    """Return the message in a term; report status and reason if it is none."""
    try:
        return decode_message(data)
    except UnsupportedVersion as error:
        report("unsupported", f"{error.reason}: {error.found}")
    except BadData as error:
        # A message that does not even begin like one was reported by the scan of the record.
        if begins_like_message(data, 0, len(data)):
            report(BAD_MESSAGE, error.reason)
    return None
