"""The commands over files with Spark: run, tasks, snapshot, audit, migrate."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.files import with_family_flags
from penstock.cli.output import Exit, emit, say
from penstock.cli.table_flags import AtOption, Input, chosen_paths, of_tables, report_input
from penstock.errors import PathRefused, SparkFailed, needing
from penstock.families.family import refuse_queue
from penstock.families.options import At, Operation, Values
from penstock.families.payloads import payload_fields
from penstock.formats.taskflux.generation import Generation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TableFormat(StrEnum):
    """How tables are stored."""

    PARQUET = "parquet"
    DELTA = "delta"


class FileFormat(StrEnum):
    """What a directory is written as."""

    TASKFLUX_2 = "taskflux-2"
    TASKFLUX_3 = "taskflux-3"


InOption = Annotated[
    list[str],
    typer.Option("--in", metavar="PATH", help="A directory, a file or a pattern; may be repeated."),
]
OneInOption = Annotated[
    str, typer.Option("--in", metavar="PATH", help="A data directory, or one file of it.")
]
OutOption = Annotated[
    Path, typer.Option("--out", metavar="DIR", readable=False, help="Where the result goes.")
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="A Spark cluster; without it, all cores of this machine."
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting for Spark; may be repeated."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Say nothing but what is wrong.")]
UncommittedOption = Annotated[
    bool, typer.Option("--uncommitted", help="Include entries behind the commit index.")
]


_SMALL: Final = 64 * 2**20
"""Bytes of input that are read sooner than a JVM has become fast."""

_QUICK: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
}
"""What brings a short job to its end a fifth sooner: a JVM that compiles quickly and not well.

Such a one keeps only 48 MB of what it compiled unless told otherwise, and stops compiling when that is full, as our
tests made it.
"""


def _check(
    paths: list[str],
    values: Values,
    *,
    table_format: TableFormat = TableFormat.PARQUET,
    at: At | None = None,
) -> Input:
    """Return what is known of the input before Spark is started, which takes its time.

    Raises ``DependencyMissing`` for a missing package, and what ``report_input`` raises.
    """
    if table_format is TableFormat.DELTA:
        with needing("delta", "--format delta"):
            import deltalake  # noqa: F401 - needed when the tables are written, at the end
    with needing("spark", "penstock pipeline"):
        import pyspark.sql  # noqa: F401 - Spark itself is started later
    return report_input(paths, values, at=at)


def _settings(conf: list[str] | None) -> dict[str, str]:
    """Return the settings that ``--conf`` gives. Raises ``BadParameter``."""
    settings = {}
    for one in conf or []:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{one!r} is not KEY=VALUE", param_hint="--conf")
        settings[key] = value
    return settings


@contextmanager
def _spark(
    master: str | None, conf: list[str] | None, *, quiet: bool, size: int
) -> Iterator[SparkSession]:
    """Run Spark for one command over ``size`` bytes. Raises ``DependencyMissing``."""
    settings = (dict(_QUICK) if master is None and size < _SMALL else {}) | _settings(conf)
    from penstock.spark.sessions import session

    started = time.perf_counter()
    spark, java = session(master, settings=settings, quiet=True)
    if not quiet:
        where = spark.sparkContext.master
        say(
            f"Spark {spark.version} on {where}, {java.words},"
            f" up in {time.perf_counter() - started:.1f} s"
        )
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield spark
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(_cause(str(error))) from None
    finally:
        # Spark cancels stages that turn out to be unnecessary. Their tasks may still run here, and report the stop as errors.
        with suppress(Py4JError):  # its Java may be gone
            spark.sparkContext.setLogLevel("OFF")
        spark.stop()


def _cause(text: str) -> str:
    """Return what went wrong out of all that Spark says: our own words if there are any, else its first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = re.findall(r"penstock\.errors\.\w+: (.*)", text)
    return ours[-1] if ours else f"Spark: {lines[0] if lines else 'no reason given'}"


def _teller(quiet: bool) -> Any:
    return (lambda _: None) if quiet else say


@with_family_flags(Operation.PIPELINE)
def run(
    values: Values,
    paths: InOption,
    out: OutOption,
    incremental: Annotated[
        bool, typer.Option("--incremental", help="Read only what is new since the last run.")
    ] = False,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="The sources are copies of one log: compare them.")
    ] = False,
    table_format: Annotated[
        TableFormat, typer.Option("--format", help="How the tables are stored.")
    ] = TableFormat.PARQUET,
    uncommitted: UncommittedOption = False,
    report: Annotated[bool, typer.Option(help="Make a page of the tables.")] = True,
    master: MasterOption = None,
    conf: ConfOption = None,
    quiet: QuietOption = False,
) -> None:
    """Turn files into tables: entries, tasks, lifecycles, depth, damage and more, and a page about them.

    The tables of a run that was killed are never seen; those of the last one stay. One run at a time writes to a
    directory: a second one exits with 1 and names the process that holds the lock.

    \b
    Examples:
      penstock pipeline run --in node --out tables
      penstock pipeline run --in node --out tables --incremental
      penstock pipeline run --in 'replica-*' --out audited --replicas
    """
    paths = chosen_paths(paths, values)
    given = _check(paths, values, table_format=table_format)
    from penstock.spark.pipeline.store import Store

    _settings(conf)  # refused before the directory is made
    # The lock is taken before Spark is started: a run that is refused ends at once.
    with (
        Store(out).begin() as staging,
        _spark(master, conf, quiet=quiet, size=given.size) as spark,
    ):
        from penstock.spark.pipeline.run import run as run_pipeline

        outcome = run_pipeline(
            spark,
            paths,
            staging,
            incremental=incremental,
            replicas=replicas,
            uncommitted=uncommitted,
            delta=table_format is TableFormat.DELTA,
            made_at=datetime.now(UTC) if report else None,
            report=report,
            say=_teller(quiet),
        )
    page = outcome.run.home / "report.html"
    is_wrong = any(outcome.rows[name] for name in ("damage", "gaps", "divergence"))
    emit(
        {
            "tables": str(out / "current"),
            "report": str(out / "current" / "report.html") if page.exists() else None,
            "rows": outcome.rows,
            "continued": outcome.continued,
            "seconds": round(outcome.seconds, 1),
        }
    )
    raise typer.Exit(Exit.OK if given.is_complete and not is_wrong else Exit.DAMAGE)


@with_family_flags(Operation.TABLES, Operation.PIPELINE)
def tasks(
    values: Values,
    path: OneInOption,
    at: AtOption = None,
    uncommitted: UncommittedOption = False,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this queue; '' is the default queue.")
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    quiet: QuietOption = False,
) -> None:
    """Print what the queues held after an entry, each in its order of delivery; computed, not replayed.

    \b
    Examples:
      penstock pipeline tasks --in node --at 4
      penstock pipeline tasks --in node --queue orders --quiet
    """
    (path,) = chosen_paths([path], values)
    given = _check([path], values, at=at)
    with _spark(master, conf, quiet=quiet, size=given.size) as spark:
        from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

        from penstock.spark.pipeline.moment import moment

        found = moment(spark, path, at, uncommitted=uncommitted, values=of_tables(values))
        rows = found.tasks if queue is None else found.tasks.where(found.tasks.queue == queue)
        is_empty = True
        has_ids = not found.source.by_value
        for row in rows.orderBy("queue", "key", "task_id").toLocalIterator(prefetchPartitions=True):
            is_empty = False
            told = {"queue": row["queue"], "key": row["key"]}
            told |= payload_fields(bytes(row["payload"]))
            number = "id" if found.source.has_log else "seq"
            emit(told | {number: row["task_id"]} if has_ids else told)
        # Asked only now: an answer costs a job. It is counted, because a job that stops at the first row is cancelled noisily.
        if (
            queue is not None
            and is_empty
            and not found.lives.where(F.col("queue") == queue).count()
        ):
            refuse_queue(queue)
    if not given.is_complete:
        raise typer.Exit(Exit.DAMAGE)


@with_family_flags(Operation.PIPELINE)
def snapshot(
    values: Values,
    path: OneInOption,
    out: OutOption,
    at: AtOption = None,
    form: Annotated[
        FileFormat, typer.Option("--format", help="What the directory is written as.")
    ] = FileFormat.TASKFLUX_3,
    uncommitted: UncommittedOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    quiet: QuietOption = False,
) -> None:
    """Write the state after an entry as a new directory that a node starts from.

    \b
    Examples:
      penstock pipeline snapshot --in node --at 4 --out then
      penstock serve --data then
    """
    (path,) = chosen_paths([path], values)
    given = _check([path], values, at=at)
    with _spark(master, conf, quiet=quiet, size=given.size) as spark:
        from penstock.spark.pipeline.moment import moment
        from penstock.spark.pipeline.snapshot import write_snapshot

        found = moment(spark, path, at, uncommitted=uncommitted)
        queues, count = write_snapshot(found, out, generation=_generation(form))
    emit(
        {
            "out": str(out),
            "index": found.index,
            "term": found.term,
            "queues": queues,
            "tasks": count,
        }
    )


def _generation(form: FileFormat) -> Generation:
    return Generation.TWO if form is FileFormat.TASKFLUX_2 else Generation.THREE


@with_family_flags(Operation.PIPELINE)
def audit(
    values: Values,
    paths: Annotated[list[str], typer.Argument(metavar="DIR...", help="Copies of one log.")],
    master: MasterOption = None,
    conf: ConfOption = None,
    quiet: QuietOption = False,
) -> None:
    """Check copies of one log: each for damage and gaps, and one against the other.

    Prints what is wrong as rows, nothing if all is well. Entries are compared whole, up to the last that all have;
    queues and tasks where a snapshot has replaced entries.

    \b
    Examples:
      penstock pipeline audit replica-1 replica-2 replica-3
    """
    paths = chosen_paths(paths, values)
    given = _check(paths, values)
    with _spark(master, conf, quiet=quiet, size=given.size) as spark:
        from penstock.spark.pipeline.audit import audit as audit_replicas

        found = audit_replicas(spark, paths)
        count = 0
        for table in ("damage", "gaps", "divergence"):
            rows: DataFrame = getattr(found, table)
            for row in rows.toLocalIterator():
                emit({"table": table} | row.asDict())
                count += 1
    if not quiet:
        say(
            f"{len(found.sources)} copies, compared up to entry {found.compared}:"
            f" {count} places are wrong"
        )
    raise typer.Exit(Exit.DAMAGE if count else Exit.OK)


@with_family_flags(Operation.TABLES, Operation.PIPELINE)
def migrate(
    values: Values,
    path: Annotated[str, typer.Option("--from", metavar="PATH", help="A data directory.")],
    to: Annotated[
        str, typer.Option("--to", metavar="HOST:PORT|DIR", help="A live node, or a new directory.")
    ],
    form: Annotated[
        FileFormat, typer.Option("--format", help="What a directory is written as.")
    ] = FileFormat.TASKFLUX_3,
    at: AtOption = None,
    uncommitted: UncommittedOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    quiet: QuietOption = False,
) -> None:
    """Put what waits in one place into another; one that was cut off can be repeated, and doubles nothing.

    \b
    Examples:
      penstock pipeline migrate --from old --to new-node --format taskflux-3
      penstock pipeline migrate --from old --to localhost:2602
      penstock pipeline migrate --from rabbit --to localhost:2602
    """
    (path,) = chosen_paths([path], values)
    given = _check([path], values, at=at)
    is_node = _is_address(to)
    if is_node:
        from penstock.client.blocking import connect

        connect(to).close()  # one that does not answer is reported before Spark starts
    with _spark(master, conf, quiet=quiet, size=given.size) as spark:
        from penstock.spark.pipeline.migrate import to_directory, to_node
        from penstock.spark.pipeline.moment import moment
        from penstock.spark.pipeline.unlogged import count_missing

        own = of_tables(values)
        found = moment(spark, path, at, uncommitted=uncommitted, values=own, for_migration=True)
        if is_node:
            queues, count = to_node(found, to, _teller(quiet))
        else:
            queues, count = to_directory(found, Path(to), _generation(form))
        lost = 0
        if not found.source.has_log:
            lost = count_missing(spark, found.source, found.values)
    told = {"index": found.index} if found.source.has_log else {"lost": lost}
    emit({"to": to, **told, "queues": queues, "tasks": count})
    if lost:
        say(f"{lost:,} messages are missing or damaged; 'penstock verify' lists them")
    if lost or not given.is_complete:
        raise typer.Exit(Exit.DAMAGE)


def _is_address(to: str) -> bool:
    host, colon, port = to.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        return True
    if colon and not Path(to).parent.exists():
        raise PathRefused(f"{to}: neither HOST:PORT nor a place for a new directory")
    return False
