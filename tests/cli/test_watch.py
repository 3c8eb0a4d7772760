"""``penstock stat --watch``: rates from differences, a live view in a terminal, rows without one."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.watch import Rates, Sample, Screen, rates, watch
from penstock.errors import Unreachable
from penstock.model import NO_LIMITS, NO_OPTIONS, QueueName
from penstock.protocol.version2 import NodeInfo, QueueStat
from support.command import COMMAND, penstock
from support.node_process import NodeProcess, start
from support.shell import read_terminal

NODE = NodeInfo(
    node=1, leader=1, version="0", generation=3, term=2, first=0, committed=41,
    frame_size_max=1, payload_size_max=1,
)  # fmt: skip


def stat(name: str = "q", **counts: int) -> QueueStat:
    numbers = {"count": 0, "leased": 0, "delayed": 0, "size": 0, "last_id": 0} | counts
    return QueueStat(name=QueueName(name), policy=NO_LIMITS, options=NO_OPTIONS, **numbers)


def sample(at: float, *queues: QueueStat) -> Sample:
    return Sample(at=at, node=NODE, queues=queues)


def test_rates_are_differences_by_the_time_between() -> None:
    before = sample(10.0, stat(enqueued=5, delivered=1, acked=0))
    now = sample(12.0, stat(enqueued=25, delivered=2, acked=0), stat("new", enqueued=9))
    assert rates(before, now) == {"q": Rates(enqueued=10.0, delivered=0.5, acked=0.0)}


def test_there_are_no_rates_for_the_first_sample_and_across_a_restart() -> None:
    now = sample(1.0, stat(enqueued=5))
    assert rates(None, now) == {}
    assert rates(sample(0.5, stat(enqueued=6)), now) == {}
    assert rates(now, now) == {}


def test_the_view_shows_depths_rates_totals_and_the_node() -> None:
    console = Console(width=140, height=40, record=True, file=StringIO())
    screen = Screen("localhost:1", console)
    screen.sample(sample(0.0, stat(count=1), stat("", count=8)), {})
    busy = Rates(enqueued=1234.4, delivered=10, acked=0)
    screen.sample(sample(1.0, stat(count=7, leased=2, delayed=1), stat("", count=8)), {"q": busy})
    console.print(screen.view("gone"))
    shown = console.export_text()
    assert "at localhost:1 · generation 3 · term 2 · committed index 41" in shown
    rows = {words[0]: words[1:] for words in map(str.split, shown.splitlines()) if words}
    assert rows["q"] == ["7", "4", "2", "1", "0", "0", "0", "1,234", "10", "0", "▂█"]
    assert rows["(default)"][:4] == ["8", "8", "0", "0"]
    assert rows["all"][:4] == ["15", "12", "2", "1"]
    assert "no answer, trying again: gone" in shown


def test_of_many_queues_the_longest_are_shown_and_all_are_counted() -> None:
    console = Console(width=140, height=19, record=True, file=StringIO())
    screen = Screen("localhost:1", console)
    screen.sample(sample(0.0, *(stat(f"q{n}", count=n) for n in range(100))), {})
    console.print(screen.view())
    shown = console.export_text()
    assert "q99" in shown
    assert "q90" in shown
    assert "q89" not in shown
    assert "4,950" in shown
    assert "and 90 shorter queues" in shown


def test_a_node_that_does_not_answer_is_asked_again() -> None:
    said: list[str] = []
    first, last = sample(0.0, stat()), sample(2.0, stat(enqueued=4))
    answers: Iterator[Sample | Unreachable] = iter([first, Unreachable("gone"), last])

    class Listener:
        def sample(self, now: Sample, found: dict[str, Rates]) -> None:
            said.append(f"{now.at} {[rate.enqueued for rate in found.values()]}")

        def problem(self, words: str) -> None:
            said.append(words)

    def take() -> Sample:
        try:
            answer = next(answers)
        except StopIteration:
            raise KeyboardInterrupt from None
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    assert watch(take, Listener(), interval=1, seconds=None, sleep=lambda _: None)
    assert said == ["0.0 []", "gone", "2.0 [2.0]"]
    answers = iter([Unreachable("gone")])
    assert not watch(take, Listener(), interval=1, seconds=0, sleep=lambda _: None)


def test_without_a_terminal_rows_come_every_interval_for_the_time_given(queue: str) -> None:
    penstock("enqueue", queue, "x")
    outcome = penstock("stat", queue, "--watch", "--interval", "0.05", "--for", "0.2")
    assert (outcome.code, outcome.err) == (0, "")
    assert len(outcome.rows) >= 2
    first, *others = outcome.rows
    assert (first["count"], first["enqueued_per_second"]) == (1, None)
    assert all(row["enqueued_per_second"] == 0 for row in others)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])


def test_ctrl_c_ends_it_with_exit_0(node: NodeProcess) -> None:
    running = subprocess.Popen(
        [*COMMAND, "stat", "", "--watch", "--interval", "0.05"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdout is not None
    assert json.loads(running.stdout.readline())["queue"] == ""
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (0, b"")


def test_a_restart_of_the_node_is_outlasted(tmp_path: Path) -> None:
    with start(tmp_path / "node") as node:
        address = node.address
        running = subprocess.Popen(
            [*COMMAND, "stat", "--watch", "--interval", "0.05", "--node", address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        node.kill()
        assert running.stderr.readline().startswith(b"penstock: ")
        with NodeProcess(tmp_path / "node", listen=address).wait_listening() as again:
            with again.client() as client:
                client.create_queue("new")
            while json.loads(running.stdout.readline())["queue"] != "new":
                pass  # what was printed before
            running.send_signal(signal.SIGINT)
            running.communicate(timeout=60)
        assert running.returncode == 0


def test_in_a_terminal_it_is_drawn_in_place(node: NodeProcess) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "130", "LINES": "30"}
    words = ["stat", "--watch", "--interval", "0.05"]
    running = subprocess.Popen([*COMMAND, *words], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    drawn = ""
    while drawn.count("committed index") < 2:
        drawn += os.read(ours, 4096).decode(errors="replace")
    running.send_signal(signal.SIGINT)
    drawn += read_terminal(ours)
    assert running.wait() == 0
    assert "Traceback" not in drawn
    assert "\x1b[2K" in drawn  # lines are drawn over
    assert "(default)" in drawn
    assert "trend" in drawn


def test_a_queue_that_is_missing_is_not_waited_for(node: NodeProcess) -> None:
    outcome = penstock("stat", "nowhere", "--watch")
    assert (outcome.code, outcome.out, len(outcome.words)) == (1, "", 1)


@pytest.mark.parametrize("width", [80, 100, 110, 140])
def test_the_numbers_are_whole_on_a_screen_of_any_usual_width(width: int) -> None:
    console = Console(width=width, height=40, record=True, file=StringIO())
    screen = Screen("localhost:1", console)
    many = stat("invoices", count=1_234_567, leased=100_000, delayed=50_000)
    busy = Rates(enqueued=123_456, delivered=98_765, acked=87_654)
    screen.sample(sample(0.0, many, stat("")), {"invoices": busy})
    console.print(screen.view())
    shown = console.export_text()
    assert "…" not in shown
    for text in ("invoices", "(default)", "1,234,567", "1,084,567", "123,456", "98,765", "87,654"):
        assert text in shown


@pytest.mark.parametrize("depth", [0, 1, 10**12])
def test_the_trend_of_any_depth_can_be_drawn(depth: int) -> None:
    screen = Screen("localhost:1", Console(file=StringIO(), width=140))
    for _ in range(100):
        screen.sample(sample(0.0, replace(stat(), count=depth)), {})
