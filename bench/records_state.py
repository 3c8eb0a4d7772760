"""Figures of the state of generation 4: changes, restarts, memory, housekeeping. Lines of ``bench/records``.

In process, one core, processor time. A batch is 100 tasks of 100 bytes with a producer. Restarts and memory are measured in a
process of their own: what the state takes is what the process grows by.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from statistics import median
from time import process_time
from typing import Any

from penstock.formats.records.add import Rules, decode_add
from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.changes import AddTasks, Change, RemoveTasks, SetQueue, Stamp
from penstock.formats.records.ids import RemoveReason
from penstock.formats.records.read import decode_entry, read_snapshot, walk
from penstock.formats.records.settings import QueueSettings
from penstock.formats.records.writer import write_log
from penstock.model import QueueName
from penstock.queues.columnar.restore import restore
from penstock.queues.columnar.snapshot import encode_snapshot, freeze
from penstock.queues.columnar.state import State
from records_line import Line

TIME_MS = 1_700_000_000_000
TASKS = 10**6
BATCH = 100
BATCHES = 100  # of one round
PAYLOAD = bytes(range(100))
PRODUCER = bytes(range(16))
CREATE = SetQueue(1, QueueSettings(name=QueueName("orders")))
MERGE_EVERY = 64  # records of a replay between merges

Keys = Callable[[], "int | list[int]"]


def keys_of(count: int) -> Keys:
    """Return a function that draws the keys of a batch: one for all, or mixed from so many."""
    random = Random(count)
    if count == 1:
        return lambda: 5
    if count == 10:
        return lambda: [random.randrange(10) for _ in range(BATCH)]
    return lambda: [TIME_MS + random.randrange(10**12) for _ in range(BATCH)]


def body_of(keys: int | list[int], number: int, **columns: Any) -> bytes:
    producer = (PRODUCER, BATCH * number)
    return encode_add(b"orders", keys, [PAYLOAD] * BATCH, producer=producer, **columns)


def new_state() -> State:
    state = State()
    state.apply(CREATE, Stamp(1, 1, TIME_MS))
    return state


def add_batch(state: State, body: bytes) -> None:
    first_id = state.queues[1].last_id + 1
    change = AddTasks(1, first_id, decode_add(body, 0, len(body), Rules.RECORD))
    state.apply(change, Stamp(state.index + 1, 1, TIME_MS, 3))


def add_batches(state: State, bodies: list[bytes]) -> None:
    for body in bodies:
        add_batch(state, body)


# --- changes -------------------------------------------------------------------------------------


def change_lines(rounds: int) -> list[Line]:
    lines: list[Line] = []
    cases: tuple[tuple[str, int, dict[str, int]], ...] = (
        ("one key", 1, {}),
        ("ten keys mixed", 10, {}),
        ("with a delay", 1, {"not_before": 1000}),
        ("with an expiry", 1, {"expires": 1000}),
        ("a key each", TASKS, {}),
    )
    for name, key_count, columns in cases:
        steps: dict[str, list[float]] = {}
        for _ in range(rounds):
            _measure_round(steps, keys_of(key_count), columns)
        for step, values in steps.items():
            is_goal = step == "decode and apply" and name == "one key"
            goal = "≤ 10" if is_goal else ""
            is_met = median(values) <= 10 if is_goal else None
            lines.append(
                Line(
                    what=f"batch of 100, {name}: {step}",
                    unit="µs",
                    values=values,
                    goal=goal,
                    is_met=is_met,
                )
            )
    return lines


def _measure_round(steps: dict[str, list[float]], keys: Keys, columns: dict[str, int]) -> None:
    """Apply, list, read and remove some batches; append µs for each batch."""
    state = new_state()
    queue = state.queues[1]
    bodies = [body_of(keys(), number, **columns) for number in range(BATCHES)]

    def measure(step: str, work: Callable[[], object]) -> None:
        start = process_time()
        work()
        steps.setdefault(step, []).append((process_time() - start) * 1e6 / BATCHES)

    measure("decode and apply", lambda: add_batches(state, bodies))
    measure("list in the order", queue.list_all)
    measure("find the next 100", lambda: [queue.next_runs(BATCH) for _ in bodies])
    removes = [RemoveTasks(1, ids, RemoveReason.ACKED) for ids in _removals(state)]
    stamp = Stamp(state.index + 1, 1, TIME_MS)
    measure("merge", lambda: [None for _ in iter(state.tidy, False)])
    measure("remove 100", lambda: [state.apply(change, stamp) for change in removes])
    assert not queue.count


def _removals(state: State) -> Iterator[range | array[int]]:
    """Yield the ids of the tasks in batches, in the order of delivery."""
    ids = [task_id for tasks in state.queues[1].in_order() for task_id in tasks.ids]
    for start in range(0, len(ids), BATCH):
        few = sorted(ids[start : start + BATCH])
        is_range = few[-1] - few[0] == len(few) - 1
        yield range(few[0], few[-1] + 1) if is_range else array("Q", few)


# --- restarts ------------------------------------------------------------------------------------


def log_of(key_count: int, *, is_half_removed: bool) -> Iterator[tuple[Stamp, Change]]:
    keys = keys_of(key_count)
    yield Stamp(1, 1, TIME_MS), CREATE
    index = 1
    for number in range(TASKS // BATCH):
        index += 1
        body = body_of(keys(), number)
        change = AddTasks(1, BATCH * number + 1, decode_add(body, 0, len(body), Rules.RECORD))
        yield Stamp(index, 1, TIME_MS + number, 3), change
    if is_half_removed:
        ids = Random(1).sample(range(1, TASKS + 1), TASKS // 2)
        for start in range(0, len(ids), BATCH):
            index += 1
            few = array("Q", sorted(ids[start : start + BATCH]))
            yield Stamp(index, 1, TIME_MS + TASKS, 3), RemoveTasks(1, few, RemoveReason.ACKED)


def replay(segments: list[bytes]) -> State:
    """Return the state of a log, ready to serve: checked, applied, listed."""
    state = State()
    for data in segments:
        for number, record in enumerate(walk(data)):
            stamp, change = decode_entry(data, record)
            state.apply(change, stamp)
            if not number % MERGE_EVERY:
                state.merge_all()
    state.merge_all()
    state.list_all()
    return state


def measure_restart(key_count: int, is_half_removed: bool) -> dict[str, float]:
    """Return seconds for a restart from the log alone and from a snapshot, and for writing that."""
    entries = log_of(key_count, is_half_removed=is_half_removed)
    segments = [segment.data for segment in write_log(entries, cluster_id=bytes(16))]
    gc.collect()
    start = process_time()
    state = replay(segments)
    from_log = process_time() - start
    del segments
    start = process_time()
    snapshot = b"".join(encode_snapshot(freeze(state), last_checksum=1))
    written = process_time() - start
    count = state.queues[1].count
    del state
    gc.collect()
    start = process_time()
    state = restore(snapshot, read_snapshot(snapshot))
    from_snapshot = process_time() - start
    assert state.queues[1].count == count
    return {
        "from the log": from_log,
        "from a snapshot": from_snapshot,
        "writing a snapshot": written,
    }


# --- memory and housekeeping ---------------------------------------------------------------------


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def measure_memory(key_count: int) -> dict[str, float]:
    """Return MB that a million tasks take, all listed, and how long slices of housekeeping take, in ms."""
    keys = keys_of(key_count)
    state = new_state()
    gc.collect()
    gc.disable()  # its pauses are the node's to plan, and grow with the number of keys
    before, slices = _resident_mb(), list[float]()
    for number in range(TASKS // BATCH):
        add_batch(state, body_of(keys(), number))
        is_more = True
        while is_more:
            start = process_time()
            is_more = state.tidy()
            slices.append(process_time() - start)
    assert len(state.queues[1].next_runs(1)) == 1
    memory = _resident_mb() - before
    slices.sort()
    rare = slices[-len(slices) // 1000]
    return {"memory": memory, "rare": rare * 1e3, "longest": slices[-1] * 1e3}


def _in_new_process(call: str) -> dict[str, float]:
    code = f"import json, records_state; print(json.dumps(records_state.{call}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _repeated(call: str, rounds: int) -> dict[str, list[float]]:
    found = [_in_new_process(call) for _ in range(rounds)]
    return {name: [values[name] for values in found] for name in found[0]}


def state_lines(rounds: int) -> list[Line]:
    """Measure all of it; the long lines take a fifth of the rounds."""
    lines = change_lines(rounds)
    few = max(rounds // 5, 1)
    for key_count, name in ((1, "one key"), (10, "ten keys"), (TASKS, "10^6 keys")):
        goal = 2.0 if key_count == TASKS else 1.0
        for half, rest in ((False, ""), (True, ", half removed at random")):
            for step, values in _repeated(f"measure_restart({key_count}, {half})", few).items():
                is_goal = not step.startswith("writing")
                what = f"10^6 tasks{rest}, {name}: " + (f"restart {step}" if is_goal else step)
                is_met = median(values) <= goal if is_goal else None
                lines.append(
                    Line(
                        what=what,
                        unit="s",
                        values=values,
                        goal=f"≤ {goal}" if is_goal else "",
                        is_met=is_met,
                    )
                )
        found = _repeated(f"measure_memory({key_count})", few)
        limit = {10: 125, TASKS: 330}.get(key_count)
        lines.append(Line(
            what=f"10^6 tasks, {name}: memory", unit="MB", values=found["memory"],
            goal=f"≤ {limit}" if limit else "", is_met=max(found["memory"]) <= limit if limit else None,
        ))  # fmt: skip
        for step, which in (
            ("rare", "slice of housekeeping, 99.9 %"),
            ("longest", "longest slice"),
        ):
            what = f"10^6 tasks, {name}: {which}"
            is_met = median(found[step]) <= 1
            lines.append(Line(what=what, unit="ms", values=found[step], goal="≤ 1", is_met=is_met))
    return lines


if __name__ == "__main__":
    for line in state_lines(int(sys.argv[1]) if len(sys.argv) > 1 else 15):
        print(line.row(), flush=True)
