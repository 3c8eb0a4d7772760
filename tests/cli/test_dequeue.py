"""``penstock dequeue`` and ``penstock peek``: printed, flushed, and only then acked."""

from __future__ import annotations

import signal
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest

from support.command import COMMAND, penstock, process
from support.node_process import NodeProcess, start
from support.shell import payloads, shell


def test_a_task_is_printed_with_all_that_is_known_and_gone_afterwards(queue: str) -> None:
    penstock("enqueue", queue, "hello", "--key", "3")
    outcome = penstock("dequeue", queue)
    assert (outcome.code, outcome.err) == (0, "")
    payload = b64encode(b"hello").decode()
    assert outcome.rows == [{"queue": queue, "id": 1, "key": 3, "attempt": 1, "payload": payload}]
    assert penstock("stat", queue).rows[0]["count"] == 0


def test_an_empty_queue_prints_nothing_and_exits_0(queue: str) -> None:
    for words in ([], ["--all"], ["--count", "3"], ["--wait", "0.01"]):
        outcome = penstock("dequeue", queue, *words)
        assert (outcome.code, outcome.out, len(outcome.words)) == (0, "", 1)
    peeked = penstock("peek", queue)
    assert (peeked.code, peeked.out, len(peeked.words)) == (0, "", 1)


def test_count_and_all_take_that_many_across_batches(node: NodeProcess, queue: str) -> None:
    numbers = [b"%d" % number for number in range(1300)]
    with node.client() as client:
        client.enqueue_many(queue, numbers)
    assert payloads(penstock("dequeue", queue, "--count", "700")) == numbers[:700]
    assert payloads(penstock("dequeue", queue, "--all")) == numbers[700:]
    assert penstock("stat", queue).rows[0]["acked"] == 1300


def test_a_wait_ends_with_the_task_that_was_waited_for(node: NodeProcess, queue: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "dequeue", queue, "--wait", "60", "--raw"], stdout=subprocess.PIPE
    ) as waiting:
        penstock("enqueue", queue, "at last")
        assert waiting.stdout is not None
        assert waiting.stdout.read() == b"at last"
        assert waiting.wait() == 0


def test_without_an_ack_the_task_goes_back_and_its_attempts_are_counted(queue: str) -> None:
    penstock("enqueue", queue, "a", "b")
    shown = penstock("dequeue", queue, "--count", "2", "--no-ack")
    assert (shown.code, payloads(shown)) == (0, [b"a", b"b"])
    assert shown.words == [f"penstock: 2 tasks were not acked: they go back to queue {queue!r} now"]
    again = penstock("dequeue", queue, "--wait", "60")  # the node may still be hearing of the end
    assert (again.rows[0]["attempt"], payloads(again)) == (2, [b"a"])


def test_raw_is_the_payloads_and_nothing_else(queue: str) -> None:
    penstock("enqueue", queue, "a", "b", "c", "d")
    assert process("dequeue", queue, "--raw", "--count", "2").out == "ab"
    assert process("dequeue", queue, "--raw", "--lines", "--count", "2").out == "c\nd\n"


def test_a_reader_that_goes_away_loses_nothing(node: NodeProcess, queue: str) -> None:
    with node.client() as client:
        client.enqueue_many(queue, [b"x" * 1000] * 1000)
        running = subprocess.Popen(
            [*COMMAND, "dequeue", queue, "--all"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert running.stdout is not None
        running.stdout.close()  # before the first line
        assert running.stderr is not None
        assert running.stderr.read() == b""
        running.stderr.close()
        assert running.wait() == -signal.SIGPIPE
        stat = client.stat(queue)
    assert (stat.count, stat.acked) == (1000, 0)


def test_a_full_disk_loses_nothing_and_exits_1(node: NodeProcess, queue: str) -> None:
    penstock("enqueue", queue, "precious")
    for flags in ("", "--raw"):
        outcome = shell(f"penstock dequeue '{queue}' {flags} >/dev/full")
        assert outcome.code == 1
        assert outcome.words == ["penstock: the system: No space left on device"]
    (row,) = penstock("stat", queue).rows
    assert (row["count"], row["acked"]) == (1, 0)


def test_a_lease_that_ended_before_the_ack_is_said_and_exits_1(
    node: NodeProcess, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.cli import dequeue

    def slowly(*_: object, **__: object) -> None:
        with node.client() as other:
            # The task comes to somebody else, so the lease of the one who prints has ended.
            assert other.dequeue_many(queue, 1, wait=60)

    monkeypatch.setattr(dequeue, "_write", slowly)
    penstock("enqueue", queue, "slow")
    outcome = penstock("dequeue", queue, "--lease", "0.05")
    assert (outcome.code, len(outcome.words)) == (1, 1)
    assert "the lease of task 1 had ended" in outcome.err
    assert "ask for a longer --lease" in outcome.err


def test_peek_leaves_everything_where_it_is(queue: str) -> None:
    penstock("enqueue", queue, "a", "b", "c")
    for _ in range(2):
        outcome = penstock("peek", queue, "--count", "2")
        assert payloads(outcome) == [b"a", b"b"]
        assert [row["attempts"] for row in outcome.rows] == [0, 0]
        assert list(outcome.rows[0]) == ["queue", "id", "key", "attempts", "payload"]


def test_the_default_queue_needs_no_name(tmp_path: Path) -> None:
    with start(tmp_path / "node") as node:
        address = ("--node", node.address)
        assert penstock("enqueue", "", "x", *address).rows[0]["queue"] == ""
        assert payloads(penstock("peek", *address)) == [b"x"]
        assert payloads(penstock("dequeue", *address)) == [b"x"]


@pytest.mark.parametrize(
    "words",
    [
        ["dequeue", "--all", "--count", "1"],
        ["dequeue", "--all", "--no-ack"],
        ["dequeue", "--lines"],
        ["dequeue", "--count", "0"],
        ["dequeue", "--wait", "3601"],
        ["dequeue", "--wait", "nan"],
        ["dequeue", "--lease", "0"],
        ["dequeue", "a b"],
        ["peek", "--count", "65537"],
        ["peek", "--count", "0"],
    ],
)
def test_wrong_usage_exits_2_and_prints_nothing(node: NodeProcess, words: list[str]) -> None:
    outcome = penstock(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err
