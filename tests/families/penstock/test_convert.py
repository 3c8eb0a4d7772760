"""Generations 1, 2 and 3 to generation 4 and back: the same tasks, and what extensions store is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CannotConvert, PenstockError
from penstock.families.family import Outcome, no_progress
from penstock.families.options import Operation, Values
from penstock.families.registry import NO_VALUES, open_files
from penstock.families.taskflux.new_directory import new_directory
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.extensions import encode_extension
from penstock.formats.taskflux.variant import Variant
from penstock.model import (
    NO_LIMITS,
    Adding,
    AddTask,
    CreateQueue,
    Creating,
    DeleteQueue,
    HardState,
    KeyRange,
    Policy,
    QueueName,
    RemoveTask,
    Returning,
    TaskId,
    Terms,
)
from support.record_directories import Changes, sample, write_directory
from support.record_listing import Row, dumped, listed, verified
from support.taskflux_golden import CASES, Case

KEYS = ("queue", "key", "payload")


def converted(root: Path, to: str, out: Path, values: Values = NO_VALUES) -> Row:
    files = open_files(root, Operation.CONVERT, values)
    return files.convert(to, out, values, Outcome(), no_progress)


def plain(rows: list[Row], *, with_ids: bool = False) -> list[tuple[Any, ...]]:
    names = (*KEYS, "id") if with_ids else KEYS
    return [tuple(row[name] for name in names) for row in rows]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_directory_of_taskflux_becomes_generation_4_and_comes_back(
    case: Case, tmp_path: Path
) -> None:
    source = case.unpack(tmp_path / "source")
    out = tmp_path / "four"
    try:
        row = converted(source, "penstock-4", out)
    except PenstockError:
        assert not out.exists()  # damage is refused, as by a conversion between generations
        with pytest.raises(PenstockError):
            converted(source, "taskflux-3", tmp_path / "three")
        return
    before = listed(source)
    assert row["tasks"] == len(before)
    assert verified(out) == []
    assert plain(listed(out)) == plain(before)
    if case.name.startswith("3"):
        assert plain(listed(out), with_ids=True) == plain(before, with_ids=True)
    for to in ("taskflux-1c", "taskflux-2", "taskflux-3"):
        if case.name != "3-names":  # it has a queue that no snapshot can hold
            converted(out, to, tmp_path / to, {"drop": True})
            assert plain(listed(tmp_path / to)) == plain(before)


def test_the_history_of_generation_3_stays(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "3-segments")
    source = case.unpack(tmp_path / "source")
    converted(source, "penstock-4", tmp_path / "four")
    for index in (0, 100, 250, 401):
        after = listed(tmp_path / "four", at=index + 3)
        assert plain(after, with_ids=True) == plain(listed(source, at=index), with_ids=True)


def extended(root: Path) -> Path:
    """Return a directory of generation 3 in which our extensions say more than TaskFlux knows."""
    mail = QueueName("mail")
    terms = Terms(not_before_ms=5000, expires_ms=9000, attempts=2, producer=b"p" * 16, sequence=7, total=2)  # fmt: skip
    limits = Policy(size_max=10, keys=KeyRange(lowest=-(2**63), highest=9))
    entries: list[bytes] = [
        encode_delta(CreateQueue(queue=QueueName("dead"), policy=NO_LIMITS)),
        encode_extension(Creating(lease_ms=1000, attempts_max=3, dead_letter=1)),
        encode_delta(CreateQueue(queue=mail, policy=limits)),
        encode_extension(Adding(count=2, terms=terms)),
        encode_delta(AddTask(queue=mail, key=1, payload=b"one")),
        encode_delta(AddTask(queue=mail, key=1, payload=b"two")),
        encode_delta(AddTask(queue=mail, key=1, payload=b"three")),
        encode_extension(Returning(queue=2, ids=(1, 3), not_before_ms=7000)),
        encode_delta(RemoveTask(queue=mail, id=TaskId(2))),
        encode_delta(DeleteQueue(queue=QueueName("missing"))),
    ]
    with new_directory(root, Variant.THREE) as new:
        for entry in entries:
            new.append(1, entry)
        new.write_metadata(HardState())
    return root


def test_what_extensions_store_is_kept(tmp_path: Path) -> None:
    converted(extended(tmp_path / "three"), "penstock-4", tmp_path / "four")
    one, three = listed(tmp_path / "four")
    assert (one["attempts"], one["not_before"], one["expires"]) == (
        3, "1970-01-01T00:00:07.000Z", "1970-01-01T00:00:09.000Z",
    )  # fmt: skip
    assert (three["attempts"], three["not_before"]) == (1, "1970-01-01T00:00:07.000Z")
    assert not {"expires", "enqueued"} & three.keys()
    created = [row for row in dumped(tmp_path / "four") if row.get("op") == "create"]
    assert created[2]["options"] == {"lease_ms": 1000, "attempts_max": 3, "dead_letter": 2}
    assert created[2]["policy"] == {"size_max": 10, "keys": [str(-(2**63)), 9]}
    adds = [row for row in dumped(tmp_path / "four") if row.get("op") == "add"]
    assert [(row.get("producer"), row.get("sequence")) for row in adds] == [
        ((b"p" * 16).hex(), 7), ((b"p" * 16).hex(), 7), (None, None),
    ]  # fmt: skip
    # Limits come back, options do not.
    converted(tmp_path / "four", "taskflux-3", tmp_path / "back", {"drop": True})
    (queue,) = [row for row in dumped(tmp_path / "back") if row.get("queue") == "mail" and row["kind"] == "queue"]  # fmt: skip
    assert queue["policy"] == {"implementation": "heap", "size_max": 10, "keys": [-(2**63), 9]}


def test_what_taskflux_cannot_hold_is_refused_with_a_list(tmp_path: Path) -> None:
    root = write_directory(tmp_path / "node", sample().entries)
    with pytest.raises(CannotConvert, match="4 tasks with headers") as caught:
        converted(root, "taskflux-3", tmp_path / "out")
    assert "--drop" in str(caught.value)
    assert not (tmp_path / "out").exists()
    row = converted(root, "taskflux-3", tmp_path / "out", {"drop": True})
    assert row["dropped"] == {
        "attempts": 2,
        "delays": 5,
        "expiries": 4,
        "headers": 4,
        "options": 1,
        "origins": 1,
        "principals": 4,
        "producers": 1,
    }


def test_what_taskflux_can_hold_needs_no_flag(tmp_path: Path) -> None:
    made = Changes()
    made.begin()
    made.add(made.queue("mail", policy={"size_max": 5}), [b"a", b"b"], [2, 1])
    root = write_directory(tmp_path / "node", made.entries)
    row = converted(root, "taskflux-2", tmp_path / "out")
    assert (row["tasks"], row["dropped"]) == (2, {})
    assert plain(listed(tmp_path / "out")) == plain(listed(root))


def test_limits_that_taskflux_does_not_know_are_refused(tmp_path: Path) -> None:
    made = Changes()
    made.begin()
    made.queue("mail", policy={"rate_max": 5})
    root = write_directory(tmp_path / "node", made.entries)
    with pytest.raises(CannotConvert, match="rate_max"):
        converted(root, "taskflux-3", tmp_path / "out", {"drop": True})
    with pytest.raises(CannotConvert, match="taskflux-3"):
        converted(root, "beats-2", tmp_path / "out")
