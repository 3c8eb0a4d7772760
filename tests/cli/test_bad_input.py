"""Whatever stands at PATH, the answer is one line and an exit code, never a traceback and never a hang."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from penstock.errors import PenstockError
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.rows import dump
from penstock.formats.taskflux.log import segment_name
from support.at_rest import damage_of, listed_or_refused
from support.command import Outcome, penstock, process, run
from support.damage import overwritten
from support.node_files import write_files
from support.samples import THREE
from support.taskflux_vectors import LOGS, METADATA, SNAPSHOTS

OVER_FILES = [
    ["inspect"],
    ["inspect", "--table"],
    ["dump"],
    ["tasks"],
    ["verify"],
    ["repair", "--out", "out"],
    ["convert", "--to", "taskflux-3", "--out", "out"],
]

KINDS = {
    "text": 1,
    "empty": 1,
    "picture": 1,
    "garbage": 1,
    "directory": 1,
    "node/consensus": 1,
    "loop": 1,
    "circle": 1,
    "nowhere": 2,
    "dangling": 2,
    "text/below": 2,
    "x" * 300: 1,
}


def strange_things(place: Path) -> None:
    """Fill a directory with what is none of ours."""
    write_files(
        place,
        {
            "text": b"hello, world\n",
            "empty": b"",
            "picture": b"\x89PNG\r\n\x1a\n" + bytes(100),
            "garbage": random.Random(7).randbytes(2**20),
            "directory/notes.txt": b"",
            "node/consensus/raft.log": b"hello, world\n",
        },
    )
    (place / "loop").symlink_to("loop")
    for name in ("data", "consensus", "log"):
        (place / "circle").mkdir(exist_ok=True)
        (place / "circle" / name).symlink_to("../circle")
    (place / "dangling").symlink_to("no-such-file")


def assert_one_line(outcome: Outcome, code: int) -> None:
    assert outcome.code == code
    assert outcome.out == ""
    assert len(outcome.words) == 1, outcome.err
    assert outcome.err.startswith("penstock: ")
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("words", OVER_FILES, ids=" ".join)
@pytest.mark.parametrize("name", list(KINDS))
def test_what_is_none_of_ours_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], name: str
) -> None:
    strange_things(tmp_path)
    monkeypatch.chdir(tmp_path)
    outcome = penstock(words[0], name, *words[1:])
    assert_one_line(outcome, KINDS[name])
    assert name[:100] in outcome.err
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("*temporary*"))


@pytest.mark.parametrize("name", ["pipe", "node", "node/data", "two", "/dev/null", "/dev/zero"])
def test_a_pipe_or_device_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (f"node/data/log/{segment_name(0)}", "two/consensus/log.raft"):
        (tmp_path / place).parent.mkdir(parents=True)
        os.mkfifo(tmp_path / place)
    assert_one_line(process("verify", name, cwd=tmp_path, timeout_s=20), 1)


@pytest.mark.parametrize(
    "name",
    [f"data/log/{segment_name(2)}", "data/tflux.snapshot", "data/tflux.metadata"],
)
def test_a_directory_in_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    root = THREE.write(tmp_path / "node")
    (root / name).unlink()
    (root / name).mkdir()
    outcome = penstock("verify", root)
    assert_one_line(outcome, 1)
    assert Path(name).name in outcome.err


# Dropped only when all is imported: the interpreter itself may be where nobody can read it.
AS_NOBODY = """
import contextlib, io, os, sys
from penstock.cli.main import main
words, sys.argv = sys.argv[1:], ["penstock", "verify", "/no/such/file"]
with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
    main()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.argv = ["penstock", *words]
main()
"""


@pytest.mark.parametrize("name", ["file", "closed", "node", "node/data/tflux.snapshot"])
def test_what_may_not_be_read_is_refused_in_one_line(name: str) -> None:
    with TemporaryDirectory() as home:  # not below tmp_path, which only its owner may enter
        place = Path(home)
        place.chmod(0o755)
        THREE.write(place / "node")
        write_files(place, {"file": b"x", "closed/data/tflux.metadata": b"x"})
        for path in ("file", "closed", "node/data/tflux.snapshot"):
            (place / path).chmod(0)
        if os.getuid() == 0:
            outcome = run([sys.executable, "-c", AS_NOBODY, "verify", place / name])
        else:
            outcome = penstock("verify", place / name)
        (place / "closed").chmod(0o755)
    assert_one_line(outcome, 1)
    assert "Permission denied" in outcome.err
    assert str(place) in outcome.err


def test_an_output_place_that_may_not_be_written_is_refused_in_one_line() -> None:
    with TemporaryDirectory() as home:
        place = Path(home)
        place.chmod(0o755)
        THREE.write(place / "node")
        for path in (place / "node").rglob("*"):
            path.chmod(0o755)
        (place / "node").chmod(0o755)
        if os.getuid() == 0:
            words = ["repair", str(place / "node"), "--out", str(place / "out")]
            outcome = run([sys.executable, "-c", AS_NOBODY, *words])
            assert_one_line(outcome, 1)
            assert "Permission denied" in outcome.err
        assert [path.name for path in place.iterdir()] == ["node"]


@pytest.mark.parametrize(
    "name", [b"new\nline", "ünïcödé–日本".encode(), b"\xff\xfe not utf-8", b"-dash"]
)
def test_a_path_may_be_any_bytes(tmp_path: Path, name: bytes) -> None:
    place = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name)))
    root = THREE.write(place / "node")
    outcome = process("inspect", os.fsencode(root))
    assert (outcome.code, outcome.err) == (0, "")
    assert os.fsencode(outcome.rows[0]["path"]) == os.fsencode(root)
    missing = process("verify", os.fsencode(root / "missing"))
    assert_one_line(missing, 2)


# --- hostile bytes -------------------------------------------------------------------------------

VECTORS = [(vector.name, vector.data) for group in (LOGS, SNAPSHOTS, METADATA) for vector in group]


def hostile(data: bytes) -> Iterator[bytes]:
    """Yield the file with a monstrous number at every place where a length may stand."""
    for offset in range(len(data) - 3):
        for value in (
            b"\x7f\xff\xff\xff",
            b"\xff\xff\xff\x7f",
            b"\xff\xff\xff\xff",
            b"\x80\x00\x00\x00",
        ):
            yield overwritten(data, offset, value)


@pytest.mark.parametrize(("name", "data"), VECTORS, ids=[name for name, _ in VECTORS])
def test_a_monstrous_length_anywhere_is_damage_or_nothing(
    tmp_path: Path, name: str, data: bytes
) -> None:
    path = tmp_path / "some.file"
    for changed in hostile(data):
        path.write_bytes(changed)
        try:
            rows = list(dump(resolve(path)))
        except PenstockError:
            continue
        assert all(row["path"] == str(path) for row in rows)
        damage_of(path)
        listed_or_refused(path)


# --- wrong usage ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["tasks", "node", "--at", "abc"],
        ["tasks", "node", "--at", "-2"],
        ["tasks", "node", "--at", "1.5"],
        ["tasks", "node", "--queue", "two words"],
        ["tasks", "node", "--queue", "x" * 256],
        ["tasks"],
        ["tasks", "node", "node"],
        ["dump", "node", "--unknown"],
        ["repair", "node"],
        ["convert", "node", "--out", "out"],
        ["convert", "node", "--to", "taskflux-4", "--out", "out"],
        ["convert", "node", "--to", "", "--out", "out"],
        ["unknown", "node"],
        ["--unknown"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    THREE.write(tmp_path / "node")
    monkeypatch.chdir(tmp_path)
    outcome = penstock(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err
    assert outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["node"]


def test_a_huge_index_is_an_answer_not_an_accident(tmp_path: Path) -> None:
    root = THREE.write(tmp_path)
    for index in ("6", str(2**63 - 1)):
        outcome = penstock("tasks", root, "--at", index)
        assert_one_line(outcome, 1)
        assert f"entry {index} is beyond the log" in outcome.err
    for index in (str(2**63), str(10**40)):
        assert penstock("tasks", root, "--at", index).code == 2
