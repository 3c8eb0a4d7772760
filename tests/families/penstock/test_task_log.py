"""Tasks of other systems as generation 4: the same tasks as in a directory of TaskFlux, in batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import CannotConvert
from penstock.families.penstock.task_log import new_task_log
from penstock.model import QueueName
from support.beats_spools import VECTORS, spool, stored
from support.command import penstock
from support.rabbitmq_directories import Directory, journaled, publish
from support.record_listing import dumped, listed, verified


def broker(root: Path) -> Path:
    made = Directory(root)
    made.journal(
        made.queue(b"orders"), *(journaled(n, publish(n, b"body %d" % n)) for n in range(9))
    )
    made.queue(b"empty")
    return made.path


def beats(root: Path) -> Path:
    return spool(root, {0: VECTORS["v1_cbor"]}, stored(0, 8, 0))


@pytest.mark.parametrize("make", [broker, beats])
def test_files_of_other_systems_become_generation_4(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    source = make(tmp_path / "source")
    four = penstock("convert", source, "--to", "penstock-4", "--out", tmp_path / "four")
    three = penstock("convert", source, "--to", "taskflux-3", "--out", tmp_path / "three")
    assert (four.code, three.code) == (0, 0)
    assert four.rows[0]["family"] == "penstock"
    assert four.rows[0]["tasks"] == three.rows[0]["tasks"] > 0
    assert verified(tmp_path / "four") == []
    assert listed(tmp_path / "four") == listed(tmp_path / "three")


def test_tasks_are_written_in_batches_and_stay_in_order(tmp_path: Path) -> None:
    a, b, out = QueueName("a"), QueueName("b"), tmp_path / "out"
    with new_task_log(out, "penstock-4", source=tmp_path / "x", what="", title="") as log:
        for number in range(2500):
            log.add(a, 0, b"%d" % number)
        log.add(b, 1, b"other")
        log.add(a, 0, b"2500")
        log.add(a, 0, bytes(2**20))
    payloads = [row.get("payload_text") for row in listed(out)]
    assert payloads == [*map(str, range(2501)), None, "other"]
    assert verified(out) == []
    adds = {row["index"] for row in dumped(out) if row.get("op") == "add"}
    assert len(adds) == 6
    assert log.tasks == 2503


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(CannotConvert),
        new_task_log(tmp_path / "out", "beats-2", source=tmp_path, what="", title="Lines"),
    ):
        raise AssertionError("refused before")
