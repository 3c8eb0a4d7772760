"""One run of the pipeline: the steps in order, and the tables kept so that a killed run leaves the old ones whole.

An incremental run takes over what an earlier one knows of a source up to an index, checks that the entry there is
still the same, and reads only the files that go further. It ends in the tables of a full run, because both are one
``advance`` after the other.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.errors import InvalidValue
from penstock.families.sources import Source, find_sources
from penstock.spark.pipeline import tables, unlogged
from penstock.spark.pipeline.audit import compare
from penstock.spark.pipeline.beginning import (
    NEXT_NUMBERS_SCHEMA,
    Beginning,
    from_nothing,
    from_snapshots,
)
from penstock.spark.pipeline.decided import decide
from penstock.spark.pipeline.histories import (
    CHANGES,
    LIVES_SCHEMA,
    OPEN,
    OPEN_SCHEMA,
    State,
    TableOfChanges,
    advance,
    fix_lives,
    lives_of,
    small_table,
    with_last_ids,
    with_payloads,
)
from penstock.spark.pipeline.partitions import (
    BY_QUEUE,
    BY_SOURCE,
    queue_directory,
    source_directory,
)
from penstock.spark.pipeline.reporting import write_report
from penstock.spark.pipeline.store import Run, Staging, Store, write_delta

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

Say = Callable[[str], None]

_QUEUES: Final = (BY_SOURCE, BY_QUEUE)
LOG, REST = "log", "rest"
CLOSED, WAITING = "closed", "open"
HEADS: Final = ("source", "kind", "path", "log_index", "term", "status")
"""The columns that tell where a history ends, and what each file spans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a source has been read; kept in the manifest."""

    begin: int  # what its history begins behind
    index: int  # the last entry that the tables know
    term: int
    next_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to."""

    run: Run
    sources: list[Source]
    continued: list[str]  # sources of which only the new part was read
    rows: dict[str, int]
    seconds: float


def run(
    spark: SparkSession,
    paths: Sequence[str],
    out: Path | Staging,
    *,
    incremental: bool = False,
    replicas: bool = False,
    uncommitted: bool = False,
    delta: bool = False,
    report: bool = False,
    made_at: datetime | None = None,
    say: Say = lambda _: None,
) -> Outcome:
    """Read all sources into tables under ``out``, a directory or a run begun there. Raises ``PenstockError``."""
    started = time.perf_counter()
    sources = find_sources(paths, uncommitted=uncommitted)
    if len({source.name for source in sources}) != len(sources):
        raise InvalidValue("a source is given twice")
    for source in sources:
        if replicas and not source.has_log:
            raise InvalidValue(f"{source.name}: has no log of which it could be a replica")
    with ExitStack() as stack:
        staging = out if isinstance(out, Staging) else stack.enter_context(Store(out).begin())
        previous = staging.store.current() if incremental else None
        work = _Work(spark, sources, staging, previous, say)
        work.survey()
        work.read_entries()
        work.find_changes()
        work.advance()
        work.count()
        work.judge(replicas=replicas)
        if report:
            say("making the report")
            page = write_report(
                spark,
                str(staging.home),
                sources,
                made_at=made_at,
                seconds=time.perf_counter() - started,
            )
            (staging.home / "report.html").write_text(page)
        if delta:
            say("making Delta tables of them")
            write_delta(staging)
        manifest = {
            "sources": {name: asdict(progress) for name, progress in work.progress.items()},
            "replicas": replicas,
        }
        finished = staging.commit(manifest, work.rows)
        return Outcome(
            run=finished,
            sources=sources,
            continued=sorted(work.known),
            rows=work.rows,
            seconds=time.perf_counter() - started,
        )


class _Work:
    """A run under way."""

    def __init__(
        self,
        spark: SparkSession,
        sources: list[Source],
        staging: Staging,
        previous: Run | None,
        say: Say,
    ) -> None:
        self._spark = spark
        self._sources = sources
        self._staging = staging
        self._previous = previous
        self._say = say
        self._logged = [source for source in sources if source.has_log]
        self._unlogged = [source for source in sources if not source.has_log]
        self._unlogged_names = [source.name for source in self._unlogged]
        self._as_of_us = time.time_ns() // 1000  # what expires up to now is expired, in all tables
        self._staged: list[str] = []
        self._schemas: dict[str, StructType] = {}
        self.rows: dict[str, int] = {}
        self.progress: dict[str, Progress] = {}
        self.known = self._continued()

    # What can be taken over.

    def _continued(self) -> dict[str, Progress]:
        """Return how far each source was read before that can go on from there."""
        if self._previous is None:
            return {}
        told = {
            name: Progress(**fields) for name, fields in self._previous.manifest["sources"].items()
        }
        candidates = {
            source.name: told[source.name]
            for source in self._sources
            # Entries between are gone, or the log was cut back: it is read anew.
            if source.name in told
            and not source.is_decided
            and source.log_first <= told[source.name].index + 1
            and (source.begin == told[source.name].begin or source.begin > -1)
            and told[source.name].index >= 0
        }
        return {name: p for name, p in candidates.items() if self._is_same(name, p)}

    def _is_same(self, name: str, progress: Progress) -> bool:
        """Whether the last entry known is still there, and of the same term; a snapshot may cover it now."""
        found = (
            self._spark.read.format("penstock")
            .option("startingIndex", progress.index)
            .option("endingIndex", progress.index)
            .load(name)
            .where("kind = 'entry' and status = 'ok'")
            .select("term")
            .take(1)
        )
        return bool(found) and found[0]["term"] == progress.term

    def _fresh(self) -> list[Source]:
        return [source for source in self._sources if source.name not in self.known]

    def _old(self, name: str, schema: str | None = None) -> DataFrame | None:
        """Return a table of the run before, the sources that go on; ``None`` if there is none."""
        if self._previous is None or not self.known:
            return None
        if not any(Path(self._previous.table(name)).rglob("*.parquet")):
            return None
        reader = self._spark.read
        if schema is not None:
            reader = reader.schema(schema)
        table = reader.parquet(self._previous.table(name))
        return table.where(F.col("source").isin(*self.known)).drop(BY_SOURCE, BY_QUEUE)

    def _keep(self, *parts: str) -> Callable[[Path], bool]:
        """Return which files of a table to take over: of the sources that go on, and of some partitions."""
        directories = {f"{BY_SOURCE}={source_directory(name)}" for name in self.known}
        return lambda inner: inner.parts[0] in directories and all(p in inner.parts for p in parts)

    # Steps.

    def survey(self) -> None:
        """Find out where each source's history ends: before its first damage, at its commit index."""
        self._say("reading " + ", ".join(source.words for source in self._sources[:3]))
        files = []
        if self._logged:
            heads = self._load(HEADS, self._logged)
            files = [row.asDict() for row in tables.survey(heads).collect()]
        ends = self._ends(files)
        self._bounds = self._small(
            [(s.name, self._known_index(s), s.begin, ends[s.name][0]) for s in self._sources],
            "source string, known long, begin long, end long",
        )
        for source in self._sources:
            end, term = ends[source.name]
            self.progress[source.name] = Progress(
                begin=source.begin, index=end, term=term, next_number=0
            )
        spans = self._small(
            [tuple(f[name] for name in tables.SPAN) for f in files if f["first_index"] is not None],
            tables.SPANS_SCHEMA,
        )
        old = self._old("spans")
        if old is not None:
            spans = _merge_spans(spans.unionByName(old.select(spans.columns)))
        self._write(spans, "spans")

    def read_entries(self) -> None:
        """Read what is new, and keep it: entries that count, and the rest, which is read again next time."""
        is_counted = (F.col("kind") == "entry") & (F.col("status") == "ok")
        is_counted = is_counted & (F.col("log_index") <= F.col("end"))
        part = F.when(is_counted, LOG).otherwise(REST)
        entries = self._load((), self._sources)
        entries = entries.join(F.broadcast(self._bounds), "source").withColumn("part", part)
        entries = self._with_source_directory(entries.drop("known", "begin", "end"))
        if self._previous is not None:
            self._take_over("entries", self._keep(f"part={LOG}"))
        self._write(entries, "entries", BY_SOURCE, "part")

    def _load(self, columns: Sequence[str], sources: Sequence[Source]) -> DataFrame:
        """Return what is new in some sources, and what may have changed since an earlier run."""
        pieces = [self._load_new(each, columns) for each in sources if each.name in self.known]
        fresh = [source.name for source in sources if source.name not in self.known]
        if fresh:
            # In one go: planning starts a Python of its own for each read.
            pieces.append(self._reader(columns).load(fresh))
        return reduce(lambda one, other: one.unionByName(other), pieces)

    def _reader(self, columns: Sequence[str]) -> DataFrameReader:
        reader = self._spark.read.format("penstock")
        return reader.option("columns", ",".join(columns)) if columns else reader

    def _small(self, rows: Sequence[tuple[Any, ...]], schema: str) -> DataFrame:
        return small_table(self._spark, rows, schema)

    def _kept(self, name: str) -> DataFrame:
        """Return a table that this run has written."""
        # Of a known schema: to look for it Spark would run a job.
        return self._spark.read.schema(self._schemas[name]).parquet(self._staging.table(name))

    def _load_new(self, source: Source, columns: Sequence[str]) -> DataFrame:
        index = self.known[source.name].index
        files = json.dumps(source.files_behind(index))
        entries = self._reader(columns).option("files", files).load(source.name)
        is_new = (F.col("kind") != "entry") | F.col("log_index").isNull()
        is_new = is_new | (F.col("log_index") > index)
        return entries.where(is_new)

    def _known_index(self, source: Source) -> int:
        known = self.known.get(source.name)
        return source.begin if known is None else known.index

    def _with_source_directory(self, table: DataFrame) -> DataFrame:
        names = self._small(
            [(s.name, source_directory(s.name)) for s in self._sources],
            f"source string, {BY_SOURCE} string",
        )
        return table.join(F.broadcast(names), "source")

    def _ends(self, files: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
        """Return for each source the last entry that its history counts, and that entry's term."""
        ends = {}
        for source in self._sources:
            theirs = [file for file in files if file["source"] == source.name]
            known = self.known.get(source.name)
            begun = (source.begin, 0) if known is None else (known.index, known.term)
            good = [(f["last_good"], f["good_term"]) for f in theirs if f["last_good"] is not None]
            end = max(good, default=begun)
            bad = min((f["bad"] for f in theirs if f["bad"] is not None), default=None)
            stops = [end[0], *([] if bad is None else [bad - 1])]
            stop = min(stops + ([] if source.commit is None else [source.commit]))
            if stop < end[0]:
                end = self._last_up_to(source, stop) or begun
            ends[source.name] = max(begun, end)
        return ends

    def _last_up_to(self, source: Source, stop: int) -> tuple[int, int] | None:
        """Return the last whole entry up to an index, and its term."""
        if stop < 0:
            return None
        reader = self._reader(("kind", "status", "log_index", "term"))
        entries = reader.option("endingIndex", stop).load(source.name)
        (found,) = (
            entries.where("kind = 'entry' and status = 'ok'")
            .agg(F.max("log_index").alias("end"), F.max_by("term", "log_index").alias("term"))
            .collect()
        )
        return None if found["end"] is None else (found["end"], found["term"])

    def find_changes(self) -> None:
        """Keep what the new entries change, in one shape for all families."""
        entries = self._kept("entries")
        requests = [source for source in self._sources if source.is_decided]
        decided = [source.name for source in requests]
        found = self._only_new(entries.where(F.col("part") == LOG)).where("op is not null")
        changes = found.where(~F.col("source").isin(*decided)) if decided else found
        changes = changes.select(*CHANGES)
        if requests:
            changes = changes.unionByName(self._only_new(decide(entries, requests)))
        if self._unlogged:
            theirs = unlogged.changes_of(self._spark, entries, self._unlogged)
            changes = changes.unionByName(theirs)
        if self._previous is not None:
            self._take_over("changes", self._keep())
        self._write(self._by(changes), "changes", *_QUEUES)

    def _only_new(self, changes: DataFrame) -> DataFrame:
        """Return what the tables of an earlier run do not know, as far as it counts."""
        bounded = changes.join(F.broadcast(self._bounds), "source")
        return bounded.where("log_index > known and log_index <= end").drop("known", "begin", "end")

    def _begin(self) -> Beginning:
        """Return what the new changes are applied to."""
        fresh = self._fresh()
        empty = [source for source in fresh if source.begin < 0 and source.has_log]
        stored = [source.name for source in fresh if source.begin >= 0]
        beginnings = [from_nothing(self._spark, empty)]
        if stored:
            beginnings.append(from_snapshots(self._stored(stored)))
        old_open, old_lives = self._old("tasks"), self._old("lives", LIVES_SCHEMA)
        if old_lives is not None:
            if old_open is None:
                old_open = self._small([], OPEN_SCHEMA)
            numbers = [(name, progress.next_number) for name, progress in self.known.items()]
            beginnings.append(
                Beginning(
                    State(old_open.select(*OPEN), old_lives.where("until is null")),
                    self._small(numbers, NEXT_NUMBERS_SCHEMA),
                )
            )
        state = State(
            reduce(lambda a, b: a.unionByName(b), [b.state.open for b in beginnings]),
            reduce(lambda a, b: a.unionByName(b), [b.state.lives for b in beginnings]),
        )
        next_numbers = reduce(lambda a, b: a.unionByName(b), [b.next_numbers for b in beginnings])
        return Beginning(state, next_numbers)

    def _stored(self, names: Sequence[str]) -> DataFrame:
        """Return what the snapshots hold that some sources begin with; a directory may have others beside."""
        rows = self._kept("entries").where(F.col("source").isin(*names) & (F.col("part") == REST))
        numbered = [source.name for source in self._sources if source.has_ids]
        if not numbered:
            return rows
        begun = rows.join(F.broadcast(self._bounds.select("source", "begin")), "source")
        is_beginning = ~F.col("source").isin(*numbered) | (F.col("log_index") == F.col("begin"))
        return begun.where(is_beginning & (F.col("kind") != "entry")).drop("begin")

    def advance(self) -> None:
        """Work out what became of every task."""
        self._say("working out what became of every task")
        beginning = self._begin()
        changes = TableOfChanges(self._only_new(self._kept("changes").select(*CHANGES)))
        sources = self._sources
        found = lives_of(beginning.state.lives, changes, beginning.next_numbers, sources)
        lives = fix_lives(self._spark, found)
        histories = self._stage(advance(beginning.state, changes, lives, sources), "histories")
        self._histories = histories
        known_lives = with_last_ids(lives, histories, changes, sources)
        old = self._old("lives", LIVES_SCHEMA)
        if old is not None:
            known_lives = known_lives.unionByName(old.where("until is not null"))
        if self._unlogged:
            theirs = unlogged.lives_of(self._spark, self._unlogged, self._of_unlogged("changes"))
            known_lives = known_lives.unionByName(theirs)
        self._write(known_lives, "lives")
        self._tell_numbers(beginning, lives)
        held = histories.where("is_held").groupBy("source", "queue").agg(F.count("*").alias("held"))
        fresh = [source.name for source in self._fresh()]
        old_base = self._old("base")
        base = held.where(F.col("source").isin(*fresh))
        base = base if old_base is None else base.unionByName(old_base)
        self._write(base, "base")
        cycles = tables.lifecycles(histories)
        state = F.when(F.col("ended_index").isNull(), WAITING).otherwise(CLOSED)
        if self._previous is not None:
            self._take_over("lifecycles", self._keep(f"state={CLOSED}"))
        cycles = self._by(cycles).withColumn("state", state)
        self._write(cycles, "lifecycles", BY_SOURCE, "state", BY_QUEUE)
        waiting = histories.where("ended_index is null")
        added = changes.of("add")
        tasks = with_payloads(waiting, added, beginning.state.open, lives, sources)
        if self._unlogged:
            values = [unlogged.values_at(source, self._as_of_us) for source in self._unlogged]
            theirs = unlogged.tasks_of(self._spark, self._unlogged, values)
            tasks = tasks.unionByName(theirs)
        self._write(self._by(tasks), "tasks", *_QUEUES)

    def _tell_numbers(self, beginning: Beginning, lives: DataFrame) -> None:
        """Note the number that each source's next queue gets."""
        created = (
            lives.join(F.broadcast(self._bounds), "source")
            .where("born > known")
            .groupBy("source")
            .agg((F.max("number") + 1).alias("more"))
        )
        for row in beginning.next_numbers.join(created, "source", "left").collect():
            progress = asdict(self.progress[row["source"]])
            progress["next_number"] = max(row["next_number"], row["more"] or 0)
            self.progress[row["source"]] = Progress(**progress)

    def _stage(self, table: DataFrame, name: str) -> DataFrame:
        """Return a table that is computed once; it goes when the run ends."""
        path = self._staging.table(name)
        table.write.parquet(path)
        self._staged.append(path)
        return self._spark.read.schema(table.schema).parquet(path)

    def count(self) -> None:
        """Count what came and went: counts of what is new, added to those before."""
        self._say("counting")
        bounds = self._bounds.select("source", "known")
        lives = self._histories.join(F.broadcast(bounds), "source")
        is_continued = F.col("source").isin(*self.known) if self.known else F.lit(False)
        # What waited when the last run ended is counted there already.
        is_added = F.col("added_index") > F.col("known")
        # A snapshot may say when a task was added that the log does not have any more.
        came = (
            lives.where(~is_continued | is_added)
            .withColumn("added_index", F.when(is_added, F.col("added_index")))
            .withColumn("key", F.col("added_key"))
            .withColumn("ended_index", F.lit(None).cast("long"))
        )
        went = lives.where("ended_index is not null")
        gone = went.withColumn("added_index", F.lit(None).cast("long"))
        both = came.unionByName(gone)
        times = self._times()
        throughput = self._add(
            "throughput", tables.throughput(both), tables.STRETCH,
            beside=lambda counts: tables.with_seconds(counts, times),
        )  # fmt: skip
        depth = tables.depth(throughput, self._kept("base"), times)
        self._write(self._by(depth), "depth", *_QUEUES)
        waiting = lives.where("ended_index is null")
        keys, sizes = None, None
        if self._unlogged:
            changes = self._of_unlogged("changes")
            keys = unlogged.keys_of(changes, self._of_unlogged("tasks"))
            sizes = unlogged.sizes_of(changes)
        waits = tables.waiting(waiting)
        self._add("keys", tables.keys(both), ("source", "queue", "key"), now=waits, also=keys)
        self._add("sizes", tables.sizes(came), ("source", "queue", "size_low"), also=sizes)

    def _times(self) -> DataFrame:
        """Keep when each bucket of entries was written."""
        entries = self._only_new(self._kept("entries").where(F.col("part") == LOG))
        times, old = tables.times(entries), self._old("times")
        if old is not None:
            times = tables.merged_times(times.unionByName(old.select(times.columns)))
        self._write(times, "times")
        return self._kept("times")

    def _of_unlogged(self, name: str) -> DataFrame:
        """Return what a table of this run has of sources without a log."""
        return self._kept(name).where(F.col("source").isin(*self._unlogged_names)).drop(*_QUEUES)

    def _add(
        self,
        name: str,
        counts: DataFrame,
        by: Sequence[str],
        *,
        now: DataFrame | None = None,
        also: DataFrame | None = None,
        beside: Callable[[DataFrame], DataFrame] = lambda counts: counts,
    ) -> DataFrame:
        """Add counts to those of the run before, put beside them what counts now, and keep them.

        ``also`` are counts of sources that every run reads anew; ``beside`` adds columns that are no counts.
        """
        old = self._old(name)
        if old is not None:
            counts = tables.add_up(counts.unionByName(old.select(counts.columns)), *by)
        if now is not None:
            counts = _outer(counts, now, list(by))
        if also is not None:
            counts = counts.unionByName(also)
        self._write(self._by(beside(counts)), name, *_QUEUES)
        return self._kept(name).drop(*_QUEUES)

    def judge(self, *, replicas: bool) -> None:
        """Find what is wrong: within files, between them, between replicas."""
        self._say("looking for damage")
        entries = self._kept("entries")
        damage = tables.damage(entries)
        if self._unlogged:
            records = entries.where(F.col("source").isin(*self._unlogged_names)).where(
                "status = 'ok'"
            )
            tasks = self._of_unlogged("tasks")
            damage = damage.unionByName(unlogged.missing(records, tasks, self._as_of_us))
        self._write(damage, "damage")
        starts = self._small(
            [(s.name, max(s.begin + 1, s.origin)) for s in self._sources],
            "source string, start long",
        )
        current = self._small(
            [(s.name, file.shown) for s in self._sources for file in s.files],
            "source string, path string",
        )
        kept = self._kept("spans").join(F.broadcast(current), ["source", "path"])
        self._write(tables.gaps(kept, starts), "gaps")
        ends = {source.name: self.progress[source.name].index for source in self._logged}
        if replicas:
            compared = compare(self._spark, self._logged, entries, ends)
        else:
            table = self._small(list(ends.items()), "source string, end long")
            compared = tables.divergence(entries, table).limit(0)
        self._write(compared, "divergence")
        for path in self._staged:
            shutil.rmtree(path)

    def _by(self, table: DataFrame) -> DataFrame:
        """Return a table with the columns that its files are laid out by."""
        return self._with_source_directory(table.withColumn(BY_QUEUE, queue_directory()))

    def _take_over(self, name: str, keep: Callable[[Path], bool]) -> None:
        assert self._previous is not None, "an incremental run"
        self.rows[name] = self._staging.take_over(self._previous, name, keep)

    def _write(self, table: DataFrame, name: str, *by: str) -> None:
        """Add rows to a table of this run; one without any still says what its columns are."""
        path = self._staging.table(name)
        self._schemas[name] = table.schema
        # Counted by the query, not in the files: a commit compares both.
        written = Observation()
        counted = table.observe(written, F.count(F.lit(1)).alias("rows"))
        writer = counted.write.mode("append").option("compression", "zstd")
        (writer.partitionBy(*by) if by else writer).parquet(path)
        if not any(Path(path).rglob("*.parquet")):
            table.limit(0).coalesce(1).write.mode("overwrite").parquet(path)
        self.rows[name] = self.rows.get(name, 0) + written.get["rows"]
        self._say(f"{name}: {self.rows[name]:,} rows")


def _outer(one: DataFrame, other: DataFrame, by: list[str]) -> DataFrame:
    """Return counts side by side, 0 where one has none."""
    joined = one.join(other, by, "full_outer")
    return joined.fillna(0, [name for name in joined.columns if name not in by])


def _merge_spans(spans: DataFrame) -> DataFrame:
    return spans.groupBy("source", "path").agg(
        F.min("first_index").alias("first_index"),
        F.max("last_index").alias("last_index"),
        F.min_by("first_term", "first_index").alias("first_term"),
        F.max_by("last_term", "last_index").alias("last_term"),
    )
