"""The state after an entry and at a time, from snapshots and the log, through the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadData, Compacted, InvalidOption, OutOfRange
from penstock.families.options import LogTime, Operation
from penstock.families.registry import open_files
from support.command import penstock
from support.record_directories import STEP_MS, TIME_MS, Changes, sample, write_directory
from support.record_listing import Row, listed
from support.samples import THREE

ENTRIES = sample().entries
LAST = len(ENTRIES)


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[list[Row]]:
    """The tasks after each entry of the sample, from logs that end there."""
    base = tmp_path_factory.mktemp("states")
    roots = [write_directory(base / str(end), ENTRIES[:end]) for end in range(LAST + 1)]
    return [listed(root) for root in roots]


@pytest.mark.parametrize("snapshots", [(), (6,), (6, 10), (LAST,)])
def test_every_entry_has_its_state_whatever_snapshots_there_are(
    tmp_path: Path, states: list[list[Row]], snapshots: tuple[int, ...]
) -> None:
    root = write_directory(tmp_path / "node", ENTRIES, segment_size=1000, snapshots=snapshots)
    assert listed(root) == states[LAST]
    for index in range(LAST + 1):
        assert listed(root, at=index) == states[index]
        if index:
            moment = LogTime(TIME_MS + (index - 1) * STEP_MS + STEP_MS // 2)
            assert listed(root, at=moment) == states[index]
    assert listed(root, at=-1) == []
    assert listed(root, at=LogTime(2**50)) == states[LAST]


def test_what_a_snapshot_has_replaced_is_refused_with_the_oldest_moment(
    tmp_path: Path, states: list[list[Row]]
) -> None:
    root = write_directory(tmp_path / "node", ENTRIES, snapshots=(6,), first=7)
    assert listed(root, at=6) == states[6]
    assert listed(root, at=9) == states[9]
    with pytest.raises(Compacted, match="entry 6"):
        listed(root, at=5)
    with pytest.raises(Compacted, match="2026-11-18T11:06:45"):
        listed(root, at=LogTime(TIME_MS))
    with pytest.raises(OutOfRange):
        listed(root, at=LAST + 1)


def test_a_damaged_snapshot_is_replaced_by_an_older_one_and_the_log(
    tmp_path: Path, states: list[list[Row]]
) -> None:
    root = write_directory(tmp_path / "node", ENTRIES, snapshots=(6, 10), first=7)
    path = root / "snapshots/00000000000000000010.snap"
    path.write_bytes(path.read_bytes()[:-8])
    outcome = penstock("tasks", root)
    assert outcome.rows == states[LAST]
    assert (outcome.code, "not used" in outcome.err) == (0, True)
    (root / "snapshots/00000000000000000006.snap").unlink()
    with pytest.raises(BadData):
        listed(root)


def test_entries_behind_the_commit_floor_count_and_are_reported(
    tmp_path: Path, states: list[list[Row]]
) -> None:
    root = write_directory(tmp_path / "node", ENTRIES, commit_floor=11)
    outcome = penstock("tasks", root)
    assert outcome.rows == states[LAST]
    assert (outcome.code, "3 entries behind entry 11" in outcome.err) == (0, True)


def test_the_command_takes_an_index_a_time_and_a_queue(
    tmp_path: Path, states: list[list[Row]]
) -> None:
    root = write_directory(tmp_path / "node", ENTRIES)
    for at in ("5", "2026-11-18T11:06:44Z", "2026-11-18T12:06:44.9+01:00"):
        assert penstock("tasks", root, "--at", at).rows == states[5]
    assert penstock("tasks", root, "--at", "-0s").rows in (states[LAST], [])  # the clock decides
    only = penstock("tasks", root, "--queue", "dead")
    assert only.rows == [row for row in states[LAST] if row["queue"] == "dead"]
    assert penstock("tasks", root, "--table").code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--at", "soon"), 2),
        (("--at", "2026-13-01"), 2),
        (("--at", "99"), 1),
        (("--at", "2020-01-01"), 1),
        (("--queue", "missing"), 1),
        (("--queue", "with space"), 2),
        (("--uncommitted",), 2),
        (("--generation", "4"), 2),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    outcome = penstock("tasks", write_directory(tmp_path / "node", ENTRIES), *arguments)
    assert (outcome.code, outcome.rows) == (code, [])
    assert "Traceback" not in outcome.err


def test_files_without_times_refuse_a_time(tmp_path: Path) -> None:
    root = THREE.write(tmp_path / "three")
    assert penstock("tasks", root, "--at", "-2h").code == 2
    with pytest.raises(InvalidOption):
        open_files(root, Operation.TABLES).index_at(LogTime(0))


def test_tables_resolve_a_time_once(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", ENTRIES, snapshots=(6,))
    files = open_files(root, Operation.TASKS)
    assert files.index_at(LogTime(TIME_MS + 4 * STEP_MS)) == 5
    assert files.index_at(9) == 9
    with pytest.raises(OutOfRange):
        files.index_at(LAST + 1)


def test_an_empty_directory_has_no_tasks(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", [])
    assert listed(root) == []
    assert penstock("verify", root).code == 0


def test_a_part_of_a_log_is_replayed_as_far_as_it_goes(tmp_path: Path) -> None:
    made = Changes()
    made.begin()
    made.add(made.queue("mail"), [b"a"])
    root = write_directory(tmp_path / "node", made.entries)
    assert len(listed(root / "log")) == 1
    assert len(listed(root / "log/00000000000000000001.log")) == 1
