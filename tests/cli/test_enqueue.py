"""``penstock enqueue``: every way in, and what it says when it is refused."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest

from penstock.cli import task_input
from penstock.formats.taskflux.generation import Generation
from penstock.protocol.version1 import PAYLOAD_SIZE_MAX
from support.command import COMMAND, fed, penstock
from support.directories import EXPECTED, build
from support.node_process import NodeProcess, start
from support.shell import payloads, read_terminal


def test_arguments_are_payloads_in_order_and_the_row_says_what_was_taken(queue: str) -> None:
    outcome = penstock("enqueue", queue, "first", "", "third")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.rows == [{"queue": queue, "count": 3, "first_id": 1, "last_id": 3}]
    assert payloads(penstock("peek", queue, "--count", "9")) == [b"first", b"", b"third"]


def test_arguments_are_taken_byte_for_byte(queue: str) -> None:
    typed = b"\xff\xc3\xa4 \n"
    done = subprocess.run([*COMMAND, "enqueue", queue, "--", typed, b"-x"], check=True)
    assert done.returncode == 0
    assert payloads(penstock("dequeue", queue, "--all")) == [typed, b"-x"]


def test_a_file_is_one_task_as_it_is_and_several_may_follow_the_flag(
    queue: str, tmp_path: Path
) -> None:
    contents = [b"a\nb\n", b"", bytes(range(256))]
    paths = [tmp_path / f"{number}.bin" for number in range(3)]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    assert penstock("enqueue", queue, "--file", *paths).code == 0
    assert payloads(penstock("dequeue", queue, "--all")) == contents


def test_lines_are_tasks_without_their_newlines_and_nothing_else_is_taken_off(queue: str) -> None:
    outcome = fed(b"one\n\n two\r\nlast", "enqueue", queue, "--lines")
    assert outcome.rows[0]["count"] == 4
    assert payloads(penstock("dequeue", queue, "--all")) == [b"one", b"", b" two\r", b"last"]


def test_lines_longer_than_a_block_are_put_together(queue: str, tmp_path: Path) -> None:
    lines = [b"x" * (3 * task_input.BLOCK_SIZE + 1), b"y", b"z" * task_input.BLOCK_SIZE]
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert penstock("enqueue", queue, "--lines", "--file", path).rows[0]["count"] == 3
    assert payloads(penstock("dequeue", queue, "--all")) == lines


def test_a_dash_takes_all_of_stdin_as_one_task(queue: str) -> None:
    assert fed(b"a\nb\n", "enqueue", queue, "-").rows[0]["count"] == 1
    assert payloads(penstock("dequeue", queue)) == [b"a\nb\n"]


def test_what_dequeue_prints_can_be_enqueued_again(queue: str) -> None:
    penstock("enqueue", queue, "low", "--key", "7")
    penstock("enqueue", queue, "high", "--key", "-7")
    printed = penstock("dequeue", queue, "--all")
    again = fed(printed.out.encode(), "enqueue", "--json")
    assert again.rows == [{"queue": queue, "count": 2, "first_id": 3, "last_id": 4}]
    rows = penstock("dequeue", queue, "--all").rows
    assert [(row["key"], row["payload"]) for row in rows] == [
        (row["key"], row["payload"]) for row in printed.rows
    ]


def test_a_directory_at_rest_moves_into_a_node_queue_by_queue(tmp_path: Path) -> None:
    source = build(tmp_path / "old", Generation.TWO)
    with start(tmp_path / "new") as node:
        address = ("--node", node.address)
        names = dict.fromkeys(name for name, _, _ in EXPECTED)
        for name in filter(None, names):
            assert penstock("queue", "create", name, *address).code == 0
        moved = fed(penstock("tasks", source).out.encode(), "enqueue", "--json", *address)
        assert (moved.code, moved.err) == (0, "")
        assert [row["queue"] for row in moved.rows] == list(names)
        node.stop()
    rows = penstock("tasks", tmp_path / "new").rows
    kept = [row for row in rows if not row["queue"].startswith("!")]
    assert [(row["queue"], row["key"]) for row in kept] == [(n, k) for n, k, _ in EXPECTED]
    assert [row["payload"] for row in kept] == [b64encode(p).decode() for _, _, p in EXPECTED]


def test_the_notes_of_a_node_are_left_out_when_its_tasks_move(queue: str) -> None:
    rows = [
        {"queue": "!penstock.notes", "key": 1, "payload": "AAAA"},
        {"queue": "elsewhere", "payload": "aGk="},
    ]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    outcome = fed(data, "enqueue", queue, "--json", "--key", "5")
    assert (outcome.code, outcome.rows[0]["count"]) == (0, 1)
    assert "1 rows were left out" in outcome.err
    assert [(row["queue"], row["key"]) for row in penstock("dequeue", queue).rows] == [(queue, 5)]


def test_ids_prints_a_line_for_each_task(queue: str) -> None:
    outcome = penstock("enqueue", queue, "a", "b", "--ids", "--producer", "tester")
    assert outcome.rows == [{"queue": queue, "id": 1}, {"queue": queue, "id": 2}]


def test_a_delayed_task_waits_and_an_expired_one_is_gone(queue: str) -> None:
    assert penstock("enqueue", queue, "later", "--delay", "3600").code == 0
    assert penstock("enqueue", queue, "never", "--ttl", "0.001").code == 0
    empty = penstock("dequeue", queue, "--wait", "0.2")
    assert (empty.code, empty.out) == (0, "")
    (row,) = penstock("stat", queue).rows
    assert (row["count"], row["delayed"], row["ready"]) == (1, 1, 0)


def test_a_full_queue_exits_1_and_says_how_many_were_taken(node: NodeProcess) -> None:
    assert penstock("queue", "create", "narrow", "--max-size", "2500").code == 0
    lines = b"".join(b"%d\n" % number for number in range(4000))
    outcome = fed(lines, "enqueue", "narrow", "--lines")
    (row,) = penstock("stat", "narrow").rows
    assert outcome.code == 1
    assert outcome.rows[0]["count"] == row["count"] <= 2500
    taken, why = outcome.words
    assert taken.startswith(f"penstock: {row['count']} tasks were enqueued; task ")
    assert why == "penstock: queue 'narrow' is full; retry when tasks have been consumed"
    held = payloads(penstock("dequeue", "narrow", "--all"))
    number = int(taken.split("; task ")[1].split()[0])
    assert held[: number - 1] == [b"%d" % each for each in range(number - 1)]


def test_with_ids_a_refused_task_has_none(node: NodeProcess) -> None:
    assert penstock("queue", "create", "single", "--max-size", "1").code == 0
    assert penstock("enqueue", "single", "a", "--ids").rows == [{"queue": "single", "id": 1}]
    outcome = penstock("enqueue", "single", "b", "c", "--ids")
    assert (outcome.code, outcome.rows) == (1, [{"queue": "single", "id": None}] * 2)


def test_progress_is_shown_to_those_who_wait_and_see_it(node: NodeProcess, queue: str) -> None:
    ours, theirs = pty.openpty()
    code = (
        "import sys, penstock.cli.output as output; output.PATIENCE_S = 0;"
        "from penstock.cli.main import main; sys.argv[0] = 'penstock'; main()"
    )
    lines = b"".join(b"%d\n" % number for number in range(20_000))
    done = subprocess.run(
        [sys.executable, "-c", code, "enqueue", queue, "--lines"],
        input=lines,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        check=False,
    )
    os.close(theirs)
    drawn = read_terminal(ours)
    assert (done.returncode, json.loads(done.stdout)["count"]) == (0, 20_000)
    assert re.search(r"[\d,]+ tasks, [\d,]+ a second", drawn)


def test_a_bad_row_ends_the_input_but_those_before_it_are_taken(queue: str) -> None:
    for bad, reason in (
        (b"{", "Expecting property name"),
        (b"[]", "a task is a JSON object"),
        (b'{"key": 1}', "a task is a JSON object"),
        (b'{"payload": "?"}', "not base64"),
        (b'{"payload": "", "key": "1"}', '"key" a whole number'),
        (b'{"payload": "", "key": 9223372036854775808}', "beyond 64 bits"),
        (b'{"payload": "", "queue": "a b"}', "allowed are printable"),
        (b"\xff", "utf-8"),
        (b"[" * 100_000, "nested too deep"),
    ):
        row = {"queue": queue, "payload": "aGk="}
        data = json.dumps(row).encode() + b"\n" + bad + b"\n" + json.dumps(row).encode()
        outcome = fed(data, "enqueue", "--json")
        assert (outcome.code, outcome.rows[0]["count"]) == (1, 1)
        assert len(outcome.words) == 1
        assert "stdin, line 2: " in outcome.err
        assert reason in outcome.err
        assert outcome.err.endswith("; the 1 tasks before it were taken\n")


def test_a_line_or_file_above_what_a_node_takes_is_refused_without_reading_it_all(
    queue: str, tmp_path: Path
) -> None:
    path = tmp_path / "huge"
    path.touch()
    os.truncate(path, 2**34)
    for flags in ((), ("--lines",)):
        outcome = penstock("enqueue", queue, *flags, "--file", path)
        assert (outcome.code, outcome.out) == (1, "")
        assert f"above {PAYLOAD_SIZE_MAX} bytes" in outcome.err


def test_nothing_on_stdin_is_nothing_taken(queue: str) -> None:
    outcome = fed(b"", "enqueue", queue, "--lines")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.rows == [{"queue": queue, "count": 0, "first_id": None, "last_id": None}]


def test_lines_that_trickle_in_are_enqueued_as_they_come(node: NodeProcess, queue: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "enqueue", queue, "--lines"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdin is not None
        with node.client() as client:
            for line in (b"first", b"second"):
                running.stdin.write(line + b"\n")
                running.stdin.flush()
                (task,) = client.dequeue_many(queue, 1, wait=60)  # while the command still runs
                assert task.payload == line
                client.ack(task)
        running.stdin.close()
        assert running.wait() == 0


def test_many_lines_are_taken_in_bounded_memory_and_in_order(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_input, "CHUNK_COUNT", 100)
    read, write = os.pipe()
    os.write(write, b"".join(b"%d\n" % number for number in range(1000)))
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        lines = task_input.Lines(stream, task_input.STDIN, 100)
        assert list(lines) == [b"%d" % number for number in range(1000)]
    tasks = [task_input.NewTask(queue, 0, b"%d" % number) for number in range(250)]
    feed = task_input.Feed(tasks, lambda: False)
    sizes = []
    while feed.next_queue() is not None:
        sizes.append(len(list(feed.chunk())))
    assert sizes == [100, 100, 50]


def test_a_node_that_restarts_in_the_middle_gets_every_line_once(tmp_path: Path) -> None:
    with start(tmp_path / "node") as node:
        address = node.address
        running = subprocess.Popen(
            [*COMMAND, "enqueue", "", "--lines", "--node", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert running.stdin is not None
        running.stdin.write(b"before\n")
        running.stdin.flush()
        with node.client() as client:
            client.ack(client.dequeue_many("", 1, wait=60))
        node.kill()
        running.stdin.write(b"".join(b"%d\n" % number for number in range(3000)))
        running.stdin.close()
        with NodeProcess(tmp_path / "node", listen=address).wait_listening():
            assert running.stdout is not None
            (row,) = map(json.loads, running.stdout)
            running.stdout.close()
            assert running.wait() == 0
            assert row["count"] == 3001
            left = payloads(penstock("dequeue", "--all", "--node", address))
    assert left == [b"%d" % number for number in range(3000)]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["q"],
        ["q", "--lines", "--json"],
        ["q", "payload", "--lines"],
        ["q", "payload", "--json"],
        ["q", "--file", "missing"],
        ["q", "payload", "--key", "9223372036854775808"],
        ["q", "payload", "--key", "x"],
        ["q", "payload", "--delay=-1"],
        ["q", "payload", "--producer", ""],
        ["a b", "payload"],
        ["q", "payload", "--node", "http://node"],
        ["q", "payload", "--node", "127.0.0.1:99999"],
    ],
)
def test_wrong_usage_exits_2_and_prints_nothing(node: NodeProcess, words: list[str]) -> None:
    outcome = penstock("enqueue", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err


def test_without_a_node_or_a_queue_it_exits_1_and_says_what_to_do(
    node: NodeProcess, nobody: str
) -> None:
    missing = penstock("enqueue", "nowhere", "x")
    assert (missing.code, missing.out, len(missing.words)) == (1, "", 1)
    assert "penstock queue create NAME" in missing.err
    alone = penstock("enqueue", "", "x", "--node", nobody)
    assert (alone.code, alone.out, len(alone.words)) == (1, "", 1)
    assert nobody in alone.err
    assert "penstock serve" in alone.err
