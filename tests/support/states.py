"""Reading states of generation 4 in tests: their tasks, their snapshot, a state from a snapshot or a log."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.formats.records.changes import Change, Stamp, decode_change
from penstock.formats.records.header import HEADER_SIZE, decode_header
from penstock.formats.records.read import read_snapshot
from penstock.formats.records.writer import record_of
from penstock.queues.columnar.producers import requests_of
from penstock.queues.columnar.queue import Queue
from penstock.queues.columnar.restore import restore
from penstock.queues.columnar.snapshot import View, encode_snapshot, freeze
from penstock.queues.columnar.state import State
from penstock.queues.columnar.task import Task, task_at


def tasks_in_order(queue: Queue) -> list[Task]:
    """Return the tasks of a queue in the order of delivery."""
    return [task_at(tasks.chunk, place) for tasks in queue.in_order() for place in tasks.places]


def ids_in_order(queue: Queue) -> list[tuple[int, int]]:
    """Return (key, id) in the order of delivery."""
    return [(tasks.key, task_id) for tasks in queue.in_order() for task_id in tasks.ids]


def last_requests(state: State) -> list[tuple[object, ...]]:
    """Return what is known of producers, least recently used first."""
    return [tuple(request) for request in requests_of(state.producers.freeze())]


def snapshot_of(state: State | View) -> bytes:
    """Return the bytes of a snapshot file."""
    view = freeze(state) if isinstance(state, State) else state
    return b"".join(encode_snapshot(view, last_checksum=7))


def restored(data: bytes) -> State:
    """Return the state of a snapshot file."""
    return restore(data, read_snapshot(data))


def recoded(change: Change, stamp: Stamp) -> Change:
    """Return a change as the log gives it back."""
    record = record_of(change, stamp, 0)
    return decode_change(decode_header(record), record, HEADER_SIZE, len(record))


def replayed(log: Iterable[tuple[Change, Stamp]], state: State | None = None) -> State:
    """Return the state after a log, from nothing or from a state."""
    state = State() if state is None else state
    for change, stamp in log:
        state.apply(change, stamp)
    return state


def tidied(state: State) -> State:
    """Do all housekeeping that is due."""
    while state.tidy():
        pass
    return state
