"""Tables read without a Spark: the reader's plain methods, and what the scalar decoders say of the same files."""

from __future__ import annotations

import os
import pickle
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import BadData
from penstock.families.family import Split, no_progress
from penstock.families.tables import Table, schema_of
from penstock.families.taskflux.location import LogFile, resolve
from penstock.families.taskflux.read import Found, History, follower, survey
from penstock.families.taskflux.rows import (
    bad_file_row,
    entry_row,
    metadata_row,
    snapshot_rows,
    unreadable_rows,
)
from penstock.families.taskflux.tables.plan import LogPlan
from penstock.model import RESERVED_PREFIX
from penstock.spark.source import PenstockSource, Reader, Task
from penstock.storage.files import opened
from penstock.storage.reading import scan_file

MEMORY: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where thousands of directories are made."""

Row = dict[str, Any]
Said = dict[str, Any]
"""A row without what the scalar rows do not have: properties, times, and the words of a reason."""

UNSAID: Final = ("properties", "event_time", "reason")


# --- through the reader --------------------------------------------------------------------------


def reader_of(
    *paths: object,
    split: int | None = None,
    columns: Sequence[str] = (),
    **options: str,
) -> Reader:
    """Return a reader as Spark makes it. ``split``: a size that users may not ask for."""
    given = {name.lower(): value for name, value in options.items()}
    if len(paths) == 1:
        given["path"] = str(paths[0])
    elif paths:
        given["paths"] = "[" + ", ".join(f'"{path}"' for path in paths) + "]"
    source: PenstockSource = pickle.loads(pickle.dumps(PenstockSource(given)))
    own = source.schema()
    reader = source.reader(StructType([own[name] for name in columns]) if columns else own)
    assert isinstance(reader, Reader)
    if split is not None:
        reader._options = replace(reader._options, split_size=split)
    return reader


def tasks_of(reader: Reader) -> list[Task]:
    """Return the tasks as they reach an executor."""
    tasks: list[Task] = pickle.loads(pickle.dumps(list(reader.partitions())))
    return tasks


def pieces_of(reader: Reader) -> list[Split]:
    return [piece for task in tasks_of(reader) for piece in task.splits]


def ranges_of(reader: Reader) -> list[tuple[str, int, int]]:
    """Return the ranges of log files that are read: path, start, stop."""
    plans = [piece.plan for piece in pieces_of(reader)]
    return [(plan.shown, plan.start, plan.stop) for plan in plans if isinstance(plan, LogPlan)]


def rows_of(reader: Reader) -> list[Row]:
    """Return all rows, task by task, each read by a reader of its own as on a cluster."""
    rows: list[Row] = []
    for task in tasks_of(reader):
        own: Reader = pickle.loads(pickle.dumps(reader))
        for batch in own.read(task):
            assert batch.num_rows > 0
            assert batch.schema.names == list(own._columns)
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows


def read_rows(*paths: object, **how: Any) -> list[Row]:
    return rows_of(reader_of(*paths, **how))


def read_said(*paths: object, **how: Any) -> list[Said]:
    return [said(row) for row in read_rows(*paths, **how)]


def said(row: Row) -> Said:
    """Return a row as the scalar rows can say it."""
    short = {name: value for name, value in row.items() if name not in UNSAID}
    if is_ours(row):
        short["op"] = short["payload"] = short["queue"] = None
    return short


def is_ours(row: Row) -> bool:
    """Return whether a row is an entry that only we understand; its words are tested elsewhere."""
    whole = row.get("kind") == "entry" and row.get("status") == "ok"
    payload: bytes = row.get("payload") or b""
    name = payload[2 : 2 + len(RESERVED_PREFIX)]
    return whole and (
        row.get("op") == "extension"
        or (row.get("queue") or "").startswith(RESERVED_PREFIX)
        or (payload[:1] == b"D" and name == RESERVED_PREFIX.encode())
    )


def check_schema(table: Table) -> None:
    """Check that a batch's schema is what Spark compares it with."""
    own = schema_of(table)
    assert to_arrow_schema(from_arrow_schema(own), timezone="UTC").equals(own)


# --- by the scalar decoders ----------------------------------------------------------------------


def scalar_rows(path: Path) -> list[Said]:
    """Return what the decoders say of every piece of a source, each file begun with term 0."""
    target = resolve(path)
    history = survey(target)
    rows: list[Row] = []
    if target.metadata is not None and history.metadata is not None:
        rows.append(metadata_row(target.metadata, history.metadata))
    rows += unreadable_rows(history)
    if target.snapshot is not None and history.snapshot is not None:
        try:
            rows += _listed(snapshot_rows(target.snapshot, history.snapshot, no_progress), rows)
        except BadData as error:
            rows.append(bad_file_row(error, "snapshot", target.snapshot))
    for log in target.logs:
        rows += [entry_row(history, found) for found in _scan(history, log)]
    return [_said(path, row) for row in rows]


def _listed(found: Iterator[Row], rows: list[Row]) -> list[Row]:
    """Add rows one by one, so that those before an error are kept."""
    for row in found:
        rows.append(row)  # noqa: PERF402
    return []


def _scan(history: History, log: LogFile) -> Iterator[Found]:
    index = history.first if log.first is None else log.first
    following: int | None = index
    with opened(log.path) as file:
        start, rule = log.layout.header_size, history.end_rule(log)
        pieces = scan_file(file, log.layout, start=start, size=file.size(), rule=rule)
        for piece, payload in pieces:
            found = Found(
                log, piece.offset, piece.size, piece.status, following, piece.term, payload
            )
            yield found
            following = follower(found)


def _said(source: Path, row: Row) -> Said:
    """Return a row of the tools in the columns of the table."""
    is_file = source.is_file()
    is_bad = row["status"] != "ok"
    kind = row["kind"]
    if kind in ("snapshot", "log", "sidecar") or (kind == "metadata" and is_bad):
        kind = "damage"
    path = Path(row["path"])
    short: Said = {
        "source": str(source),
        "family": "taskflux",
        "kind": kind,
        "path": path.name if is_file else str(path.relative_to(source)),
        "offset": row["offset"],
        "size": row["size"],
        "log_index": row.get("index"),
        "term": row.get("term"),
        "op": row.get("op") or (kind if kind in ("queue", "task") else None),
        "queue": row.get("queue"),
        "key": row.get("key"),
        "task_id": _signed(row.get("id")),
        "payload": None if row.get("payload") is None else b64decode(row["payload"]),
        "status": row["status"],
        "severity": row.get("severity"),
    }
    return short


def _signed(number: int | None) -> int | None:
    """Return an id as a column of signed numbers has it."""
    return number if number is None or number < 2**63 else number - 2**64


def agree(found: list[Said], expected: list[Said]) -> None:
    """Compare, but for what a damaged record's payload would say if it could be trusted."""
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        theirs = dict(theirs)
        if theirs["kind"] == "entry" and theirs["status"] not in ("ok", "bad-delta"):
            # The table shows the bytes as they stand.
            for name in ("op", "queue", "key", "task_id", "payload"):
                theirs[name] = ours[name] if name == "payload" else None
        if theirs["kind"] == "task" and theirs["task_id"] is None:
            theirs["task_id"] = ours["task_id"]  # places in the file, where no ids are stored
        if is_ours(theirs):
            theirs["op"] = theirs["payload"] = theirs["queue"] = None
        assert ours == theirs
