"""Figures of the record format: scanning in bulk, decoding, encoding, bytes on disk; and of the state (``records_state``).

Run by ``bench/records``; prints a table and, with ``--write``, puts it into docs/benchmarks.md. One core, in process,
processor time; each line is the median of some rounds, and the least and the greatest of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator
from random import Random

from formats import RESULTS, machine
from penstock.formats.records.add import AddBody, Rules, decode_add
from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.arrow import task_batch
from penstock.formats.records.changes import AddTasks, Change, RemoveTasks, Stamp, decode_change
from penstock.formats.records.header import HEADER_SIZE, check_body, decode_header
from penstock.formats.records.ids import RemoveReason
from penstock.formats.records.read import Chain, End, Stop, collect, walk
from penstock.formats.records.scan import RecordColumns, scan_records
from penstock.formats.records.task_scan import scan_tasks
from penstock.formats.records.writer import record_of, write_log
from records_line import Line
from records_state import state_lines
from records_tools import tool_lines

BATCH = 100
PAYLOAD_SIZE = 100
PRODUCER = bytes(range(16))
STAMP = Stamp(index=42, term=3, time_ms=1_700_000_000_000, principal_id=5)
CALLS = 5_000
START, END = "<!-- bench/records -->", "<!-- end of bench/records -->"


def batch_body(random: Random, **columns: object) -> bytes:
    """Return the request of one batch, as our client sends it."""
    payloads = [random.randbytes(PAYLOAD_SIZE) for _ in range(BATCH)]
    arguments: dict[str, object] = {"keys": 5, "producer": (PRODUCER, 0), **columns}
    return encode_add(b"orders", payloads=payloads, **arguments)  # type: ignore[arg-type]


def add_of(body: bytes, first_id: int = 1) -> AddTasks:
    return AddTasks(1, first_id, decode_add(body, 0, len(body), Rules.REQUEST))


def batches(size: int) -> Iterator[tuple[Stamp, Change]]:
    """Yield entries of one batch each, about ``size`` bytes of them."""
    random = Random(7)
    bodies = [batch_body(random, keys=key) for key in range(50)]
    for index in range(1, 1 + size // len(bodies[0])):
        yield STAMP._replace(index=index), add_of(bodies[index % 50], index * BATCH)


def seconds(rounds: int, action: Callable[[], object]) -> list[float]:
    """Return the processor time of each of some rounds."""
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        action()
        found.append(time.process_time() - begin)
    return found


def drained(batches: Generator[RecordColumns, None, End]) -> tuple[list[RecordColumns], End]:
    found = []
    while True:
        try:
            found.append(next(batches))
        except StopIteration as done:
            return found, done.value


def scan_lines(size: int, rounds: int) -> list[Line]:
    """Measure scans of a log of batches."""
    (segment,) = write_log(batches(size), cluster_id=bytes(16), segment_size=2 * size)
    data, chain = segment.data, Chain(0, 0)
    records, end = drained(scan_records(data, chain=chain))  # also loads the kernels
    assert end.stop is Stop.END
    tasks = sum(int(batch.count.sum()) for batch in records)

    def explode() -> int:
        return sum(len(rows) for batch in records for rows in scan_tasks(data, batch))

    def show() -> int:
        rows = (rows for batch in records for rows in scan_tasks(data, batch))
        return sum(task_batch(data, batch).num_rows for batch in rows)

    assert explode() == show() == tasks
    lines = []
    actions: list[tuple[str, Callable[[], object], int, float | None]] = [
        (
            "scan with checksums and chain",
            lambda: drained(scan_records(data, chain=chain)),
            rounds,
            2,
        ),
        (
            "scan, headers and chain only",
            lambda: drained(scan_records(data, chain=chain, check_bodies=False)),
            rounds,
            10,
        ),
        ("tasks of scanned records in columns", explode, rounds, None),
        ("the same as Arrow batches", show, rounds, None),
        (
            "plain reader with checksums and chain",
            lambda: collect(walk(data, chain=chain)),
            3,
            None,
        ),
    ]
    for what, action, count, goal in actions:
        rates = [len(data) / used / 1e9 for used in seconds(count, action)]
        median = statistics.median(rates)
        lines.append(
            Line(
                what=what,
                unit="GB/s",
                values=rates,
                goal="" if goal is None else f"≥ {goal} GB/s",
                is_met=None if goal is None else median >= goal,
            )
        )
    return lines


def call_line(what: str, rounds: int, action: Callable[[], object]) -> Line:
    """Measure one call in microseconds."""

    def many() -> None:
        for _ in range(CALLS):
            action()

    values = [used / CALLS * 1e6 for used in seconds(rounds, many)]
    return Line(what=what, unit="µs", values=values)


def call_lines(rounds: int) -> list[Line]:
    """Measure decoding and encoding of single bodies and records."""
    random = Random(3)
    keys = [random.randrange(10) for _ in range(BATCH)]
    plain = encode_add(b"orders", 5, [random.randbytes(PAYLOAD_SIZE) for _ in range(BATCH)])
    with_producer = batch_body(random)
    mixed = batch_body(random, keys=keys)
    expiring = batch_body(random, expires=60_000)
    payloads = [random.randbytes(PAYLOAD_SIZE) for _ in range(BATCH)]
    change = add_of(with_producer)
    remove = RemoveTasks(1, range(100, 200), RemoveReason.ACKED)
    record = record_of(remove, STAMP, 0)
    header = decode_header(record)

    def decoding(body: bytes) -> Callable[[], AddBody]:
        return lambda: decode_add(body, 0, len(body), Rules.REQUEST)

    def read() -> Change:
        check_body(record, 0, header)
        return decode_change(decode_header(record), record, HEADER_SIZE, len(record))

    return [
        call_line("decode an add of 100, one key", rounds, decoding(plain)),
        call_line("the same with a producer", rounds, decoding(with_producer)),
        call_line("with ten mixed keys", rounds, decoding(mixed)),
        call_line("with an expiry", rounds, decoding(expiring)),
        call_line(
            "encode an add of 100, from payloads",
            rounds,
            lambda: encode_add(b"orders", 5, payloads, producer=(PRODUCER, 0)),
        ),
        call_line("record of an add of 100", rounds, lambda: record_of(change, STAMP, 0)),
        call_line("record of a remove of 100", rounds, lambda: record_of(remove, STAMP, 0)),
        call_line("read a remove of 100, checksums included", rounds, read),
    ]


def size_lines() -> list[Line]:
    """Count the bytes on disk of tasks of 100 bytes."""
    random = Random(3)
    batch = len(record_of(add_of(batch_body(random)), STAMP, 0)) / BATCH
    body = encode_add(b"orders", 5, [random.randbytes(PAYLOAD_SIZE)], producer=(PRODUCER, 0))
    lone = len(record_of(add_of(body), STAMP, 0))
    ack = len(record_of(RemoveTasks(1, range(1, 2), RemoveReason.ACKED), STAMP, 0))
    return [
        Line(
            what="bytes on disk: a task in batches of 100",
            unit="bytes",
            values=[batch],
            goal="≤ 120",
            is_met=batch <= 120,
        ),
        Line(
            what=f"a lone task with producer ({lone}) and its ack ({ack})",
            unit="bytes",
            values=[lone + ack],
            goal="≤ 300",
            is_met=lone + ack <= 300,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/records")
    parser.add_argument("--size-mb", type=int, default=256, help="size of the scanned log")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/benchmarks.md"
    )
    asked = parser.parse_args()
    lines = [
        *scan_lines(asked.size_mb * 10**6, asked.rounds),
        *call_lines(asked.rounds),
        *size_lines(),
        *state_lines(asked.rounds),
        *tool_lines(min(asked.rounds, 3)),
    ]
    setting = (
        f"A log of {asked.size_mb} MB in memory, batches of {BATCH} tasks of {PAYLOAD_SIZE} bytes with a producer; processor"
        f" time, {asked.rounds} rounds, {machine()}."
    )
    text = "\n".join(
        (
            setting,
            "",
            "| | median | least – greatest | goal | |",
            "|---|---:|---:|---:|---|",
            *(line.row() for line in lines),
        )
    )
    print(text)
    if asked.write:
        page = RESULTS.read_text()
        before, _, rest = page.partition(START)
        _, _, after = rest.partition(END)
        RESULTS.write_text(f"{before}{START}\n{text}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
