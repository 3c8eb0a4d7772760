"""Moving tasks to another queue: a new position, the same identity."""

from __future__ import annotations

from array import array

from penstock.formats.records.add import ORIGIN
from penstock.formats.records.canonical import encode_canonical
from penstock.formats.records.changes import MoveTasks
from penstock.formats.records.columns import NONE, Blobs
from penstock.formats.records.ids import MoveReason, Strings, Times
from penstock.queues.columnar.chunk import Chunk
from penstock.queues.columnar.columns import Column, Ids, alike, blobs_of, clamped, string_at
from penstock.queues.columnar.details import ATTEMPTS_MAX, Details, earliest
from penstock.queues.columnar.directory import Slice
from penstock.queues.columnar.gather import gather, grouped
from penstock.queues.columnar.queue import CHUNK_SIZE, CHUNK_TASKS, Queue, positions


def move(source: Queue, destination: Queue, change: MoveTasks, now_ms: int) -> int:
    """Move tasks. Return how many of the ids were not there; their new ids are not used again either."""
    last_id = change.first_destination_id + len(change.ids) - 1
    slices = source.alive(change.ids)
    chunks = [
        _moved(source.id, group, change, now_ms)
        for group in grouped(slices, count_max=CHUNK_TASKS, size_max=CHUNK_SIZE)
    ]
    missing = source.remove(change.ids)
    for chunk in chunks:
        destination.add(chunk)
    destination.last_id = last_id
    return missing


def _moved(source_id: int, group: list[Slice], change: MoveTasks, now_ms: int) -> Chunk:
    """Return tasks as the destination gets them."""
    which = [number for chunk, places in group for number in positions(change.ids, chunk, places)]
    old = gather(group, now_ms)
    old_ids = old.ids_at(range(old.count))
    first_id = change.first_destination_id
    ids = (
        None if which[-1] - which[0] == old.count - 1 else array("Q", [first_id + n for n in which])
    )
    keys = old.keys if change.keys is None else _picked(change.keys, which)
    new = Chunk(first_id + which[0], ids, old.count, keys, old.sizes, old.size, old.data, old.at)
    new.base_ms = now_ms
    new.enqueued_ms, new.principal_id, new.entry = old.enqueued_ms, old.principal_id, old.entry
    details = old.own_details()
    attempts = [0] * old.count if details.attempts is None else details.attempts.tolist()
    details.strings[ORIGIN] = _origins(source_id, old_ids, attempts, which, change, now_ms)
    _set_born(details, source_id, old_ids)
    details.attempts = _new_attempts(attempts, change.reason)
    details.not_before = _times(change.not_before, which, now_ms)
    details.expires = _times(change.expires, which, now_ms)
    details.delay_ms = earliest(details.not_before, now_ms)
    details.expiry_ms = earliest(details.expires, now_ms)
    details.marks = None
    new.details = details
    return new


def _new_attempts(attempts: list[int], reason: MoveReason) -> array[int] | None:
    if reason == MoveReason.REDRIVEN:
        return None
    if reason == MoveReason.DEAD_FAILED:
        attempts = [min(count + 1, ATTEMPTS_MAX) for count in attempts]
    return array("I", attempts) if any(attempts) else None


def _set_born(details: Details, source_id: int, ids: Ids) -> None:
    """Keep the identity of tasks that have one; the others were added first where they were until now."""
    if details.born_queues is None or details.born_ids is None:
        details.born_queues = array("I", [source_id]) * len(ids)
        details.born_ids = array("Q", ids)
        return
    born = list(zip(details.born_queues, details.born_ids, ids, strict=True))
    details.born_ids = array("Q", [first if queue else now for queue, first, now in born])
    details.born_queues = array("I", [queue or source_id for queue, _, _ in born])


def _origins(
    source_id: int,
    ids: Ids,
    attempts: list[int],
    which: list[int],
    change: MoveTasks,
    now_ms: int,
) -> Blobs:
    """Return the last hop of each task, as canonical JSON: the names are in their order."""
    tail = f',"queue":{source_id},"reason":{int(change.reason)},"time_ms":{now_ms}}}'
    errors = _errors(change.errors, which)
    return blobs_of(
        [
            f'{{"attempts":{count}{error},"id":{task_id}{tail}'.encode()
            for count, error, task_id in zip(attempts, errors, ids, strict=True)
        ]
    )


def _errors(errors: Strings | None, which: list[int]) -> list[str]:
    if errors is None:
        return [""] * len(which)
    texts = [string_at(errors, number) for number in which]
    canonical = {text: encode_canonical(text.decode()).decode() for text in set(texts)}
    return [f',"error":{canonical[text]}' for text in texts]


def _picked(column: Times, which: list[int]) -> Column:
    if isinstance(column, int):
        return column
    return alike(array("q", [column[number] for number in which]))


def _times(column: Times | None, which: list[int], now_ms: int) -> Column | None:
    if column is None:
        return None
    found = _picked(column, which)
    if isinstance(found, int):
        return None if found == NONE else clamped(now_ms + found) - now_ms
    return array("q", [NONE if ms == NONE else clamped(now_ms + ms) - now_ms for ms in found])
