"""What sources without a log give: no history, only what their files hold now.

Nothing orders the changes of such a source, so there are no lives, lifecycles, depths or throughputs of it. Queues and
tasks are those that its family lists; counts are over the records that are still on file.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.errors import InvalidValue
from penstock.families.beats.location import FAMILY
from penstock.families.beats.trouble import BAD_END, BAD_EVENT
from penstock.families.columns import OK
from penstock.families.description import Source
from penstock.families.rabbitmq.ingest import Selection
from penstock.families.rabbitmq.read import Wanted
from penstock.families.rabbitmq.trouble import MISSING, REASONS
from penstock.families.values import parse_time
from penstock.spark.pipeline import tables
from penstock.spark.pipeline.histories import CHANGES, LIVES_SCHEMA, OPEN_SCHEMA
from penstock.spark.pipeline.small import small_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGE: Final = ("source", "queue", "key", "task_id")
"""What a message is known by: numbers are of one queue, and of one of its priorities."""

SPOOL: Final = FAMILY
"""The family whose queues only its rows tell, and whose removals are not among its entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedOfBroker:
    """Which messages of a broker's directory are asked for, and how they are shown."""

    vhost: str | None = None
    include_transient: bool = False
    include_expired: bool = False
    as_of: str | None = None  # None: now
    # What has expired is judged by when the files were written last, and so is the same in every run.
    is_steady: bool = False
    envelope: bool = False  # payloads are envelopes

    def as_of_us(self, source: Source) -> int:
        """Return the time up to which messages have expired. Raises ``InvalidValue``."""
        if self.as_of is not None:
            return parse_time(self.as_of)
        return source.written_us if self.is_steady else time.time_ns() // 1000

    def options(self, source: Source) -> dict[str, str]:
        """Return the options of the table of tasks. Raises ``InvalidValue``."""
        options = {
            "includeTransient": str(self.include_transient),
            "includeExpired": str(self.include_expired),
            "envelope": str(self.envelope),
            "asOf": iso_time(self.as_of_us(source)),
        }
        return options if self.vhost is None else options | {"vhosts": json.dumps([self.vhost])}

    def selection(self, source: Source) -> Selection:
        """Return the same choice as an import takes it. Raises ``InvalidValue``."""
        return Selection(
            wanted=Wanted(
                as_of_us=self.as_of_us(source),
                transient=self.include_transient,
                expired=self.include_expired,
            ),
            vhost=None if self.vhost is None else self.vhost.encode("utf-8", "surrogateescape"),
            with_envelope=self.envelope,
        )

    def refuse(self, path: str) -> None:
        """Raise ``InvalidValue`` if something is asked for that only a broker's directory knows."""
        names = {"vhost": self.vhost, "include-transient": self.include_transient}
        names |= {"include-expired": self.include_expired, "as-of": self.as_of}
        for name, value in names.items():
            if value:
                raise InvalidValue(f"{path}: --{name} is for files of RabbitMQ; omit it")


def iso_time(time_us: int) -> str:
    """Return a time as the option ``asOf`` takes it."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)).isoformat()


def changes_of(spark: SparkSession, entries: DataFrame, sources: Sequence[Source]) -> DataFrame:
    """Return the records of some sources that change a queue; a message that cannot be read has no payload."""
    names = [source.name for source in sources]
    theirs = entries.where(F.col("source").isin(*names) & F.col("op").isNotNull())
    # The payload of a spool's frame is what was stored, whether it can be decoded or not.
    payload = F.when(F.col("status").isin(OK, BAD_END, BAD_EVENT), F.col("payload"))
    changes = theirs.withColumn("payload", payload).select(*CHANGES)
    spools = [source.name for source in sources if source.family == SPOOL]
    if not spools:
        return changes
    # What was removed from a spool is told by its position, which is no entry.
    reader = spark.read.format("penstock").option("table", "changes").option("ops", "remove")
    return changes.unionByName(reader.load(spools).select(*CHANGES))


def lives_of(
    spark: SparkSession, sources: Sequence[Source], rows: DataFrame, *, vhost: str | None = None
) -> DataFrame:
    """Return the queues that are there, or those of one vhost; ``rows`` tell those that their source does not list."""
    listed = [
        (source.name, queue.name, -1, None, number, 0, None)
        for source in sources
        for number, queue in enumerate(source.queues or ())
        if vhost in (None, queue.vhost)
    ]
    unlisted = [source.name for source in sources if source.queues is None]
    found = (
        rows.where(F.col("source").isin(*unlisted)).select("source", "queue") if unlisted else None
    )
    told = [] if found is None else sorted(found.distinct().collect())
    numbers: Counter[str] = Counter()
    for source, queue in told:
        listed.append((source, queue, -1, None, numbers[source], 0, None))
        numbers[source] += 1
    return small_table(spark, listed, LIVES_SCHEMA)


def tasks_of(
    spark: SparkSession, sources: Sequence[Source], options: Mapping[str, str]
) -> DataFrame:
    """Return the tasks of some sources, as those are that wait in a history; ``options`` are for brokers' files."""
    columns = "source,queue,key,task_id,log_index,payload"
    tasks = [small_table(spark, [], OPEN_SCHEMA)]
    for is_spool in (False, True):
        names = [
            source.name
            for source in sources
            if (source.family == SPOOL) is is_spool and source.queues != ()
        ]
        if names:
            reader = spark.read.format("penstock").option("table", "tasks")
            reader = reader.option("columns", columns).options(**({} if is_spool else options))
            tasks.append(_as_open(reader.load(names)))
    return reduce(lambda one, other: one.unionByName(other), tasks)


def _as_open(found: DataFrame) -> DataFrame:
    return found.select(
        "source",
        "queue",
        F.lit(-1).cast("long").alias("born"),
        "task_id",
        "key",
        "payload",
        F.length("payload").cast("long").alias("size"),
        F.col("log_index").alias("added_index"),
        F.lit(0).cast("long").alias("failed"),
    )


def keys_of(changes: DataFrame, tasks: DataFrame) -> DataFrame:
    """Return how many messages of each key came and went, as far as that is on file, and how many wait."""
    by = ("source", "queue", "key")
    known = changes.where("op in ('add', 'remove')").select("op", *MESSAGE).distinct()
    counted = known.groupBy(*by).agg(
        F.count_if(F.col("op") == "add").alias("adds"),
        F.count_if(F.col("op") == "remove").alias("removes"),
        F.lit(0).cast("long").alias("waiting"),
    )
    none = F.lit(0).cast("long")
    held = tables.waiting(tasks).select(*by, none.alias("adds"), none.alias("removes"), "waiting")
    return tables.add_up(counted.unionByName(held), *by)


def sizes_of(changes: DataFrame) -> DataFrame:
    """Return how many messages were of which size; the size is the body's, wherever that is."""
    size = F.coalesce(F.col("properties")["body_size"].cast("long"), F.length("payload"))
    added = changes.where("op = 'add'").select(*MESSAGE, size.cast("long").alias("size"))
    return tables.sizes(added.distinct())


def missing(records: DataFrame, tasks: DataFrame, as_of_us: int) -> DataFrame:
    """Return the messages that index records know and that no store holds, as rows of damage."""
    said = F.col("properties")
    expiry = F.coalesce(said["expiry_us"].cast("decimal(20, 0)"), F.lit(0))
    is_kept = (said["persistent"] == "true") & ((expiry == 0) | (expiry > F.lit(as_of_us)))
    # What stands in the index itself says where it was published to.
    elsewhere = records.where("op = 'add'").where(is_kept & said["exchange"].isNull())
    gone, found = records.where("op = 'remove'").select(*MESSAGE), tasks.select(*MESSAGE)
    lost = elsewhere.join(gone, list(MESSAGE), "left_anti").join(found, list(MESSAGE), "left_anti")
    return lost.select(
        "source", "family", "path", "offset", "size", "log_index",
        F.lit(MISSING).alias("status"), F.lit(REASONS[MISSING]).alias("reason"),
    )  # fmt: skip


def count_missing(spark: SparkSession, source: Source, asked: AskedOfBroker) -> int:
    """Return how many messages of a source are lost: no store holds them, or they cannot be read."""
    vhosts = {} if asked.vhost is None else {"vhosts": json.dumps([asked.vhost])}

    def read(table: str, columns: Sequence[str], options: Mapping[str, str]) -> DataFrame:
        reader = spark.read.format("penstock").option("table", table)
        return reader.option("columns", ",".join(columns)).options(**options).load(source.name)

    place = ("family", "path", "offset", "size", "log_index")
    records = read("changes", (*MESSAGE, *place, "op", "properties"), vhosts)
    tasks = read("tasks", MESSAGE, asked.options(source))
    return missing(records, tasks, asked.as_of_us(source)).count()


def numbered(tasks: DataFrame) -> DataFrame:
    """Return tasks with ids as a node gives them: each queue's own, in the order of delivery, from 1 on."""
    in_order = Window.partitionBy("queue").orderBy("key", "task_id")
    return tasks.withColumn("task_id", F.row_number().over(in_order).cast("long"))
