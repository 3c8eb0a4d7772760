"""What the queues hold, as rows: queues by name, tasks in the order of delivery."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat

from penstock.families.family import Row, encode_payload
from penstock.families.payloads import JSON_STARTS, json_of, texts_of
from penstock.families.penstock.rows import headers_as_json, iso, origin_as_json
from penstock.queues.columnar.chunk import Chunk
from penstock.queues.columnar.columns import Places
from penstock.queues.columnar.queue import Queue
from penstock.queues.columnar.sources import Sources
from penstock.queues.columnar.state import State
from penstock.queues.columnar.task import Task, task_at


def task_rows(state: State, only: str | None = None) -> Iterator[Row]:
    """Yield the tasks of all queues, or of one."""
    names = {queue_id: queue.name.decode("ascii") for queue_id, queue in state.queues.items()}
    access = state.access
    principals = {} if access is None else access.principals
    for queue in sorted(state.queues.values(), key=lambda each: each.name):
        if only is None or names[queue.id] == only:
            yield from _queue_rows(queue, names, principals)


def _queue_rows(
    queue: Queue, names: Mapping[int, str], principals: Mapping[int, str]
) -> Iterator[Row]:
    name = names[queue.id]
    for key, chunk, places in queue.in_order():
        payloads = _payloads(chunk, places)
        columns = zip(
            map(encode_payload, payloads),
            texts_of(payloads),
            chunk.ids_at(places),
            _others(chunk, places, names, principals),
            strict=True,
        )
        for encoded, text, task_id, others in columns:
            row: Row = {"queue": name, "key": key, "payload": encoded}
            if text is not None:
                row["payload_text"] = text
                if text[:1] in JSON_STARTS and (value := json_of(text)) is not None:
                    row["payload_json"] = value
            row["id"] = task_id
            row.update(others)
            yield row


def _others(
    chunk: Chunk, places: Places, names: Mapping[int, str], principals: Mapping[int, str]
) -> Iterable[Row]:
    """Return the fields behind the id, for each task. Most tasks share those of their record."""
    details = chunk.details
    if details is None:
        return repeat(_source(chunk.enqueued_ms, chunk.principal_id, principals), len(places))
    sources = details.sources
    own = (details.not_before, details.expires, details.attempts, details.born_ids, details.marks)
    if sources is None or own != (None,) * 5 or details.strings or details.new_headers:
        return (_details(task_at(chunk, place), names, principals) for place in places)
    return _by_line(sources, places, principals)


def _by_line(sources: Sources, places: Places, principals: Mapping[int, str]) -> Iterator[Row]:
    """Yield the fields of each task; neighbours of one line share them."""
    line, end = -1, -1
    row: Row = {}
    for place in places:
        if place >= end:
            line = sources.line(place)
            end = sources.starts[line + 1] if line + 1 < len(sources.starts) else places[-1] + 1
            row = _source(sources.enqueued[line], sources.principals[line], principals)
        yield row


def _source(enqueued_ms: int, principal_id: int, principals: Mapping[int, str]) -> Row:
    """Return when a task was enqueued, and by whom."""
    row: Row = {"enqueued": iso(enqueued_ms)} if enqueued_ms else {}
    if principal_id:
        row["principal"] = principals.get(principal_id, principal_id)
    return row


def _payloads(chunk: Chunk, places: Places) -> list[bytes]:
    size, at = chunk.sizes, chunk.at
    if not isinstance(size, int) or not isinstance(places, range) or not size:
        return [bytes(chunk.payload_at(place)) for place in places]
    block = bytes(chunk.data[at + places.start * size : at + places.stop * size])
    return [block[start : start + size] for start in range(0, len(block), size)]


def _details(task: Task, names: Mapping[int, str], principals: Mapping[int, str]) -> Row:
    """Return what is known of a task beyond its payload, as far as it is not the default."""
    row: Row = {}
    if task.attempts:
        row["attempts"] = task.attempts
    for name, time_ms in (
        ("enqueued", task.enqueued_ms or None),
        ("not_before", task.not_before_ms),
        ("expires", task.expires_ms),
    ):
        if time_ms is not None:
            row[name] = iso(time_ms)
    if task.headers:
        row["headers"] = headers_as_json(task.headers)
    if task.principal_id:
        row["principal"] = principals.get(task.principal_id, task.principal_id)
    if task.born is not None:
        row["born"] = {"queue": names.get(task.born[0], task.born[0]), "id": task.born[1]}
    if task.origin:
        row["origin"] = origin_as_json(task.origin)
    if task.mark is not None:
        consumer, deadline_ms = task.mark.consumer.decode("ascii"), task.mark.deadline_ms
        row["delivery"] = {"consumer": consumer, "until": iso(deadline_ms)}
    return row
