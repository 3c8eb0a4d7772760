"""A node's directory: found wherever its files are, owned by one process, private, and clean."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import BadData, DirectoryLocked, PathRefused, StorageFailed, UnknownFormat
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout, encode_header, segment_name
from penstock.formats.taskflux.metadata import encode_metadata
from penstock.formats.taskflux.snapshot import encode_snapshot
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import DEFAULT_QUEUE, NO_LIMITS, HardState, Index, QueueHead, TaskId, Term
from penstock.storage.directory import (
    LOCK_NAME,
    Layout,
    NodeDirectory,
    layout_for,
    layout_in,
    locate,
)
from penstock.storage.files import TEMPORARY_SUFFIX, OsFiles
from penstock.storage.segmented_log import SegmentedLog
from penstock.storage.single_log import SingleLog
from penstock.testing.disk import MemoryFiles
from support.directories import build, build_1
from support.log_stores import SMALL, append, content, point

FILES = OsFiles()
GENERATIONS = [Generation.TWO, Generation.THREE]
HEADER_1 = encode_header(LogLayout.ONE_B)
HEADER_2 = encode_header(LogLayout.TWO) + bytes(4)
HEADER_3 = encode_header(LogLayout.THREE) + bytes(4)


def put(root: Path, **files: bytes) -> Path:
    """Write files by names in which ``__`` stands for ``/`` and ``_`` for a dot."""
    for name, data in files.items():
        path = root / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def names_of(layout: Layout | None, root: Path) -> tuple[int, str, str, str]:
    assert layout is not None
    paths = (layout.log, layout.metadata, layout.snapshot)
    log, metadata, snapshot = (str(path.relative_to(root)) for path in paths)
    return int(layout.generation), log, metadata, snapshot


CONSENSUS_2 = (2, "consensus/log.raft", "consensus/raft.metadata", "consensus/raft.snapshot")
OLD_NAME_2 = (2, "consensus/raft.log", "consensus/raft.metadata", "consensus/raft.snapshot")
CONSENSUS_1 = (1, "consensus/raft.log", "consensus/raft.metadata", "consensus/raft.snapshot")
DATA_2 = (2, "data/tflux.log", "data/tflux.metadata", "data/tflux.snapshot")
DATA_3 = (3, "data/log", "data/tflux.metadata", "data/tflux.snapshot")


# Finding.


@pytest.mark.parametrize(
    ("files", "below", "expected"),
    [
        ({"consensus__log_raft": HEADER_2}, "consensus", CONSENSUS_2),
        ({"consensus__log_raft": b""}, "consensus", CONSENSUS_2),
        ({"consensus__log_raft": HEADER_2[:3]}, "consensus", CONSENSUS_2),
        ({"consensus__raft_log": HEADER_2}, "consensus", OLD_NAME_2),
        ({"consensus__raft_log": HEADER_1}, "consensus", CONSENSUS_1),
        ({"consensus__raft_log": encode_header(LogLayout.ONE_A)}, "consensus", CONSENSUS_1),
        ({"consensus__raft_log": b""}, "consensus", CONSENSUS_1),
        ({"consensus__raft_metadata": encode_metadata(HardState(), WRITTEN[Generation.ONE].metadata)}, "consensus",
         CONSENSUS_1),
        ({"consensus__raft_metadata": encode_metadata(HardState(), WRITTEN[Generation.TWO].metadata)}, "consensus",
         CONSENSUS_2),
        ({"data__tflux_log": HEADER_2}, "data", DATA_2),
        ({"data__tflux_log": b""}, "data", DATA_2),
        ({f"data__log__{0:019d}_log": HEADER_3}, "data", DATA_3),
        ({f"data__log__{7:019d}_log": HEADER_3}, "data", DATA_3),
        ({f"data__log__{0:019d}_log": b""}, "data", DATA_3),
        ({"data__tflux_metadata": b""}, "data", DATA_3),
        ({"data__tflux_snapshot": b""}, "data", DATA_3),
    ],
)  # fmt: skip
def test_a_directory_is_found_from_its_root_and_from_below(
    tmp_path: Path, files: dict[str, bytes], below: str, expected: tuple[int, str, str, str]
) -> None:
    put(tmp_path, **files)
    assert names_of(locate(FILES, tmp_path), tmp_path) == expected
    assert names_of(locate(FILES, tmp_path / below), tmp_path) == expected


@pytest.mark.parametrize("generation", [Generation.ONE, Generation.TWO])
def test_an_empty_log_under_the_old_name_is_of_the_kind_of_its_neighbours(
    tmp_path: Path, generation: Generation
) -> None:
    metadata = encode_metadata(HardState(), WRITTEN[generation].metadata)
    put(tmp_path, consensus__raft_log=b"", consensus__raft_metadata=metadata)
    expected = CONSENSUS_1 if generation is Generation.ONE else OLD_NAME_2
    assert names_of(locate(FILES, tmp_path), tmp_path) == expected


def test_a_directory_of_segments_is_found_by_itself(tmp_path: Path) -> None:
    put(tmp_path, **{f"data__log__{5:019d}_log": HEADER_3})
    assert names_of(locate(FILES, tmp_path / "data" / "log"), tmp_path) == DATA_3


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"notes_txt": b"hello"},
        {"consensus__notes_txt": b"hello"},
        {"consensus__raft_metadata": b""},
        {"data__log__readme": b"hello"},
        {"data__log__1_log": HEADER_3},
        {"data__log__99999999999999999999_log": HEADER_3},
    ],
)
def test_where_there_is_nothing_of_ours_nothing_is_found(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    put(tmp_path, **files)
    assert locate(FILES, tmp_path) is None
    assert locate(FILES, tmp_path / "missing") is None


def test_a_log_of_no_known_kind_is_refused_by_name(tmp_path: Path) -> None:
    for name in ("consensus__log_raft", "consensus__raft_log"):
        put(tmp_path, **{name: b"something else entirely"})
        with pytest.raises(UnknownFormat) as caught:
            locate(FILES, tmp_path)
        assert caught.value.path is not None
        assert caught.value.path.startswith(str(tmp_path / "consensus"))
        assert caught.value.offset == 0
        (tmp_path / name.replace("__", "/").replace("_", ".")).unlink()


@pytest.mark.parametrize("generation", list(Generation))
def test_the_layout_of_a_new_directory_is_found_again(
    tmp_path: Path, generation: Generation
) -> None:
    build(tmp_path / "node", generation)
    expected = layout_for(tmp_path / "node", WRITTEN[generation])
    assert locate(FILES, tmp_path / "node") == expected
    assert expected.home == expected.metadata.parent
    if generation is not Generation.THREE:
        assert layout_in(tmp_path / "node" / "consensus", generation) == expected
        assert expected.companions == expected.home


def test_finding_changes_nothing(tmp_path: Path) -> None:
    put(tmp_path, consensus__log_raft=b"", data__tflux_metadata=b"")
    before = sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))
    locate(FILES, tmp_path)
    assert sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*")) == before


# Opening.


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_new_directory_gets_the_generation_asked_for_and_keeps_it(
    tmp_path: Path, generation: Generation
) -> None:
    node = NodeDirectory(FILES, tmp_path / "a" / "b", generation=generation, limits=SMALL)
    append(node.log, 1, b"entry")
    node.log.sync()
    node.close()
    for asked in GENERATIONS:
        again = NodeDirectory(FILES, tmp_path / "a" / "b", generation=asked, limits=SMALL)
        assert again.layout.generation is generation
        assert isinstance(again.log, SingleLog) == (generation is Generation.TWO)
        assert isinstance(again.log, SegmentedLog) == (generation is Generation.THREE)
        assert content(again.log) == {0: (1, b"entry")}
        again.close()


@pytest.mark.parametrize("snapshot_after", [None, 4])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_directory_of_another_program_is_opened(
    tmp_path: Path, generation: Generation, snapshot_after: int | None
) -> None:
    build(tmp_path / "node", generation, snapshot_after=snapshot_after)
    for path in (tmp_path / "node").rglob("penstock.*"):
        path.unlink()
    node = NodeDirectory(FILES, tmp_path / "node", limits=SMALL)
    assert node.log.end == 9
    assert node.log.first == (0 if snapshot_after is None else 5)
    assert node.metadata.state == HardState(term=Term(4), vote=node.metadata.state.vote)
    assert node.cuts == []
    node.close()


def test_a_generation_2_log_in_the_data_directory_is_served(tmp_path: Path) -> None:
    put(tmp_path, data__tflux_log=HEADER_2)
    node = NodeDirectory(FILES, tmp_path, limits=SMALL)
    assert isinstance(node.log, SingleLog)
    assert node.layout.metadata == tmp_path / "data" / "tflux.metadata"
    node.close()


@pytest.mark.parametrize("layout", [LogLayout.ONE_A, LogLayout.ONE_B])
def test_generation_1_is_refused_with_advice_and_left_alone(
    tmp_path: Path, layout: LogLayout
) -> None:
    build_1(tmp_path / "node", layout)
    before = {p: p.read_bytes() for p in (tmp_path / "node").rglob("*") if p.is_file()}
    with pytest.raises(PathRefused, match="penstock convert") as caught:
        NodeDirectory(FILES, tmp_path / "node")
    assert str(tmp_path / "node") in str(caught.value)
    after = {p: p.read_bytes() for p in (tmp_path / "node").rglob("*") if p.is_file()}
    after.pop(tmp_path / "node" / LOCK_NAME)
    assert after == before


def test_a_torn_tail_is_told_by_the_directory(tmp_path: Path) -> None:
    put(tmp_path, consensus__log_raft=encode_header(LogLayout.TWO) + b"\xaa\xf5torn")
    node = NodeDirectory(FILES, tmp_path, limits=SMALL)
    assert [(cut.path.name, cut.offset) for cut in node.cuts] == [("log.raft", 12)]
    node.close()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_refused_start_lets_go_of_the_lock_and_of_every_file(
    tmp_path: Path, generation: Generation
) -> None:
    node = NodeDirectory(FILES, tmp_path, generation=generation, limits=SMALL)
    append(node.log, 1, b"entry")
    node.log.sync()
    node.close()
    damaged = {
        node.layout.metadata: b"bad metadata",
        node.layout.snapshot: b"bad snapshot",
        node.layout.log if generation is Generation.TWO else node.layout.log / segment_name(0):
            b"bad log file",
    }  # fmt: skip
    before = open_descriptors()
    for path, data in damaged.items():
        whole = path.read_bytes() if path.exists() else None
        path.write_bytes(data)
        for _ in range(3):
            with pytest.raises(BadData):
                NodeDirectory(FILES, tmp_path, limits=SMALL)
        assert open_descriptors() == before
        path.unlink() if whole is None else path.write_bytes(whole)
    NodeDirectory(FILES, tmp_path, limits=SMALL).close()
    assert open_descriptors() == before


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# One owner.

CHILD = """
import sys
from pathlib import Path
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import OsFiles
node = NodeDirectory(OsFiles(), Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.readline()
node.close()
print("closed", flush=True)
sys.stdin.readline()
"""


def start_owner(root: Path) -> subprocess.Popen[str]:
    """Start a process that owns ``root``; it closes on the first line, and ends on the second."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    return child


def tell(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def test_a_directory_open_in_another_process_is_refused_until_that_one_closes_it(
    tmp_path: Path,
) -> None:
    with start_owner(tmp_path) as child:
        try:
            for _ in range(2):
                with pytest.raises(DirectoryLocked, match="another process") as caught:
                    NodeDirectory(FILES, tmp_path)
                assert str(tmp_path) in str(caught.value)
            tell(child)
            assert child.stdout is not None
            assert child.stdout.readline() == "closed\n"
            NodeDirectory(FILES, tmp_path).close()
            tell(child)
        finally:
            child.kill()


def test_a_killed_process_leaves_the_directory_to_the_next(tmp_path: Path) -> None:
    with start_owner(tmp_path) as child:
        child.kill()
        child.wait()
        NodeDirectory(FILES, tmp_path).close()


def test_a_directory_is_open_once_in_a_process(tmp_path: Path) -> None:
    node = NodeDirectory(FILES, tmp_path, limits=SMALL)
    with pytest.raises(DirectoryLocked):
        NodeDirectory(FILES, tmp_path, limits=SMALL)
    append(node.log, 1, b"still works")
    node.close()
    NodeDirectory(FILES, tmp_path, limits=SMALL).close()


def test_a_refused_owner_changes_nothing(tmp_path: Path) -> None:
    node = NodeDirectory(FILES, tmp_path, limits=SMALL)
    leftover = tmp_path / "data" / ("tflux.snapshot" + TEMPORARY_SUFFIX)
    leftover.write_bytes(b"the owner is writing this")
    with pytest.raises(DirectoryLocked):
        NodeDirectory(FILES, tmp_path, limits=SMALL)
    assert leftover.exists()
    node.close()


# Privacy.


@pytest.mark.parametrize("generation", GENERATIONS)
def test_under_any_umask_only_the_owner_may_read(tmp_path: Path, generation: Generation) -> None:
    root = tmp_path / "node"
    before = os.umask(0)
    try:
        node = NodeDirectory(FILES, root, generation=generation, limits=SMALL)
        for n in range(8):
            append(node.log, 1, b"x" * 400)
            node.log.sync()
            node.log.set_committed(Index(n))
        head = QueueHead(name=DEFAULT_QUEUE, policy=NO_LIMITS, last_id=TaskId(0), count=0)
        pieces = encode_snapshot(point(2), 1, [(head, [])], WRITTEN[generation].snapshot)
        node.save_snapshot(point(2), pieces)
        node.metadata.replace(HardState(term=Term(2)))
        node.close()
    finally:
        os.umask(before)
    found = [root, *root.rglob("*")]
    assert len(found) > 6
    for path in found:
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_symbolic_link_in_place_of_a_log_file_is_refused(
    tmp_path: Path, generation: Generation
) -> None:
    root, target = tmp_path / "node", tmp_path / "precious"
    NodeDirectory(FILES, root, generation=generation, limits=SMALL).close()
    layout = layout_for(root, WRITTEN[generation])
    log = layout.log if generation is Generation.TWO else layout.log / segment_name(0)
    for path in (log, layout.companions / "penstock.synced", root / LOCK_NAME):
        data = path.read_bytes()
        target.write_bytes(data)
        path.unlink()
        path.symlink_to(target)
        with pytest.raises(PathRefused, match="symbolic link") as caught:
            NodeDirectory(FILES, root, limits=SMALL)
        assert str(path) in str(caught.value)
        assert target.read_bytes() == data
        path.unlink()
        path.write_bytes(data)
    NodeDirectory(FILES, root, limits=SMALL).close()


# Leftovers and failures.


@pytest.mark.parametrize("generation", GENERATIONS)
def test_temporary_leftovers_are_removed_and_nothing_else(
    tmp_path: Path, generation: Generation
) -> None:
    NodeDirectory(FILES, tmp_path, generation=generation, limits=SMALL).close()
    layout = layout_for(tmp_path, WRITTEN[generation])
    leftovers = [
        layout.snapshot.with_name(layout.snapshot.name + TEMPORARY_SUFFIX),
        layout.companions / (segment_name(99) + TEMPORARY_SUFFIX),
    ]
    others = [
        layout.home / "notes",
        layout.companions / "x.tmp",
        tmp_path / ("a" + TEMPORARY_SUFFIX),
    ]
    for path in (*leftovers, *others):
        path.write_bytes(b"x")
    NodeDirectory(FILES, tmp_path, limits=SMALL).close()
    assert not any(path.exists() for path in leftovers)
    assert all(path.exists() for path in others)


def test_a_leftover_that_cannot_be_removed_stops_the_start() -> None:
    path = "/node/data/tflux.snapshot" + TEMPORARY_SUFFIX
    files = MemoryFiles({path: b"x", "/node/data/tflux.metadata": b""})

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    files.fault = fail
    with pytest.raises(StorageFailed, match="Input/output error"):
        NodeDirectory(files, Path("/node"))
    files.fault = None
    NodeDirectory(files, Path("/node")).close()
    assert path not in files.image()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_directory_that_fails_to_close_lets_go_of_its_lock(generation: Generation) -> None:
    files = MemoryFiles()
    node = NodeDirectory(files, Path("/node"), generation=generation, limits=SMALL)

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    files.fault = fail
    with pytest.raises(StorageFailed):
        node.close()
    files.fault = None
    NodeDirectory(files, Path("/node"), limits=SMALL).close()
