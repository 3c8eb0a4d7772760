"""Data on stdout as JSON lines, words on stderr, and an exit code that is 0 only if all is well."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import pytest

from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import segment_name
from support.at_rest import tree
from support.command import Outcome, penstock
from support.damage import flipped, overwritten
from support.directories import EXPECTED, build
from support.node_files import write_files
from support.samples import NODES, THREE, TWO

PLACE = ["family", "kind", "path", "offset", "size", "status"]


def listed(outcome: Outcome) -> list[tuple[str, int, bytes]]:
    return [(row["queue"], row["key"], b64decode(row["payload"])) for row in outcome.rows]


def torn(tmp_path: Path) -> Path:
    """Return a node of generation 3 whose last record is cut."""
    files = THREE.files()
    last = f"data/log/{segment_name(4)}"
    return write_files(tmp_path / "torn", files | {last: files[last][:-6]})


def spoilt(tmp_path: Path) -> Path:
    """Return a node of generation 3 with a bad record in the middle."""
    files = THREE.files()
    first = f"data/log/{segment_name(2)}"
    return write_files(tmp_path / "spoilt", files | {first: flipped(files[first], 8 * 40)})


@pytest.mark.parametrize("generation", list(Generation))
def test_each_command_over_a_healthy_node_exits_0_and_prints_json_lines(
    tmp_path: Path, generation: Generation
) -> None:
    root = build(tmp_path / "node", generation)
    before = tree(root)
    (found,) = penstock("inspect", root).rows
    assert list(found) == [
        "family", "kind", "path", "generation", "variant", "size", "log_files", "entries",
        "first_index", "last_index", "commit_index", "synced_index", "snapshot_index",
        "snapshot_term", "term", "vote", "queues", "tasks", "extensions", "notes", "harmless",
        "damage",
    ]  # fmt: skip
    assert (found["generation"], found["entries"], found["tasks"]) == (generation, 9, 5)
    rows = penstock("dump", root).rows
    assert [row["kind"] for row in rows] == ["metadata"] + ["entry"] * 9
    assert all(list(row)[:6] == PLACE for row in rows)
    tasks = penstock("tasks", root)
    assert (tasks.code, tasks.err, listed(tasks)) == (0, "", EXPECTED)
    assert all(("id" in row) == (generation is Generation.THREE) for row in tasks.rows)
    verified = penstock("verify", root)
    # Generation 1 leaves open whether its program kept the queues.
    doubts = ["perhaps-refused"] * 2 if generation is Generation.ONE else []
    assert (verified.code, [row["status"] for row in verified.rows]) == (0, doubts)
    places = "0 damaged places" + (", 2 harmless ones" if doubts else "")
    assert verified.words == [f"penstock: {root}: whole: 9 entries, 3 queues, 5 tasks, {places}"]
    repaired = penstock("repair", root, "--out", tmp_path / "repaired")
    assert (repaired.code, repaired.out) == (0, "")
    assert len(repaired.words) == 1
    converted = penstock("convert", root, "--to", "taskflux-3", "--out", tmp_path / "converted")
    assert (converted.code, converted.err) == (0, "")
    assert list(converted.rows[0]) == [
        "family", "generation", "path", "entries", "snapshot_index", "queues", "tasks",
        "left_uncommitted", "dropped_extensions", "dropped_notes",
    ]  # fmt: skip
    for copy in ("repaired", "converted"):
        assert listed(penstock("tasks", tmp_path / copy)) == EXPECTED
    assert tree(root) == before


def test_tasks_can_be_asked_for_at_an_index_for_a_queue_and_with_what_is_uncommitted(
    tmp_path: Path,
) -> None:
    root = TWO.write(tmp_path)
    assert listed(penstock("tasks", root)) == TWO.tasks
    assert listed(penstock("tasks", root, "--uncommitted")) == TWO.at(6)
    assert listed(penstock("tasks", root, "--at", "3")) == TWO.at(3)
    assert listed(penstock("tasks", root, "--queue", "")) == [("", 0, b"d")]
    assert [row[0] for row in listed(penstock("tasks", root, "--queue", "q"))] == ["q", "q"]
    missing = penstock("tasks", root, "--queue", "nobody")
    assert (missing.code, missing.out, len(missing.words)) == (1, "", 1)
    assert "there is no queue 'nobody'" in missing.err
    below = penstock("tasks", root, "--at", "0")
    assert (below.code, below.out, len(below.words)) == (1, "", 1)
    assert "ask for --at 1 or later" in below.err
    beyond = penstock("tasks", root, "--at", "7")
    assert (beyond.code, beyond.out, len(beyond.words)) == (1, "", 1)
    assert "ask for --at 6" in beyond.err


def test_damage_is_printed_as_rows_and_exits_1(tmp_path: Path) -> None:
    root = spoilt(tmp_path)
    verified = penstock("verify", root)
    assert verified.code == 1
    (row,) = verified.rows
    assert list(row)[:6] == PLACE
    assert (row["status"], row["offset"], row["kind"]) == ("bad-checksum", 8, "entry")
    assert row["reason"] == "the payload does not match its checksum"
    assert "damaged: 4 entries" in verified.err
    dumped = penstock("dump", root)
    assert dumped.code == 1
    assert [r["status"] for r in dumped.rows if r["kind"] == "entry"].count("bad-checksum") == 1
    inspected = penstock("inspect", root)
    assert inspected.code == 1
    assert inspected.rows[0]["damage"] == verified.rows
    tasks = penstock("tasks", root)
    assert (tasks.code, tasks.out, len(tasks.words)) == (1, "", 1)
    repaired = penstock("repair", root, "--out", tmp_path / "out")
    assert repaired.code == 1
    assert [r["status"] for r in repaired.rows] == ["bad-checksum"]
    assert "1 places left behind" in repaired.err
    refused = penstock("convert", root, "--to", "taskflux-2", "--out", tmp_path / "two")
    assert (refused.code, refused.out, len(refused.words)) == (1, "", 1)
    assert "penstock repair" in refused.err


def test_a_torn_tail_is_not_all_well(tmp_path: Path) -> None:
    root = torn(tmp_path)
    tasks = penstock("tasks", root)
    assert (tasks.code, listed(tasks), len(tasks.words)) == (1, THREE.at(4), 1)
    converted = penstock("convert", root, "--to", "taskflux-2", "--out", tmp_path / "out")
    assert (converted.code, len(converted.rows), len(converted.words)) == (1, 1, 1)
    assert "torn" in tasks.err
    assert "torn" in converted.err
    assert listed(penstock("tasks", tmp_path / "out")) == THREE.at(4)


def test_what_convert_leaves_out_is_said(tmp_path: Path) -> None:
    root = TWO.write(tmp_path / "node")
    left = penstock("convert", root, "--to", "taskflux-3", "--out", tmp_path / "three")
    assert left.code == 0
    assert left.rows[0]["left_uncommitted"] == 1
    assert left.words == [
        "penstock: 1 uncommitted entries were left out; --uncommitted takes them along"
    ]
    taken = penstock(
        "convert", root, "--to", "taskflux-3", "--out", tmp_path / "all", "--uncommitted"
    )
    assert (taken.code, taken.err, taken.rows[0]["left_uncommitted"]) == (0, "", 0)


def test_what_repair_could_not_keep_is_said_once(tmp_path: Path) -> None:
    files = {name: data for name, data in NODES["3"].files().items() if "metadata" not in name}
    root = write_files(tmp_path / "node", files)
    outcome = penstock("repair", root, "--out", tmp_path / "out")
    assert (outcome.code, outcome.out) == (0, "")
    assert [line.startswith("penstock: the vote is lost") for line in outcome.words] == [
        True,
        False,
    ]


@pytest.mark.parametrize("step", [397, pytest.param(61, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("name", list(NODES))
def test_whatever_bit_is_turned_over_each_command_answers(
    tmp_path: Path, name: str, step: int
) -> None:
    # tests/families turns over every bit; here the faces see a few of them.
    root = NODES[name].write(tmp_path / "node")
    for file, data in NODES[name].files().items():
        for bit in range(0, 8 * min(len(data), 200), step):
            (root / file).write_bytes(flipped(data, bit))
            seen = penstock("verify", root)
            is_damaged = any(row["severity"] != "harmless" for row in seen.rows)
            assert (seen.code, len(seen.words)) == (int(is_damaged), 1)
            for word in ("inspect", "dump", "tasks"):
                outcome = penstock(word, root)
                assert outcome.code in (0, 1)
                assert len(outcome.words) <= 1
                assert outcome.rows or outcome.words or word == "tasks"
            if seen.code == 0 and not file.endswith("synced"):
                assert penstock("dump", root).code == 0
        (root / file).write_bytes(data)


# --- tables --------------------------------------------------------------------------------------


def test_the_table_is_for_people_and_shows_the_damage(tmp_path: Path) -> None:
    whole = penstock("inspect", build(tmp_path / "node", Generation.THREE), "--table")
    assert whole.code == 0
    for words in ("taskflux", "last index", "synced index", "no damage"):
        assert words in whole.out
    damaged = penstock("inspect", spoilt(tmp_path), "--table")
    assert damaged.code == 1
    assert "bad-checksum" in damaged.out
    assert "no damage" not in damaged.out


@pytest.mark.parametrize("name", ["[/red]", "[bold]x", "new\nline", "ü–日本", "\x1b[2J", ":smile:"])
def test_a_path_of_any_kind_is_shown_as_it_is_and_nothing_else_is(
    tmp_path: Path, name: str
) -> None:
    root = THREE.write(tmp_path / name)
    (root / "data/tflux.metadata").write_bytes(b"x")
    for words in (["inspect", "--table"], ["verify"], ["inspect"], ["dump"], ["tasks"]):
        outcome = penstock(*words[:1], root, *words[1:])
        assert outcome.code == 1
        assert "\x1b" not in outcome.out + outcome.err
        if words != ["inspect", "--table"]:
            assert all(row["path"].startswith(str(tmp_path)) for row in outcome.rows)
        assert len(outcome.words) == (1 if words in (["verify"], ["tasks"]) else 0)
        if words == ["verify"]:
            assert outcome.rows[0]["path"] == str(root / "data/tflux.metadata")


def test_damage_of_every_kind_fits_into_a_table(tmp_path: Path) -> None:
    files = THREE.files()
    files["data/tflux.metadata"] = b"x"
    files["data/tflux.snapshot"] = overwritten(files["data/tflux.snapshot"], 50, b"\xff")
    del files[f"data/log/{segment_name(2)}"]
    outcome = penstock("inspect", write_files(tmp_path, files), "--table")
    assert outcome.code == 1
    for status in ("bad-metadata", "bad-snapshot", "missing"):
        assert status in outcome.out
