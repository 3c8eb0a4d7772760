"""``penstock queue``, ``stat`` and ``node``: JSON lines, tables for people, and refusals in plain words."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import __version__
from support.command import penstock, process
from support.node_process import NodeProcess, start

COUNTS = [
    "queue", "count", "ready", "leased", "delayed", "size", "last_id", "enqueued", "delivered",
    "acked", "returned", "expired", "dead_lettered",
]  # fmt: skip


def test_a_queue_is_created_as_the_flags_say(node: NodeProcess) -> None:
    assert penstock("queue", "create", "failed").code == 0
    flags = {
        "--implementation": "array", "--keys": "-3:9", "--max-size": "5", "--max-payload": "10",
        "--lease": "1.5", "--max-attempts": "3", "--dead-letter": "failed",
    }  # fmt: skip
    words = [word for pair in flags.items() for word in pair]
    outcome = penstock("queue", "create", "picky", *words)
    settings = {
        "queue": "picky",
        "implementation": "array",
        "size_max": 5,
        "payload_size_max": 10,
        "keys": [-3, 9],
        "lease_ms": 1500,
        "attempts_max": 3,
        "dead_letter": "failed",
    }
    assert (outcome.code, outcome.err, outcome.rows) == (0, "", [settings])
    (listed,) = [row for row in penstock("queue", "list").rows if row["queue"] == "picky"]
    assert listed == settings | {"count": 0}
    (stat,) = penstock("queue", "stat", "picky").rows
    assert stat.items() >= settings.items()
    assert set(COUNTS) < set(stat)
    for words in (["too long a payload"], ["x", "--key", "10"]):
        refused = penstock("enqueue", "picky", *words)
        assert (refused.code, refused.out, len(refused.words)) == (1, "", 2)
        assert "0 tasks were enqueued" in refused.words[0]
        assert "penstock queue stat NAME" in refused.words[1]
    in_use = penstock("queue", "delete", "failed")
    assert (in_use.code, in_use.out, len(in_use.words)) == (1, "", 1)


def test_a_queue_that_exists_is_refused_unless_that_is_fine(queue: str) -> None:
    refused = penstock("queue", "create", queue)
    assert (refused.code, refused.out, len(refused.words)) == (1, "", 1)
    assert "--exist-ok" in refused.err
    taken = penstock("queue", "create", queue, "--max-size", "7", "--exist-ok")
    assert (taken.code, taken.rows[0]["size_max"]) == (0, None)  # as it is, and printed so


def test_a_queue_with_tasks_is_deleted_only_by_force(node: NodeProcess) -> None:
    penstock("queue", "create", "doomed")
    penstock("enqueue", "doomed", "a", "b")
    refused = penstock("queue", "delete", "doomed")
    assert (refused.code, refused.out) == (1, "")
    assert refused.words == ["penstock: queue 'doomed' holds 2 tasks; --force deletes them with it"]
    forced = penstock("queue", "delete", "doomed", "--force")
    assert (forced.code, forced.rows) == (0, [{"queue": "doomed", "deleted": 2}])
    gone = penstock("queue", "delete", "doomed")
    assert (gone.code, gone.out, len(gone.words)) == (1, "", 1)


def test_purge_says_how_many_it_dropped_and_spares_what_is_on_lease(
    node: NodeProcess, queue: str
) -> None:
    penstock("enqueue", queue, "a", "b", "c")
    with node.client() as client:
        client.dequeue_many(queue, 1)
        assert penstock("queue", "purge", queue).rows == [{"queue": queue, "purged": 2}]
        assert penstock("stat", queue).rows[0]["leased"] == 1


def test_stat_prints_a_line_for_each_queue_by_name_or_for_those_named(
    node: NodeProcess, queue: str
) -> None:
    penstock("enqueue", queue, "abc")
    every = penstock("stat").rows
    assert [row["queue"] for row in every] == sorted(row["queue"] for row in every)
    assert {"", queue} <= {row["queue"] for row in every}
    assert all(list(row) == COUNTS for row in every)
    rows = penstock("stat", queue, "", queue).rows
    assert [row["queue"] for row in rows] == [queue, ""]
    assert (rows[0]["count"], rows[0]["ready"], rows[0]["size"], rows[0]["enqueued"]) == (
        1,
        1,
        3,
        1,
    )


def test_a_table_is_for_people_and_shows_every_queue(queue: str) -> None:
    outcome = process("queue", "list", "--table")
    assert (outcome.code, outcome.err) == (0, "")
    assert "(default)" in outcome.out
    assert "max payload" in outcome.out or "payload" in outcome.out
    assert "{" not in outcome.out


def test_the_node_says_what_it_is(node: NodeProcess) -> None:
    (row,) = penstock("node").rows
    assert (row["address"], row["version"], row["generation"]) == (node.address, __version__, 3)
    assert row["commit_index"] >= row["first_index"] == 0


def test_the_flag_wins_over_the_environment(node: NodeProcess, tmp_path: Path) -> None:
    with start(tmp_path / "other") as other:
        (row,) = penstock("node", "--node", other.address).rows
    assert row["address"] == other.address != node.address


@pytest.mark.parametrize(
    "words",
    [
        ["queue", "list"],
        ["queue", "create", "q"],
        ["queue", "delete", "q"],
        ["queue", "purge", "q"],
        ["queue", "stat", "q"],
        ["stat"],
        ["stat", "--watch"],
        ["node"],
        ["peek"],
        ["dequeue"],
        ["enqueue", "q", "x"],
    ],
)
def test_where_nobody_listens_every_command_exits_1_with_one_line(
    nobody: str, words: list[str]
) -> None:
    outcome = penstock(*words, "--node", nobody)
    assert (outcome.code, outcome.out, len(outcome.words)) == (1, "", 1)
    assert nobody in outcome.err


@pytest.mark.parametrize("words", [["delete"], ["purge"], ["stat"]])
def test_a_queue_that_is_missing_exits_1_with_one_line(node: NodeProcess, words: list[str]) -> None:
    outcome = penstock("queue", *words, "nowhere")
    assert (outcome.code, outcome.out, len(outcome.words)) == (1, "", 1)
    assert "there is no queue 'nowhere'" in outcome.err
    assert "penstock queue list" in outcome.err


@pytest.mark.parametrize(
    "words",
    [
        ["queue", "create", "q", "--keys", "1"],
        ["queue", "create", "q", "--keys", "9:0"],
        ["queue", "create", "q", "--implementation", "array"],
        ["queue", "create", "q", "--implementation", "tree"],
        ["queue", "create", "q", "--max-size", "-1"],
        ["queue", "create", "q", "--lease", "0"],
        ["queue", "create", "q", "--max-attempts", "0"],
        ["queue", "create", "q", "--dead-letter", "a b"],
        ["queue", "create", "q", "--dead-letter", "q"],
        ["queue", "create", "!penstock.mine"],
        ["queue", "create"],
        ["queue", "delete"],
        ["stat", "--for", "1"],
        ["stat", "--watch", "--interval", "0"],
        ["stat", "a b"],
        ["node", "--node", ""],
    ],
)
def test_wrong_usage_exits_2_and_prints_nothing(node: NodeProcess, words: list[str]) -> None:
    outcome = penstock(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err


def test_the_missing_dead_letter_queue_is_named_not_the_one_to_create(node: NodeProcess) -> None:
    outcome = penstock("queue", "create", "zzz", "--max-attempts", "2", "--dead-letter", "nope")
    assert (outcome.code, outcome.out) == (1, "")
    (line,) = outcome.words
    assert "nope" in line
    assert "zzz" not in line
