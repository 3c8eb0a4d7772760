"""What became of the tasks of sources whose rows name every task: by queue and id, in every row (generation 4).

Nothing is counted and nothing is replayed in order. Candidates are the tasks that waited at the beginning, those that were
added, and one for each move, in the queue that it leads to. A task ends with the first entry that removes or moves it, by
its id or in a range of ids, or with its queue. A move took place if it ended the task that it names, so what a task
brings along (size, key, attempts, identity) follows moves hop by hop, over the few rows that were moved.

A change of a queue or an id that is not there has no effect. Parts of an envelope take effect together: if the queue of one of
them is not there, none does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.families.tables import Op

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.spark.pipeline.histories import Changes, State

BLOCK_BITS: Final = 16
"""Ranges of ids meet tasks by blocks of 65,536 ids."""

HOPS_MAX: Final = 64
"""Moves of one task that are followed: more in one run means a loop of dead-letter queues."""

TASK: Final = ("life", "task_id")
ATTEMPTS: Final = ("failed", "lease-ended")
"""Reasons of a return that count an attempt."""


# --- queues --------------------------------------------------------------------------------------


def lives_of(before: DataFrame, changes: Changes) -> DataFrame:
    """Return every life of every queue, with its end: ids of queues are never used twice, so an id is a life."""
    said = changes.of(Op.CREATE, Op.DELETE).withColumn("number", _long("queue_id"))
    policy = F.map_filter(
        "properties", lambda name, _: ~name.isin("queue_id", "principal_id", "last_id")
    )
    by = ["source", "number"]
    created = (
        said.where(F.col("op") == Op.CREATE)
        .groupBy(*by)
        .agg(
            F.min("log_index").alias("made"),
            F.min_by("queue", "log_index").alias("made_name"),
            F.max_by(policy, "log_index").alias("made_policy"),
        )
    )
    deleted = (
        said.where(F.col("op") == Op.DELETE)
        .groupBy(*by)
        .agg(
            F.min("log_index").alias("gone"),
            F.min_by("event_time", "log_index").alias("gone_time"),
        )
    )
    joined = before.join(created, by, "full_outer").join(deleted, by, "left")
    return joined.select(
        "source",
        F.coalesce("queue", "made_name").alias("queue"),
        F.coalesce("born", "made").alias("born"),
        F.coalesce("until", "gone").alias("until"),
        "number",
        F.coalesce("last_id", F.lit(0)).cast("long").alias("last_id"),
        F.coalesce("made_policy", "policy").alias("policy"),
        F.coalesce("until_time", "gone_time").alias("until_time"),
    )


def with_last_ids(lives: DataFrame, histories: DataFrame, changes: Changes) -> DataFrame:
    """Return lives with the last id that each gave out, also to tasks that were not there to be moved."""
    given = histories.where("not is_held").select("life", F.col("task_id").alias("id"))
    moved = arrivals_of(changes, lives).select("life", F.col("task_id").alias("id"))
    last = given.unionByName(moved).groupBy("life").agg(F.max("id").alias("given"))
    joined = lives.join(F.broadcast(last), "life", "left")
    return joined.withColumn("last_id", F.greatest("last_id", "given")).drop("given")


# --- tasks ---------------------------------------------------------------------------------------


def advance(state: State, changes: Changes, lives: DataFrame) -> DataFrame:
    """Return every task that waited in ``state`` or that ``changes`` bring, with what became of it."""
    facts = _Facts.of(changes)
    effective = _Effective(changes, lives) if facts.has_envelopes else changes
    candidates = held_by(lives, state.open).unionByName(added_by(effective, lives))
    arrivals = arrivals_of(effective, lives) if Op.MOVE in facts.ops else _none(candidates)
    candidates = candidates.unionByName(arrivals, allowMissingColumns=True)
    ended = end(candidates, effective, lives, has_ranges=facts.has_ranges)
    changed = update(ended, effective, lives)
    own = changed.where("from_life is null").withColumn("failed", F.col("failed") + F.col("more"))
    return follow_moves(changed) if Op.MOVE in facts.ops else own


class _Facts(NamedTuple):
    """What occurs among some changes: a query that nothing needs is not made."""

    ops: frozenset[str]
    has_ranges: bool
    has_envelopes: bool

    @classmethod
    def of(cls, changes: Changes) -> _Facts:
        is_range = (F.col("op") == Op.REMOVE) & F.col("task_id").isNull()
        rows = (
            changes.of(*_OF_ENVELOPES, Op.DELIVER)
            .groupBy("op")
            .agg(
                F.max(is_range).alias("range"),
                F.max(F.col("properties")["envelope"].isNotNull()).alias("envelope"),
            )
            .collect()
        )
        return cls(
            frozenset(row["op"] for row in rows),
            any(row["range"] for row in rows),
            any(row["envelope"] for row in rows),
        )


def _none(candidates: DataFrame) -> DataFrame:
    """Return the columns of arrivals, without a row."""
    columns = {"from_life": "long", "from_id": "long", "moved_as": "string"}
    nothing = [F.lit(None).cast(kind).alias(name) for name, kind in columns.items()]
    return candidates.limit(0).select("*", *nothing)


class _Effective:
    """Changes without those of envelopes that speak of a queue that is not there."""

    def __init__(self, changes: Changes, lives: DataFrame) -> None:
        self._changes = changes
        parts = changes.of(*_OF_ENVELOPES).where(F.col("properties")["envelope"].isNotNull())
        whole = _with_destination(placed(parts, lives), lives)
        whole = whole.where("(op != 'move') or destination_life is not null")
        place = ["source", "log_index"]
        counted = parts.groupBy(*place).agg(F.count("*").alias("all"))
        found = whole.groupBy(*place).agg(F.count("*").alias("whole"))
        joined = counted.join(found, place, "left")
        self._void = joined.where("whole is null or whole < all").select(*place)

    def of(self, *ops: str) -> DataFrame:
        rows = self._changes.of(*ops)
        if not set(ops) & set(_OF_ENVELOPES):
            return rows
        return rows.join(self._void, ["source", "log_index"], "left_anti")


_OF_ENVELOPES: Final = (Op.ADD, Op.REMOVE, Op.RETURN, Op.MOVE, Op.SET)


def placed(rows: DataFrame, lives: DataFrame) -> DataFrame:
    """Return changes of tasks with the life of their queue; what speaks of no living queue is left out."""
    known = lives.select("source", "queue", "born", "until", "life")
    within = (F.col("log_index") > F.col("born")) & (
        F.col("until").isNull() | (F.col("log_index") < F.col("until"))
    )
    return rows.join(F.broadcast(known), ["source", "queue"]).where(within).drop("born", "until")


def _with_destination(rows: DataFrame, lives: DataFrame) -> DataFrame:
    """Return changes that are placed with the life of the queue that a move leads to, null if it does not live."""
    there = lives.select(
        "source",
        F.col("number").alias("destination"),
        F.col("life").alias("there"),
        F.col("born").alias("there_born"),
        F.col("until").alias("there_until"),
    )
    is_there = (F.col("log_index") > F.col("there_born")) & (
        F.col("there_until").isNull() | (F.col("log_index") < F.col("there_until"))
    )
    named = rows.withColumn("destination", _long("destination_queue_id"))
    joined = named.join(F.broadcast(there), ["source", "destination"], "left")
    return joined.withColumn("destination_life", F.when(is_there, F.col("there"))).drop(
        "destination", "there", "there_born", "there_until"
    )


def _long(name: str) -> Column:
    return F.col("properties")[name].cast("long")


def _moment(name: str) -> Column:
    return F.col("properties")[name].try_cast("timestamp")


def held_by(lives: DataFrame, open_tasks: DataFrame) -> DataFrame:
    """Return the tasks that waited at the beginning."""
    by = ["source", "queue", "born"]
    joined = open_tasks.join(F.broadcast(lives.select(*by, "number", "life")), by)
    return joined.select(
        *TASK, "key", F.col("key").alias("added_key"), "size", "added_index", "added_time", "failed",
        F.lit(True).alias("is_held"), F.coalesce("first_queue_id", "number").alias("first_queue_id"),
        F.coalesce("first_id", "task_id").alias("first_id"), "expires", "is_started",
        F.col("life").alias("root_life"), F.col("task_id").alias("root_id"),
    )  # fmt: skip


def added_by(changes: Changes, lives: DataFrame) -> DataFrame:
    """Return added tasks."""
    rows = changes.of(Op.ADD)
    added = placed(rows, lives).join(F.broadcast(lives.select("life", "number")), "life")
    size = F.length("payload") if "payload" in rows.columns else F.lit(None)
    return added.select(
        *TASK, "key", F.col("key").alias("added_key"), size.cast("long").alias("size"),
        F.col("log_index").alias("added_index"), F.col("event_time").alias("added_time"),
        F.coalesce(_long("attempts"), F.lit(0)).cast("long").alias("failed"),
        F.lit(False).alias("is_held"),
        F.coalesce(_long("born_queue_id"), "number").alias("first_queue_id"),
        F.coalesce(_long("born_id"), "task_id").alias("first_id"),
        _moment("expires").alias("expires"), F.lit(False).alias("is_started"),
        F.col("life").alias("root_life"), F.col("task_id").alias("root_id"),
    )  # fmt: skip


def arrivals_of(changes: Changes, lives: DataFrame) -> DataFrame:
    """Return a candidate for each move, in the queue that it leads to; ``from_life`` and ``from_id`` name the task."""
    moves = _with_destination(placed(changes.of(Op.MOVE), lives), lives).where(
        "destination_life is not null"
    )
    return moves.select(
        F.col("destination_life").alias("life"),
        _long("destination_id").alias("task_id"),
        "key",
        F.col("key").alias("added_key"),
        F.col("log_index").alias("added_index"),
        F.col("event_time").alias("added_time"),
        F.lit(False).alias("is_held"),
        F.lit(False).alias("is_started"),
        _moment("expires").alias("expires"),
        F.col("life").alias("from_life"),
        F.col("task_id").alias("from_id"),
        F.col("properties")["reason"].alias("moved_as"),
    )


def end(tasks: DataFrame, changes: Changes, lives: DataFrame, *, has_ranges: bool) -> DataFrame:
    """Return tasks with how each ended: ``removed``, ``moved``, or ``deleted`` with its queue; null for one that waits."""
    what = F.struct(
        F.col("log_index").alias("ended_index"),
        F.col("event_time").alias("ended_time"),
        F.when(F.col("op") == Op.MOVE, "moved").otherwise("removed").alias("end"),
        F.col("properties")["reason"].alias("reason"),
    )
    rows = _with_destination(placed(changes.of(Op.REMOVE, Op.MOVE), lives), lives)
    rows = rows.where("(op != 'move') or destination_life is not null")
    named = rows.where("task_id is not null").select(*TASK, what.alias("ending"))
    ranges = rows.where("task_id is null").select(
        "life",
        _long("first_id").alias("first_of"),
        _long("last_id").alias("last_of"),
        what.alias("ending"),
    )
    if has_ranges:
        named = named.unionByName(_within(tasks, ranges, changes, lives))
    first = named.groupBy(*TASK).agg(F.min("ending").alias("ending"))
    ends = lives.where("until is not null").select("life", "until", "until_time")
    joined = tasks.join(first, list(TASK), "left").join(F.broadcast(ends), "life", "left")
    is_ended = F.col("ending").isNotNull()
    word = F.when(is_ended, F.col("ending.end")).when(F.col("until").isNotNull(), "deleted")
    return (
        joined.withColumn("end", word)
        .withColumn("ended_index", F.coalesce("ending.ended_index", "until"))
        .withColumn(
            "ended_time",
            F.when(is_ended, F.col("ending.ended_time")).otherwise(F.col("until_time")),
        )
        .withColumn("reason", F.col("ending.reason"))
        .drop("ending", "until", "until_time")
    )


def _within(tasks: DataFrame, ranges: DataFrame, changes: Changes, lives: DataFrame) -> DataFrame:
    """Return the endings of tasks in ranges of ids; one of expired tasks spares those that had not expired then."""
    block = F.shiftright("task_id", BLOCK_BITS)
    low, high = (F.shiftright(name, BLOCK_BITS) for name in ("first_of", "last_of"))
    # A purge goes to the last id of a queue: no further than tasks can be.
    furthest = tasks.groupBy("life").agg(F.max("task_id").alias("furthest"))
    cut = ranges.join(F.broadcast(furthest), "life").withColumn("last_of", F.least("last_of", "furthest"))  # fmt: skip
    blocks = cut.where("first_of <= last_of").withColumn("block", F.explode(F.sequence(low, high)))
    sets = changes.of(Op.SET).where(F.col("properties")["expires"].isNotNull())
    expiries = (
        placed(sets, lives)
        .groupBy(*TASK)
        .agg(
            F.collect_list(F.struct("log_index", _moment("expires").alias("expires"))).alias("set")
        )
    )
    met = (
        tasks.select(*TASK, "added_index", "expires", block.alias("block"))
        .join(blocks, ["life", "block"])
        .where("task_id between first_of and last_of")
        .where("added_index is null or added_index < ending.ended_index")
        .join(expiries, list(TASK), "left")
    )
    before = F.filter("set", lambda one: one["log_index"] < F.col("ending.ended_index"))
    later = F.array_max(before)
    expiry = F.when(later.isNotNull(), later["expires"]).otherwise(F.col("expires"))
    is_meant = (F.col("ending.reason") != "expired") | (expiry <= F.col("ending.ended_time"))
    return met.where(F.coalesce(is_meant, F.lit(False))).select(*TASK, "ending")


# --- what changes tasks that wait ----------------------------------------------------------------


def update(tasks: DataFrame, changes: Changes, lives: DataFrame) -> DataFrame:
    """Return tasks with the attempts that returns and new terms count, and the key and expiry that they were given last."""
    said = F.struct(
        "log_index",
        F.coalesce(_long("envelope"), F.lit(0)).alias("part"),
        "op",
        F.col("properties")["reason"].alias("reason"),
        "key",
        F.col("properties")["expires"].alias("expires"),
    )
    rows = placed(changes.of(Op.RETURN, Op.SET, Op.DELIVER), lives)
    grouped = rows.groupBy(*TASK).agg(F.array_sort(F.collect_list(said)).alias("said"))
    joined = tasks.join(grouped, list(TASK), "left")
    until = F.coalesce("ended_index", F.lit(2**62))
    since = F.coalesce("added_index", F.lit(-1))
    counted = F.filter("said", lambda one: (one["log_index"] < until) & (one["log_index"] > since))
    joined = joined.withColumn("said", F.coalesce(counted, F.array()))
    joined = _with_marks(joined, changes, lives)
    attempts = F.size(F.filter("said", _is_attempt))
    keys = F.filter("said", lambda one: one["key"].isNotNull())
    expiries = F.filter("said", lambda one: one["expires"].isNotNull())
    return (
        joined.withColumn("more", attempts.cast("long") + F.col("marked"))
        .withColumn("key", F.coalesce(F.try_element_at(keys, F.lit(-1))["key"], "key"))
        .withColumn(
            "expires",
            F.when(
                F.size(expiries) > 0,
                F.try_element_at(expiries, F.lit(-1))["expires"].try_cast("timestamp"),
            ).otherwise(F.col("expires")),
        )
        .drop("said", "marked", "terms")
    )


def _is_attempt(one: Column) -> Column:
    return (one["op"] == Op.RETURN) & one["reason"].isin(*ATTEMPTS)


def _with_marks(tasks: DataFrame, changes: Changes, lives: DataFrame) -> DataFrame:
    """Return tasks with ``marked``: how often a term began while they were marked as started, which is an attempt.

    A delivery or a return puts another mark in the place of the one before, and a new term clears all marks.
    """
    tasks = tasks.withColumn("marks", F.filter("said", lambda one: one["op"] != Op.SET))
    # A leader begins its term with an empty entry.
    terms = changes.of(Op.EMPTY).groupBy("source").agg(F.collect_list("log_index").alias("terms"))
    by_life = lives.select("life", "source").join(terms, "source")
    joined = tasks.join(F.broadcast(by_life.select("life", "terms")), "life", "left")
    beginning = F.when(
        F.col("is_started"),
        F.array(F.struct(F.lit(-1).cast("long").alias("at"), F.lit(True).alias("is_started"))),
    ).otherwise(F.array())
    told = F.transform(
        "marks",
        lambda one: F.struct(
            one["log_index"].alias("at"),
            ((one["op"] == Op.DELIVER) & (one["reason"] == "started")).alias("is_started"),
        ),
    )
    joined = joined.withColumn("marks", F.concat(beginning, told))
    until = F.coalesce("ended_index", F.lit(2**62))
    following = F.concat(F.slice(F.col("marks")["at"], 2, F.greatest(F.size("marks"), F.lit(1))), F.array(until))  # fmt: skip
    joined = joined.withColumn("following", following)
    is_counted = F.transform(
        "marks",
        lambda one, place: (
            one["is_started"]
            & F.exists(
                F.coalesce("terms", F.array()),
                lambda term: (term > one["at"]) & (term <= F.get("following", place)),
            )
        ),
    )
    last = F.try_element_at("marks", F.lit(-1))
    is_cleared = F.exists(F.coalesce("terms", F.array()), lambda term: term > last["at"])
    return (
        joined.withColumn("marked", F.size(F.filter(is_counted, lambda one: one)).cast("long"))
        .withColumn("is_started", F.coalesce(last["is_started"] & ~is_cleared, F.lit(False)))
        .drop("marks", "following")
    )


# --- moves ---------------------------------------------------------------------------------------


def follow_moves(tasks: DataFrame) -> DataFrame:
    """Return tasks without the moves that found none, each arrival with what its task brought along."""
    tasks = tasks.localCheckpoint()  # every hop reads it
    own = tasks.where("from_life is null").withColumn("failed", F.col("failed") + F.col("more"))
    arrivals = tasks.where("from_life is not null")
    found, coming = [own], _brought(own)
    for _ in range(HOPS_MAX):
        arrived = _arrived(arrivals, coming).localCheckpoint()
        if arrived.isEmpty():
            break
        found.append(arrived)
        coming = _brought(arrived)
    whole = found[0]
    for part in found[1:]:
        whole = whole.unionByName(part)
    return whole


def _brought(tasks: DataFrame) -> DataFrame:
    """Return what tasks that were moved take along."""
    return tasks.where("end = 'moved'").select(
        F.col("life").alias("from_life"), F.col("task_id").alias("from_id"),
        F.col("ended_index").alias("added_index"), F.col("key").alias("old_key"),
        F.col("size").alias("old_size"), F.col("failed").alias("old_failed"),
        F.col("first_queue_id").alias("old_queue_id"), F.col("first_id").alias("old_id"),
        F.col("root_life").alias("old_root_life"), F.col("root_id").alias("old_root_id"),
    )  # fmt: skip


def _arrived(arrivals: DataFrame, coming: DataFrame) -> DataFrame:
    failed = (
        F.when(F.col("moved_as") == "redriven", 0)
        .when(F.col("moved_as") == "dead-failed", F.col("old_failed") + 1)
        .otherwise(F.col("old_failed"))
    )
    joined = arrivals.join(coming, ["from_life", "from_id", "added_index"])
    return (
        joined.withColumn("failed", (failed + F.col("more")).cast("long"))
        .withColumn("added_key", F.coalesce("added_key", "old_key"))
        .withColumn("key", F.coalesce("key", "old_key"))
        .withColumn("size", F.col("old_size"))
        .withColumn("first_queue_id", F.col("old_queue_id"))
        .withColumn("first_id", F.col("old_id"))
        .withColumn("root_life", F.col("old_root_life"))
        .withColumn("root_id", F.col("old_root_id"))
        .select(*arrivals.columns)
    )
