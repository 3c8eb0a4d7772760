"""What an audit compares of an entry is all of it: no two entries that differ in a bit give the same content."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.formats.taskflux.commands import encode_command
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.extensions import encode_extension
from penstock.formats.taskflux.generation import Contents
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record
from penstock.model import (
    CreateCommand,
    CreateQueue,
    Creating,
    Implementation,
    KeyRange,
    Policy,
    QueueName,
    Returning,
)
from penstock.spark.pipeline.tables import CONTENT
from support.directories import commands, deltas
from support.spark_tables import read_rows

ORDERS = QueueName("orders")
POLICIES = [
    Policy(),
    Policy(size_max=100),
    Policy(size_max=100, payload_size_max=2**20, keys=KeyRange(lowest=-10, highest=10)),
    Policy(implementation=Implementation.PAGED, payload_size_max=7),
]


def bodies(layout: LogLayout) -> list[bytes]:
    """Return entries of every kind that a log of this layout holds."""
    if layout.contents is Contents.COMMANDS:
        created = [CreateCommand(queue=ORDERS, size_max=size) for size in (None, 7)]
        return [encode_command(command) for _, command in commands()] + [
            encode_command(command) for command in created
        ]
    return [
        *(encode_delta(delta) for _, delta in deltas(layout.generation)),
        *(encode_delta(CreateQueue(queue=ORDERS, policy=policy)) for policy in POLICIES),
        encode_extension(Creating(lease_ms=30_000, attempts_max=3, dead_letter=0)),
        encode_extension(Returning(queue=1, ids=(1, 2), not_before_ms=5)),
    ]


@pytest.mark.parametrize("layout", LogLayout, ids=lambda layout: layout.variant)
def test_no_bit_of_an_entry_changes_without_its_content(tmp_path: Path, layout: LogLayout) -> None:
    """Before, an audit passed over policies: such replicas had "0 places wrong"."""
    entries: list[bytes] = []
    for body in bodies(layout):
        entries.append(body)
        for place in range(8 * len(body)):
            changed = bytearray(body)
            changed[place // 8] ^= 1 << place % 8
            entries.append(bytes(changed))
    log = tmp_path / ("00000000000000000000.log" if layout is LogLayout.THREE else "raft.log")
    records = [encode_record(layout, term=1, payload=entry) for entry in entries]
    log.write_bytes(encode_header(layout) + b"".join(records))
    rows = [row for row in read_rows(log) if row["kind"] == "entry"]
    assert len(rows) == len(entries)
    seen: dict[str, bytes] = {}
    for row, entry in zip(rows, entries, strict=True):
        if row["status"] == "ok":
            content = str([row[name] for name in CONTENT])
            assert seen.setdefault(content, entry) == entry
    assert len(seen) > 100
