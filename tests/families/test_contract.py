"""docs/formats/damage.md holds for every family: names of rows, severities, exit codes, through the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.families.damage import Severity
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import segment_name
from support.beats_spools import VECTORS, spool, stored
from support.command import Outcome, penstock
from support.damage import flipped
from support.directories import build
from support.node_files import write_files
from support.rabbitmq_directories import Directory, journaled, publish
from support.record_directories import Changes, write_directory
from support.samples import THREE

Row = dict[str, Any]

PLACE: Final = ["family", "kind", "path", "offset", "size", "status"]
PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "formats" / "damage.md"


# --- sources -------------------------------------------------------------------------------------


def taskflux(root: Path, *, without: str = "", **changes: Callable[[bytes], bytes]) -> Path:
    """Return a node of generation 3; ``changes`` are by the first word of a file's name."""
    names = {"last": f"data/log/{segment_name(4)}", "middle": f"data/log/{segment_name(2)}"}
    files = {name: data for name, data in THREE.files().items() if name != without}
    for word, change in changes.items():
        files[names[word]] = change(files[names[word]])
    return write_files(root, files)


def rabbitmq(root: Path, tail: bytes = b"", *, missing: bool = False) -> Path:
    """Return a broker with two messages in a journal; one more that no store holds if ``missing``."""
    made = Directory(root)
    records = [journaled(number, publish(number, b"body")) for number in range(2)]
    if missing:
        records.append(journaled(2, publish(2, b"body", stored=True)))
    made.journal(made.queue(b"orders"), *records, tail)
    return made.path


def beats(root: Path, *, state: bytes | None = None, change: Callable[[bytes], bytes] = bytes) -> Path:  # fmt: skip
    """Return a spool with two events."""
    return spool(root, {0: change(VECTORS["v1_cbor"])}, stored(0, 8, 0) if state is None else state)


SEGMENT: Final = "log/00000000000000000001.log"


def penstock4(
    root: Path, *, synced: int = 5, without: str = "", change: Callable[[bytes], bytes] = bytes
) -> Path:
    """Return a directory of generation 4 with three tasks, added by entries 3, 4 and 5."""
    made = Changes()
    made.begin()
    queue = made.queue("mail")
    for payload in (b"one", b"two", b"three"):
        made.add(queue, [payload])
    write_directory(root, made.entries, synced=synced)
    if without:
        (root / without).unlink()
    path = root / SEGMENT
    path.write_bytes(change(path.read_bytes()))
    return root


@dataclass(frozen=True)
class Case:
    """A source, and the status and severity of each row that ``verify`` must print."""

    make: Callable[[Path], Path]
    damage: tuple[tuple[str, str], ...] = ()
    repaired: tuple[str, ...] = ()  # statuses of the rows that ``repair`` must print


CASES: Final = {
    "penstock-whole": Case(penstock4),
    "penstock-harmless": Case(
        lambda root: penstock4(root, synced=4, change=lambda data: data[:-3]),
        (("torn", "harmless"),),
    ),
    "penstock-damaged": Case(
        lambda root: penstock4(root, without="hard-state"), (("missing", "damaged"),)
    ),
    "penstock-torn": Case(
        lambda root: penstock4(root, change=lambda data: data[:-3]),
        (("torn", "lost"),),
        ("torn",),
    ),
    "penstock-lost": Case(
        lambda root: penstock4(root, change=lambda data: flipped(data, 8 * (len(data) - 130))),
        (("bad-checksum", "lost"),),
        ("bad-checksum",),
    ),
    "taskflux-whole": Case(taskflux),
    "taskflux-harmless": Case(
        lambda root: build(root, Generation.ONE), (("perhaps-refused", "harmless"),) * 2
    ),
    "taskflux-damaged": Case(
        lambda root: taskflux(root, without="data/tflux.metadata"), (("missing", "damaged"),)
    ),
    "taskflux-torn": Case(
        lambda root: taskflux(root, last=lambda data: data[:-6]), (("torn", "lost"),), ("torn",)
    ),
    "taskflux-lost": Case(
        lambda root: taskflux(root, middle=lambda data: flipped(data, 8 * 40)),
        (("bad-checksum", "lost"),),
        ("bad-checksum",),
    ),
    "rabbitmq-whole": Case(rabbitmq),
    "rabbitmq-harmless": Case(lambda root: rabbitmq(root, bytes(64)), (("zeros", "harmless"),)),
    "rabbitmq-torn": Case(
        lambda root: rabbitmq(root, journaled(2, publish(2, b"body"))[:-3]),
        (("torn", "lost"),),
        ("torn",),
    ),
    "rabbitmq-lost": Case(
        lambda root: rabbitmq(root, missing=True), (("missing", "lost"),), ("missing",)
    ),
    "beats-whole": Case(beats),
    "beats-harmless": Case(
        lambda root: beats(root, change=lambda data: data[:-3]), (("torn", "harmless"),)
    ),
    "beats-damaged": Case(lambda root: beats(root, state=b"\x07"), (("bad-state", "damaged"),)),
    "beats-lost": Case(
        lambda root: beats(root, change=lambda data: flipped(data, 8 * 40)),
        (("bad-checksum", "lost"),),
        ("bad-checksum",),
    ),
}


# --- checks --------------------------------------------------------------------------------------


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> tuple[str, Case]:
    return request.param, CASES[request.param]


@pytest.fixture
def source(case: tuple[str, Case], tmp_path: Path) -> Path:
    return case[1].make(tmp_path / "source")


def family_of(case: tuple[str, Case]) -> str:
    return case[0].partition("-")[0]


def check_row(row: Row, family: str) -> None:
    """Hold a row about a place to the contract."""
    assert list(row)[: len(PLACE)] == PLACE
    assert row["family"] == family
    if row["status"] == "ok":
        assert "severity" not in row
    else:
        assert list(row)[len(PLACE) : len(PLACE) + 2] == ["reason", "severity"]
        assert row["severity"] in set(Severity)
    assert "harmless" not in row


def is_damaged(rows: list[Row]) -> bool:
    return any(row.get("severity") in ("lost", "damaged") for row in rows)


def expected_severities(case: tuple[str, Case]) -> list[str]:
    return [severity for _, severity in case[1].damage]


def test_verify_prints_a_row_for_each_damage_and_exits_1_unless_all_are_harmless(
    case: tuple[str, Case], source: Path
) -> None:
    outcome = penstock("verify", source)
    for row in outcome.rows:
        check_row(row, family_of(case))
    found = tuple((row["status"], row["severity"]) for row in outcome.rows)
    assert found == case[1].damage
    assert outcome.code == is_damaged(outcome.rows)


def test_inspect_lists_the_rows_of_verify_by_severity(case: tuple[str, Case], source: Path) -> None:
    outcome = penstock("inspect", source)
    (found,) = outcome.rows
    rows = penstock("verify", source).rows
    assert found["harmless"] == [row for row in rows if row["severity"] == "harmless"]
    assert found["damage"] == [row for row in rows if row["severity"] != "harmless"]
    assert found["family"] == family_of(case)
    assert outcome.code == (found["damage"] != [])


def test_dump_exits_1_if_a_row_is_lost_or_damaged(case: tuple[str, Case], source: Path) -> None:
    outcome = penstock("dump", source)
    for row in outcome.rows:
        check_row(row, family_of(case))
    assert outcome.code == is_damaged(outcome.rows)


def test_repair_prints_what_it_left_behind_and_exits_1_if_that_is_not_harmless(
    case: tuple[str, Case], source: Path, tmp_path: Path
) -> None:
    outcome = penstock("repair", source, "--out", tmp_path / "out")
    for row in outcome.rows:
        check_row(row, family_of(case))
    assert tuple(row["status"] for row in outcome.rows) == case[1].repaired
    assert outcome.code == is_damaged(outcome.rows)
    assert penstock("verify", tmp_path / "out").code == 0


def test_tasks_and_convert_exit_1_if_something_is_lost(
    case: tuple[str, Case], source: Path, tmp_path: Path
) -> None:
    is_lost = "lost" in expected_severities(case)
    listed = penstock("tasks", source)
    assert all({"queue", "key", "payload"} <= row.keys() for row in listed.rows)
    assert listed.code == is_lost
    written = penstock("convert", source, "--to", "taskflux-3", "--out", tmp_path / "out")
    assert written.code == is_lost
    check_converted(written)


def check_converted(outcome: Outcome) -> None:
    """Hold what a conversion prints to the contract; a refused one prints nothing."""
    if not outcome.rows:
        assert outcome.code == 1
        return
    (row,) = outcome.rows
    names = ["family", "generation", "path", "entries", "snapshot_index", "queues", "tasks"]
    assert list(row)[: len(names)] == names
    left = [name for name in row if name.startswith("left_") and name != "left_out"]
    assert all(isinstance(row[name], int) for name in left)


def test_the_page_names_every_severity_and_every_command() -> None:
    page = PAGE.read_text()
    for severity in Severity:
        assert re.search(rf"^\| `{severity}` \|", page, re.MULTILINE), severity
    for command in ("inspect", "dump", "tasks", "verify", "repair", "convert"):
        assert re.search(rf"^\| `{command}` \|", page, re.MULTILINE), command
