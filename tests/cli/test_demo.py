"""The demonstration says so if a task is lost, comes twice, comes changed or out of order."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"

TASKS = [(1, 1, b"a"), (1, 3, b"c"), (2, 2, b"b"), (2, 4, b"d"), (2, 5, b"e")]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return import_module("demo")


@pytest.mark.parametrize("found", [TASKS[1:], [TASKS[1], *TASKS[3:]]])
def test_what_must_be_there_with_or_without_what_is_unknown_is_right(
    demo: ModuleType, found: list[tuple[int, int, bytes]]
) -> None:
    account = demo.Account(enqueued={task[1]: task for task in TASKS}, acked={1}, asked={2})
    demo.compare(found, account, "here")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (TASKS[2:], "1 tasks are lost: [3]"),
        (TASKS, "1 tasks are back from the dead: [1]"),
        ([*TASKS[1:], (9, 9, b"")], "1 tasks are never enqueued: [9]"),
        ([TASKS[2], TASKS[1], *TASKS[3:]], "number 0 is (2, 2, b'b') and should be (1, 3, b'c')"),
        ([*TASKS[1:4], (2, 5, b"x")], "number 3 is (2, 5, b'x') and should be (2, 5, b'e')"),
        ([*TASKS[1:], TASKS[4]], "1 tasks came twice"),
    ],
)
def test_every_difference_from_the_account_is_found(
    demo: ModuleType, found: list[tuple[int, int, bytes]], words: str
) -> None:
    account = demo.Account(enqueued={task[1]: task for task in TASKS}, acked={1}, asked={2})
    with pytest.raises(demo.DemoFailed) as failed:
        demo.compare(found, account, "here")
    assert str(failed.value).startswith("here: ")
    assert words in str(failed.value)


def test_a_node_that_forgets_makes_the_demonstration_exit_1(tmp_path: Path) -> None:
    # The second process opens an empty directory: all that was promised is gone.
    code = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
import demo
demo.COUNT, demo.ACKED_BEFORE_KILL = 10_000, 2_000
start, count = demo.NodeProcess, iter(range(9))
demo.NodeProcess = lambda data, *words: start(data / str(next(count)), *words)
keep, sys.argv = demo.QUEUE, ["demo"]
def connect(address, **options):
    client = connected(address, **options)
    if options == {{}}:
        client.create_queue(keep, exist_ok=True)
        client.create_queue = lambda name: None
    return client
connected, demo.penstock.connect = demo.penstock.connect, connect
demo.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "The demonstration failed" in done.stdout
    assert "tasks are lost" in " ".join(done.stdout.split())
