"""One run at a time writes tables, a killed one stops nobody, and only tables that are exact are published."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import CorruptData, DirectoryLocked, PathRefused
from penstock.spark.pipeline.store import Staging, Store
from support.table_runs import begun_elsewhere


def write(staging: Staging, name: str, file: str, rows: int) -> None:
    path = Path(staging.table(name)) / file
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"number": range(rows)}), path)


def published(out: Path) -> int:
    return sum(
        pq.read_metadata(path).num_rows for path in (out / "current" / "tasks").glob("*.parquet")
    )


def publish(out: Path, rows: int) -> None:
    with Store(out).begin() as staging:
        write(staging, "tasks", "a.parquet", rows)
        staging.commit({}, {"tasks": rows})


def test_two_processes_publish_into_one_directory_and_one_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with begun_elsewhere(out) as (process, staging):
        with pytest.raises(DirectoryLocked) as caught:
            Store(out).begin()
        assert caught.value.holder is not None
        assert caught.value.holder["pid"] == process.pid
        assert caught.value.holder["host"] == os.uname().nodename
        assert caught.value.holder["started"]
        assert staging.is_dir(), "what the living run writes stays"


def test_two_threads_publish_into_one_directory_and_one_is_refused(tmp_path: Path) -> None:
    out, count = tmp_path / "out", 8
    ready, tried = threading.Barrier(count), threading.Barrier(count)

    def attempt(rows: int) -> int | None:
        ready.wait(30)
        try:
            staging = Store(out).begin()
        except DirectoryLocked:
            tried.wait(30)
            return None
        with staging:
            tried.wait(30)
            write(staging, "tasks", "a.parquet", rows)
            staging.commit({}, {"tasks": rows})
        return rows

    with ThreadPoolExecutor(count) as pool:
        won = [rows for rows in pool.map(attempt, range(1, count + 1)) if rows is not None]
    assert len(won) == 1
    assert published(out) == won[0]


def test_a_killed_run_holds_no_lock_and_its_successor_removes_what_it_left(tmp_path: Path) -> None:
    out = tmp_path / "out"
    publish(out, 3)
    with begun_elsewhere(out) as (process, left):
        process.kill()
        process.wait()
        assert left.is_dir()
        with Store(out).begin() as staging:
            assert not left.exists()
            assert staging.home != left, "no name is used twice"
            assert published(out) == 3, "the tables of the last run stay"


def test_a_record_of_a_number_that_another_process_has_now_locks_nobody_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Store(out).begin():
        record = (out / "lock").read_bytes()
    assert json.loads(record)["pid"] == os.getpid()
    (out / "lock").write_bytes(record)  # as a run leaves it that is killed; this process lives
    publish(out, 2)
    assert published(out) == 2
    (out / "lock").write_bytes(record[:10])  # and one that a crash cut off
    publish(out, 4)
    assert published(out) == 4


def left_by(out: Path, **fields: str) -> None:
    with Store(out).begin():
        record = json.loads((out / "lock").read_bytes())
    (out / "lock").write_text(json.dumps(record | fields))


def test_a_run_of_another_host_is_not_taken_for_dead(tmp_path: Path) -> None:
    out = tmp_path / "out"
    left_by(out, host="elsewhere", boot="another")
    for _ in range(2):
        with pytest.raises(DirectoryLocked, match=str(out / "lock")) as caught:
            Store(out).begin()
        assert caught.value.holder is not None
        assert caught.value.holder["host"] == "elsewhere"
    (out / "lock").unlink()
    publish(out, 1)
    assert published(out) == 1


@pytest.mark.parametrize("fields", [{"boot": "before the restart"}, {"host": "container"}])
def test_a_run_that_ended_with_its_machine_or_container_stops_nobody(
    tmp_path: Path, fields: dict[str, str]
) -> None:
    left_by(tmp_path / "out", **fields)
    publish(tmp_path / "out", 1)


def test_a_run_whose_lock_was_deleted_keeps_its_files_and_publishes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Store(out).begin() as first:
        write(first, "tasks", "a.parquet", 5)
        (out / "lock").unlink()
        publish(out, 3)
        assert first.home.is_dir(), "its owner lives"
        with pytest.raises(DirectoryLocked):
            first.commit({}, {"tasks": 5})
    assert published(out) == 3
    assert not first.home.exists()


@pytest.mark.parametrize("files", [[], [2], [2, 3, 2], [2, 4]])
def test_tables_with_lost_or_doubled_rows_are_not_published(
    tmp_path: Path, files: list[int]
) -> None:
    out = tmp_path / "out"
    publish(out, 7)
    with Store(out).begin() as staging:
        for number, rows in enumerate(files):
            write(staging, "tasks", f"{number}.parquet", rows)
        with pytest.raises(CorruptData) as caught:
            staging.commit({}, {"tasks": 5})
        assert (caught.value.expected, caught.value.found) == ("5 rows", str(sum(files)))
        assert published(out) == 7
    assert not staging.home.exists()


def test_a_directory_with_something_else_is_refused_and_gets_no_lock(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(PathRefused):
        Store(tmp_path).begin()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
