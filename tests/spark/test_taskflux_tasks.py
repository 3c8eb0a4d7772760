"""The table of tasks is what a replay in order leaves in the queues, and fails where that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, CorruptData, OutOfRange, PenstockError
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.read import read_history
from penstock.families.taskflux.replay import replay
from penstock.families.taskflux.tables import state
from penstock.families.taskflux.tables.state import replay_columns
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record, segment_name
from penstock.model import (
    DEFAULT_QUEUE,
    NOTHING,
    AddTask,
    CreateQueue,
    DeleteQueue,
    Delta,
    Policy,
    QueueName,
    RemoveTask,
    TaskId,
)
from penstock.storage import reading
from support.damage import random_damage
from support.histories import nodes
from support.naive_queues import Change
from support.node_files import Node, write_files
from support.samples import NODES, THREE, TWO
from support.spark_tables import MEMORY, read_rows
from support.taskflux_golden import CASES, Case

each_layout = pytest.mark.parametrize("layout", LogLayout, ids=lambda layout: layout.variant)

Task = tuple[str, int, int, bytes, int, int]
"""Queue, id, key, payload, and the entry and term after which it is there."""


def replayed(root: Path, at: int | None, *, uncommitted: bool) -> list[Task]:
    """Return what the tools say the queues hold."""
    state = replay(read_history(resolve(root)), at=at, uncommitted=uncommitted)
    if state.damage is not None:
        raise CorruptData(state.damage)
    by_name = state.queues.by_name
    return [
        (str(name), _signed(task_id), key, payload, state.index, state.term)
        for name in sorted(by_name)
        for task_id, key, payload in by_name[name].in_order()
    ]


def _signed(number: int) -> int:
    return number if number < 2**63 else number - 2**64


def read(root: Path, at: int | None, *, uncommitted: bool, **how: Any) -> list[Task]:
    """Return what the table says."""
    options = {"table": "tasks", "uncommitted": str(uncommitted)}
    if at is not None:
        options["at"] = str(at)
    names = ("queue", "task_id", "key", "payload", "log_index", "term")
    rows = read_rows(root, **options, **how)
    return [tuple(row[name] for name in names) for row in rows]


def check(root: Path, at: int | None, *, uncommitted: bool) -> None:
    """Compare the table with the tools: the same rows, or the same kind of error at the same place."""
    expected = or_error(lambda: replayed(root, at, uncommitted=uncommitted))
    assert or_error(lambda: read(root, at, uncommitted=uncommitted)) == expected


def or_error(tell: Callable[[], list[Task]]) -> list[Task] | tuple[object, ...]:
    """Return tasks, or what kind of error there was, and where."""
    try:
        return tell()
    except PenstockError as error:
        place = getattr(error, "path", None), getattr(error, "offset", None)
        return type(error), *place


@pytest.mark.parametrize("name", NODES)
def test_the_sample_nodes_hold_what_a_replay_leaves(tmp_path: Path, name: str) -> None:
    node = NODES[name]
    root = node.write(tmp_path)
    for uncommitted in (False, True):
        for at in (None, *range(-1, node.last + 2)):
            check(root, at, uncommitted=uncommitted)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_directories_of_real_programs_hold_what_a_replay_leaves(tmp_path: Path, case: Case) -> None:
    root = case.unpack(tmp_path)
    for uncommitted in (False, True):
        check(root, None, uncommitted=uncommitted)


@each_layout
@given(data=st.data(), at=st.none() | st.integers(-1, 31), uncommitted=st.booleans())
def test_random_nodes_hold_what_a_replay_leaves(
    layout: LogLayout, data: st.DataObject, at: int | None, uncommitted: bool
) -> None:
    node = data.draw(nodes(layout, size_max=30))
    with TemporaryDirectory(dir=MEMORY) as place:
        check(node.write(Path(place)), at, uncommitted=uncommitted)


@each_layout
@given(data=st.data(), at=st.none() | st.integers(-1, 31), uncommitted=st.booleans())
def test_damaged_nodes_fail_where_a_replay_fails(
    layout: LogLayout, data: st.DataObject, at: int | None, uncommitted: bool
) -> None:
    node = data.draw(nodes(layout, size_max=30))
    random = Random(data.draw(st.integers(0, 2**32)))
    files = node.files()
    name = random.choice(sorted(files))
    files[name] = random_damage(random, files[name], start=random.choice((0, layout.header_size)))
    with TemporaryDirectory(dir=MEMORY) as place:
        root = write_files(Path(place), files)
        expected = or_error(lambda: replayed(root, at, uncommitted=uncommitted))
        found = or_error(lambda: read(root, at, uncommitted=uncommitted))
    if (
        found != expected
    ):  # an entry beyond the log is reported before any file is read, damaged or not
        assert found == (OutOfRange, None, None)
        assert at is not None
        assert at > node.last
        assert isinstance(expected[0], type)
        assert issubclass(expected[0], BadData)


@pytest.mark.parametrize("node", [TWO, THREE], ids=["2", "3"])
def test_some_queues_and_some_columns_of_the_tasks(tmp_path: Path, node: Node) -> None:
    root = node.write(tmp_path)
    whole = read_rows(root, table="tasks")
    assert {row["queue"] for row in whole} == {"", "q"}
    for queues in ("q", '["q", "none"]'):
        found = read_rows(root, table="tasks", queues=queues)
        assert found == [row for row in whole if row["queue"] == "q"]
    names = ["payload", "queue"]
    found = read_rows(root, table="tasks", columns=names)
    assert found == [{name: row[name] for name in names} for row in whole]
    assert {row["source"] for row in whole} == {str(root)}


def test_an_entry_behind_the_log_is_out_of_range(tmp_path: Path) -> None:
    root = THREE.write(tmp_path)
    with pytest.raises(OutOfRange, match="beyond the log, which ends at entry 5"):
        read_rows(root, table="tasks", at="6")


# --- in columns ----------------------------------------------------------------------------------

_names = st.sampled_from([DEFAULT_QUEUE, QueueName("a"), QueueName("b")])
_deltas: st.SearchStrategy[Delta] = st.one_of(
    st.builds(AddTask, queue=_names, key=st.integers(-1, 1), payload=st.binary(max_size=3)),
    st.builds(AddTask, queue=_names, key=st.integers(-1, 1), payload=st.binary(max_size=3)),
    st.builds(RemoveTask, queue=_names, id=st.integers(0, 5).map(TaskId)),
    st.builds(CreateQueue, queue=_names, policy=st.just(Policy())),
    st.builds(DeleteQueue, queue=_names | st.just(NOTHING.queue)),
)


def segment_of(root: Path, changes: list[Delta]) -> Path:
    """Write a node with one segment."""
    layout = LogLayout.THREE
    records = [encode_record(layout, term=1, payload=encode_delta(one)) for one in changes]
    data = encode_header(layout) + b"".join(records)
    return write_files(root, {f"data/log/{segment_name(0)}": data})


@given(changes=st.lists(_deltas, max_size=12))
def test_changes_that_contradict_each_other_fail_where_a_replay_fails(changes: list[Delta]) -> None:
    with TemporaryDirectory(dir=MEMORY) as place:
        check(segment_of(Path(place), changes), None, uncommitted=False)


@given(node=nodes(LogLayout.THREE, size_max=30))
def test_a_whole_log_with_ids_is_replayed_in_columns(node: Node) -> None:
    with TemporaryDirectory(dir=MEMORY) as place:
        root = node.write(Path(place))
        assert replay_columns(read_history(resolve(root)), at=None) is not None


@pytest.mark.parametrize("window", [50, 300, 2**20])
def test_payloads_are_gathered_from_many_windows_and_files(
    tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WINDOW", window)
    monkeypatch.setattr(state, "_ROWS", 7)
    random = Random(window)
    queue = QueueName("q")
    history: list[tuple[int, Change]] = [(1, CreateQueue(queue=queue, policy=Policy()))]
    there: list[int] = []
    for number in range(1, 200):
        payload = random.randbytes(random.choice((0, 5, 80, 400)))
        history.append((1, AddTask(queue=queue, key=random.randint(-3, 3), payload=payload)))
        there.append(number)
        if random.random() < 0.5:
            gone = there.pop(random.randrange(len(there)))
            history.append((2 if number > 100 else 1, RemoveTask(queue=queue, id=TaskId(gone))))
    history = [(1 if at < 150 else 2, change) for at, (_, change) in enumerate(history)]
    node = Node(layout=LogLayout.THREE, history=history, snapshot_at=60, starts=(40, 90, 91, 200))
    root = node.write(tmp_path)
    found = read(root, None, uncommitted=False)
    assert [(name, key, payload) for name, _, key, payload, _, _ in found] == node.tasks
    for at in (60, 61, 90, 150, node.last):
        check(root, at, uncommitted=False)


def test_a_log_that_is_cut_between_the_two_readings_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = segment_of(tmp_path, [AddTask(queue=DEFAULT_QUEUE, key=0, payload=b"x" * 50)])
    plain = state._live

    def cut(*given: Any) -> Any:
        (root / "data" / "log" / segment_name(0)).write_bytes(encode_header(LogLayout.THREE))
        return plain(*given)

    monkeypatch.setattr(state, "_live", cut)
    with pytest.raises(BadData, match="became shorter while it was read"):
        read(root, None, uncommitted=False)
