"""The commands over files at rest, given the data directory of a RabbitMQ node or a part of it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.formats.taskflux.generation import Generation
from support.command import COMMAND, penstock, refused
from support.directories import build
from support.rabbitmq_directories import Directory, journaled, publish, truth, unpacked

NAMES = ["family", "kind", "path", "offset", "size", "status"]


@pytest.fixture
def made(tmp_path: Path) -> Directory:
    """A directory with a lasting, a transient and an expiring message; the last is still in the store."""
    made = Directory(tmp_path / "broker")
    made.journal(
        made.queue(b"orders"),
        journaled(0, publish(0, b"lasting")),
        journaled(1, publish(1, b"transient", is_persistent=False)),
        journaled(2, publish(2, b"expiring", expiry_us=1_000_000_000_000_000)),  # 2001-09-09
    )
    made.journal(made.queue(b"bills"), journaled(0, publish(3, b"bill")))
    return made


def test_inspect_says_what_a_node_holds(tmp_path: Path) -> None:
    node = unpacked("c4_props_ttl_priority_clean", tmp_path)
    outcome = penstock("inspect", node)
    (row,) = outcome.rows
    assert outcome.code == 0
    assert (row["family"], row["kind"], row["version"]) == ("rabbitmq", "node", [1])
    assert (row["messages"], row["damage"], row["vhosts"]) == (328, [], ["/", "tenant/a"])
    table = penstock("inspect", node, "--table")
    assert (table.code, "no damage" in table.out) == (0, True)


def test_tasks_prints_the_messages_in_order(tmp_path: Path) -> None:
    outcome = penstock("tasks", unpacked("c4_props_ttl_priority_kill9", tmp_path))
    assert (outcome.code, outcome.err) == (0, "")
    expected = truth("c4_props_ttl_priority_kill9")
    assert [(row["vhost"], row["queue"], -row["key"]) for row in outcome.rows] == [
        (row["vhost"], row["queue"], row["bucket"] or 0) for row in expected
    ]
    assert list(outcome.rows[0]) == [
        "vhost", "queue", "seq", "key", "persistent", "delivered", "expiry_us", "exchange",
        "routing_keys", "properties", "payload", "payload_text",
    ]  # fmt: skip


def test_damage_is_rows_and_exit_1(tmp_path: Path) -> None:
    node = unpacked("c8_damage_store_marker_bad", tmp_path)
    verified = penstock("verify", node)
    assert (verified.code, [row["status"] for row in verified.rows]) == (
        1,
        ["bad-marker", "missing"],
    )
    assert all(list(row)[:6] == NAMES for row in verified.rows)
    assert "damaged: 464 messages in 3 queues, 1 lost" in verified.err
    listed = penstock("tasks", node)
    assert (listed.code, len(listed.rows)) == (1, 464)
    (words,) = listed.words
    assert "'penstock verify' lists them" in words
    dumped = penstock("dump", node)
    assert (dumped.code, {row["status"] for row in dumped.rows}) == (1, {"ok", "bad-marker"})
    inspected = penstock("inspect", node)
    assert (inspected.code, len(inspected.rows[0]["damage"])) == (1, 2)


def test_what_a_crash_leaves_is_printed_and_exit_0(tmp_path: Path) -> None:
    outcome = penstock("verify", unpacked("c8_damage_dup_flush", tmp_path))
    assert outcome.code == 0
    assert {row["severity"] for row in outcome.rows} == {"harmless"}
    assert "whole: 465 messages in 3 queues, 0 lost, 0 damaged places, 330 harmless" in outcome.err


@pytest.mark.parametrize(
    ("flags", "sequences"),
    [
        ([], {"bills": [0], "orders": [0]}),
        (["--include-transient"], {"bills": [0], "orders": [0, 1]}),
        (["--include-expired"], {"bills": [0], "orders": [0, 2]}),
        (["--as-of", "2001-09-09T01:46:39"], {"bills": [0], "orders": [0, 2]}),
        (["--as-of", "2001-09-09T01:46:40Z"], {"bills": [0], "orders": [0]}),
        (["--as-of", "2001-09-09T02:46:39+01:00"], {"bills": [0], "orders": [0, 2]}),
        (["--queue", "bills"], {"bills": [0]}),
        (["--vhost", "/", "--queue", "orders"], {"orders": [0]}),
        (["--vhost", "other"], {}),
    ],
)
def test_flags_choose_among_the_messages(
    made: Directory, flags: list[str], sequences: dict[str, list[int]]
) -> None:
    outcome = penstock("tasks", made.path, *flags)
    assert (outcome.code, outcome.err) == (0, "")
    found: dict[str, list[int]] = {}
    for row in outcome.rows:
        found.setdefault(row["queue"], []).append(row["seq"])
    assert found == sequences


@pytest.mark.parametrize(
    "flags", [["--at", "0"], ["--uncommitted"], ["--as-of", "tomorrow"], ["--as-of", "1e9"]]
)
def test_flags_that_mean_nothing_to_rabbitmq_are_wrong_usage(
    made: Directory, flags: list[str]
) -> None:
    outcome = penstock("tasks", made.path, *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert flags[0] in outcome.err


@pytest.mark.parametrize(
    "flags",
    [["--vhost", "/"], ["--include-transient"], ["--include-expired"], ["--as-of", "2026-01-01"]],
)
def test_flags_of_rabbitmq_mean_nothing_to_other_files(tmp_path: Path, flags: list[str]) -> None:
    build(tmp_path / "node", Generation.THREE)
    outcome = penstock("tasks", tmp_path / "node", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert flags[0] in outcome.err
    assert "TaskFlux" in outcome.err


def test_bad_input_is_refused_in_one_line(made: Directory, tmp_path: Path) -> None:
    zeros = tmp_path / "0.rdq"
    zeros.write_bytes(bytes(5000))
    (tmp_path / "journal.jif").write_bytes(b"\x3f" * 100)
    (tmp_path / "nothing").mkdir()
    for path in (zeros, tmp_path / "journal.jif", tmp_path / "nothing"):
        for command in ("inspect", "dump", "tasks", "verify"):
            assert str(path) in refused(command, path)
    assert "name the queue's directory" in refused(
        "tasks", unpacked("c3_large_store_limit1m_kill9", tmp_path / "c3")
        / "msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L/msg_store_persistent",
    )  # fmt: skip
    outcome = penstock("tasks", tmp_path / "gone")
    assert (outcome.code, "no such file" in outcome.err) == (2, True)


def test_a_huge_length_is_damage_and_takes_no_memory(made: Directory) -> None:
    path = made.queue(b"bills") / "journal.jif"
    record = bytearray(path.read_bytes())
    record[8:24] = b"\xff" * 16  # no id that its message has
    record[36:40] = b"\xff" * 4
    path.write_bytes(bytes(record))
    os.truncate(path, 2**33)  # a hole: the length fits into the file
    listed = subprocess.run(
        [*COMMAND, "tasks", made.path], capture_output=True, text=True, check=False
    )
    assert listed.returncode == 1
    assert [json.loads(line)["queue"] for line in listed.stdout.splitlines()] == ["orders"]
    (row,) = penstock("verify", made.path).rows
    assert (row["status"], row["offset"], row["size"]) == ("bad-record", 0, 2**33)


# --- quorum queues and streams -------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A real node with a classic queue, a quorum queue and a stream."""
    return unpacked("c9_quorum_and_stream_kill9", tmp_path / "mixed")


def others(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [
        (row["type"], row["vhost"], row["queue"]) for row in rows if row.get("status") == "left-out"
    ]


def listed(command: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows about queues: some commands print one object that holds them."""
    return rows[0]["left_out"] if command in ("inspect", "convert") else rows


LEFT_OUT = [("quorum", "/", "qq"), ("stream", "/", "st")]


@pytest.mark.parametrize(
    "command",
    [
        ["dump"],
        ["inspect"],
        ["tasks"],
        ["verify"],
        ["repair", "--out", "out"],
        ["convert", "--to", "taskflux-3", "--out", "out"],
    ],
    ids=lambda command: command[0],
)
def test_quorum_queues_and_streams_were_passed_over_in_silence(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *flags = command
    outcome = penstock(name, mixed, *flags)
    assert outcome.code == 1
    assert any("2 queues are not classic" in words and "'qq'" in words for words in outcome.words)
    assert others(listed(name, outcome.rows)) == LEFT_OUT

    accepted = penstock(name, mixed, *flags[:-1], *(["other"] if flags else []), "--classic-only")
    assert accepted.code == 0
    assert any("2 queues" in words for words in accepted.words)
    kept = LEFT_OUT if name == "inspect" else []  # which only describes
    assert others(listed(name, accepted.rows)) == kept


def test_only_queues_that_were_asked_for_are_left_out(mixed: Path, tmp_path: Path) -> None:
    assert penstock("tasks", mixed, "--queue", "cl").code == 0
    assert others(penstock("tasks", mixed, "--queue", "qq").rows) == [LEFT_OUT[0]]
    assert penstock("tasks", mixed, "--vhost", "other").code == 0
    assert "quorum 'qq'" in refused(
        "convert", mixed, "--to", "taskflux-3", "--out", tmp_path / "out", "--queue", "qq"
    )


def test_a_table_shows_tasks_and_stderr_the_queues_that_were_left_out(mixed: Path) -> None:
    outcome = penstock("tasks", mixed, "--table")
    assert (outcome.code, "classic 9" in outcome.out) == (1, True)
    assert "left-out" not in outcome.out
    assert "2 queues" in outcome.err


def test_classic_only_means_nothing_to_other_files(tmp_path: Path) -> None:
    build(tmp_path / "node", Generation.THREE)
    outcome = penstock("verify", tmp_path / "node", "--classic-only")
    assert (outcome.code, "--classic-only" in outcome.err) == (2, True)
