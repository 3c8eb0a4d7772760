"""Folding whole entries into a state although others are missing: a change is applied as far as it can be."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from penstock.errors import BadData, PathRefused
from penstock.families.penstock.read import History, load
from penstock.families.penstock.search import whole_record
from penstock.formats.records.changes import (
    AddTasks,
    Change,
    DeleteQueue,
    Envelope,
    MoveTasks,
    SetQueue,
    Stamp,
    decode_change,
)
from penstock.formats.records.header import HEADER_SIZE, Header, Kind, decode_header
from penstock.formats.records.read import find_record
from penstock.formats.records.segment import FILE_HEADER_SIZE
from penstock.formats.records.settings import QueueSettings
from penstock.model import QueueName
from penstock.queues.columnar.state import State

_RESTORED: Final = (Kind.QUEUE, Kind.ADD, Kind.MEMBERS, Kind.ACCESS)


class Fold:
    """Applies entries of a log with gaps. A task is never dropped because something else is missing."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.notes: list[str] = []

    def apply(self, change: Change, stamp: Stamp) -> None:
        """Apply one entry as far as it can be."""
        match change:
            case Envelope(parts=parts):
                # A part of it may name a task that was lost; the others took effect.
                for part in parts:
                    self.apply(part.change, stamp._replace(principal_id=part.principal_id))
                return
            case AddTasks(queue_id=queue_id, body=body):
                self._ensure(queue_id, QueueName(body.name.decode()))
            case SetQueue(queue_id=queue_id, settings=settings):
                self._ensure(queue_id, settings.name)
            case MoveTasks(destination_id=destination_id) if (
                destination_id not in self._state.queues
            ):
                return  # its name is not known: the tasks stay where they are
            case _:
                pass
        self._state.apply(change, stamp)

    def _ensure(self, queue_id: int, name: QueueName) -> None:
        """Create a queue whose creation was lost. One of the same name must have been deleted before."""
        state = self._state
        if queue_id in state.queues:
            return
        old = state.by_name.get(name.encode())
        if old is not None:
            self.notes.append(
                f"queue {str(name)!r} was deleted and created again; the old one is left out"
            )
            stamp = Stamp(state.index, state.term, state.time_ms)
            state.apply(DeleteQueue(old.id), stamp)
        state.add_queue(queue_id, QueueSettings(name=name))
        state.next_queue_id = max(state.next_queue_id, queue_id + 1)


def restore_part(history: History) -> State:
    """Return what is whole of the newest snapshot, if the log does not begin with the first entry."""
    state = State()
    segments = history.target.segments
    if not history.target.snapshots or (segments and segments[0].number == 1):
        return state
    try:
        data = load(history.target.snapshots[-1])
    except (BadData, OSError, PathRefused):
        return state
    fold = Fold(state)
    number = history.target.snapshots[-1].number
    offset = find_record(data, FILE_HEADER_SIZE)
    while offset is not None:
        header = _header_at(data, offset)
        if header is None:
            offset = find_record(data, offset + 8)
            continue
        # A payload may contain records; those of the snapshot have its index. The header proves where the next one begins.
        if header.index == number and header.kind in _RESTORED and whole_record(data, offset):
            with suppress(BadData):
                change = decode_change(header, data, offset + HEADER_SIZE, offset + header.size)
                fold.apply(change, Stamp(header.index, header.term, header.time_ms))
        offset = find_record(data, offset + (header.size if header.index == number else 8))
    return state


def _header_at(data: bytes, offset: int) -> Header | None:
    try:
        return decode_header(data, offset)
    except BadData:
        return None
