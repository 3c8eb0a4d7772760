"""The family of a RabbitMQ broker's classic queues: a node's data directory, or a vhost, a queue, a store or one file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.families.family import Files, Split
from penstock.families.options import FILES, Kind, Operation, Option, Values
from penstock.families.tables import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

NAME: Final = "rabbitmq"
TITLE: Final = "RabbitMQ"
ENVELOPE, DROP = "envelope", "drop"

_OF_TASKS: Final = frozenset(
    {Operation.TASKS, Operation.CONVERT, Operation.INGEST, Operation.TABLES}
)

OPTIONS: Final = (
    Option(
        name="queue",
        kind=Kind.TEXT,
        metavar="NAME",
        help="Only this queue.",
        operations=frozenset({Operation.TASKS, Operation.CONVERT, Operation.INGEST}),
    ),
    Option(
        name="vhost",
        kind=Kind.TEXT,
        metavar="NAME",
        help="Only this vhost.",
        operations=_OF_TASKS,
    ),
    Option(
        name="include_transient",
        kind=Kind.FLAG,
        help="Also messages that a restart forgets.",
        operations=_OF_TASKS,
        only_tasks=True,
    ),
    Option(
        name="include_expired",
        kind=Kind.FLAG,
        help="Also messages that have expired.",
        operations=_OF_TASKS,
        only_tasks=True,
    ),
    Option(
        name="as_of",
        kind=Kind.TIME,
        metavar="TIME",
        help="Omit messages that have expired at this time, 2026-01-31T12:00:00 in UTC; without it now,"
        " and for an import when PATH was last written.",
        operations=_OF_TASKS,
        only_tasks=True,
    ),
    Option(
        name="properties",
        kind=Kind.TEXT,
        choices=(ENVELOPE, DROP),
        metavar="HOW",
        help="'envelope' puts a line of JSON before each body, 'drop' does not; without it tables have"
        " bare bodies, everything else envelopes.",
        operations=_OF_TASKS - {Operation.TASKS},
        only_tasks=True,
    ),
    Option(
        name="classic_only",
        kind=Kind.FLAG,
        help="Accept that quorum queues and streams are left out; without it the exit code is 1.",
        operations=FILES | {Operation.INGEST, Operation.PIPELINE},
    ),
)


class RabbitMQ:
    """The family."""

    name: Final = NAME
    title: Final = TITLE
    options: Final = OPTIONS
    formats: Final = ()

    def detect(self, path: Path) -> bool:
        from penstock.families.rabbitmq.location import is_rabbitmq

        return is_rabbitmq(path)

    def open(self, path: Path, values: Values) -> Files:
        from penstock.families.rabbitmq.files import RabbitMQFiles
        from penstock.families.rabbitmq.location import resolve

        return RabbitMQFiles(resolve(path), classic_only="classic_only" in values)

    def read(
        self, split: Split, options: ReadOptions, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        from penstock.families.rabbitmq.tables.scan import read_split

        return read_split(split, options, columns)


FAMILY: Final = RabbitMQ()
