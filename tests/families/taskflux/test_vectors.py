"""Every golden file, alone and in every place where a node keeps it: what each tool says of it, exactly."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import Compacted, OutOfRange, PathMissing, PathRefused, PenstockError
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.rows import dump
from penstock.families.taskflux.verify import inspect
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import MARKER_1, LogLayout, encode_header, encode_record
from support.at_rest import damage_of, identified, listed
from support.node_files import Files, write_files
from support.taskflux_vectors import (
    DELTAS,
    LOG_1,
    LOG_1A,
    LOG_2,
    LOG_2_EMPTY,
    LOG_3,
    LOGS,
    METADATA,
    SNAPSHOT_1,
    SNAPSHOT_1B,
    SNAPSHOT_2,
    SNAPSHOT_2_CODE,
    SNAPSHOT_3,
    SNAPSHOTS,
    LogVector,
    MetadataVector,
    SnapshotVector,
)

HI = ("orders", 5, b"hi")
HELD = [("orders", -1, b""), HI]

LOG_1C = encode_header(LogLayout.ONE_C) + b"".join(
    encode_record(LogLayout.ONE_C, term=1, payload=data)
    for _, data, _ in (DELTAS[0], DELTAS[3], DELTAS[5])
)

CREATED: dict[str, Any] = {"op": "create", "queue": "orders"}
POLICY = {"implementation": "heap", "size_max": 100, "keys": [-10, 10]}
PAYLOAD = b64encode(b"hi").decode()
OPS: dict[Generation, list[dict[str, Any]]] = {
    Generation.ONE: [
        CREATED | {"size_max": 100},
        {"op": "enqueue", "queue": "orders", "key": 5, "payload": PAYLOAD},
        {"op": "dequeue", "queue": "orders"},
    ],
    Generation.TWO: [
        CREATED | {"policy": POLICY},
        {"op": "add", "queue": "orders", "key": 5, "payload": PAYLOAD},
        {"op": "remove", "queue": "orders", "key": 5, "payload": PAYLOAD},
    ],
    Generation.THREE: [
        CREATED | {"policy": POLICY},
        {"op": "add", "queue": "orders", "key": 5, "payload": PAYLOAD},
        {"op": "remove", "queue": "orders", "id": 1},
    ],
}


def told(path: Path, *names: str) -> list[Any]:
    found = inspect(resolve(path))
    return [found[name] for name in names]


# --- single files --------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", LOGS, ids=lambda vector: vector.name)
def test_a_log_alone_is_inspected_and_dumped_record_by_record(
    tmp_path: Path, vector: LogVector
) -> None:
    path = write_files(tmp_path, {"some.file": vector.data}) / "some.file"
    count = len(vector.offsets)
    assert told(path, "family", "kind", "generation", "variant", "log_files", "damage") == [
        "taskflux", "log", vector.layout.generation, {"log": vector.layout.variant}, 1, [],
    ]  # fmt: skip
    # Only committed entries ever reached a log of generation 1.
    commit = count - 1 if vector.layout.generation is Generation.ONE else vector.commit
    assert told(path, "entries", "first_index", "last_index", "commit_index") == [
        count, 0 if count else None, count - 1 if count else None, commit,
    ]  # fmt: skip
    ends = [*vector.offsets[1:], vector.end]
    assert list(dump(resolve(path))) == [
        {
            "family": "taskflux",
            "kind": "entry",
            "path": str(path),
            "offset": offset,
            "size": end - offset,
            "status": "ok",
            "index": index,
            "term": term,
            "committed": None if vector.commit is None else index <= vector.commit,
        }
        | op
        for index, (offset, end, term, op) in enumerate(
            zip(vector.offsets, ends, vector.terms, OPS[vector.layout.generation], strict=False)
        )
    ]


@pytest.mark.parametrize("data", [LOG_1, LOG_1A, LOG_1C, LOG_3], ids=["1", "1a", "1c", "3"])
def test_without_a_commit_index_every_entry_counts(tmp_path: Path, data: bytes) -> None:
    path = write_files(tmp_path, {"some.file": data}) / "some.file"
    assert listed(path) == []
    assert [listed(path, at=index) for index in (-1, 0, 1, 2)] == [[], [], [HI], []]


def test_generation_2_is_listed_at_its_commit_index(tmp_path: Path) -> None:
    # 3.2.1: commit 1, three records, the last of which would remove the task.
    path = write_files(tmp_path, {"log.raft": LOG_2}) / "log.raft"
    assert listed(path) == [HI]
    assert listed(path, uncommitted=True) == []
    assert [listed(path, at=index) for index in (-1, 0, 1, 2)] == [[], [], [HI], []]
    with pytest.raises(OutOfRange, match="entry 3 is beyond the log, which ends at entry 2"):
        listed(path, at=3)
    assert told(path, "queues", "tasks") == [2, 1]


def test_zeros_behind_a_log_change_nothing(tmp_path: Path) -> None:
    write_files(tmp_path, {"log.raft": LOG_2 + bytes(2**20), f"{0:019d}.log": LOG_3 + bytes(2**20)})
    assert listed(tmp_path / "log.raft") == [HI]
    for name in ("log.raft", f"{0:019d}.log"):
        assert damage_of(tmp_path / name) == []
        assert told(tmp_path / name, "entries") == [3]


def test_a_log_of_deltas_in_generation_1_is_told_from_one_of_commands(tmp_path: Path) -> None:
    write_files(tmp_path, {"b.log": LOG_1, "c.log": LOG_1C})
    assert told(tmp_path / "b.log", "variant") == [{"log": "1b"}]
    assert told(tmp_path / "c.log", "variant") == [{"log": "1c"}]


def test_an_empty_payload_does_not_make_deltas_look_like_commands(tmp_path: Path) -> None:
    empty = encode_record(LogLayout.ONE_C, term=1, payload=b"")
    path = write_files(tmp_path, {"c.log": LOG_1C[:8] + empty + LOG_1C[8:]}) / "c.log"
    assert told(path, "variant", "entries") == [{"log": "1c"}, 4]
    assert listed(path, at=2) == [HI]


def test_one_spoilt_payload_does_not_make_deltas_look_like_commands(tmp_path: Path) -> None:
    spoilt = LOG_1C.replace(b"C\x06orders", b"X\x06orders")
    path = write_files(tmp_path, {"c.log": spoilt}) / "c.log"
    assert told(path, "variant") == [{"log": "1c"}]
    assert [row["status"] for row in damage_of(path)] == ["bad-delta"]


@pytest.mark.parametrize("vector", METADATA, ids=lambda vector: vector.name)
def test_metadata_alone_says_term_and_vote(tmp_path: Path, vector: MetadataVector) -> None:
    path = write_files(tmp_path, {"raft.metadata": vector.data}) / "raft.metadata"
    assert told(path, "kind", "generation", "term", "vote", "variant", "damage") == [
        "metadata",
        vector.layout.generation,
        vector.state.term,
        vector.state.vote,
        {"metadata": vector.layout.variant},
        [],
    ]
    assert list(dump(resolve(path))) == [
        {
            "family": "taskflux",
            "kind": "metadata",
            "path": str(path),
            "offset": 0,
            "size": len(vector.data),
            "status": "ok",
            "variant": vector.layout.variant,
            "term": vector.state.term,
            "vote": vector.state.vote,
        }
    ]
    assert listed(path) == []


@pytest.mark.parametrize("vector", SNAPSHOTS, ids=lambda vector: vector.name)
def test_a_snapshot_alone_says_what_the_queues_hold(tmp_path: Path, vector: SnapshotVector) -> None:
    path = write_files(tmp_path, {"some.snapshot": vector.data}) / "some.snapshot"
    assert told(path, "kind", "generation", "snapshot_index", "snapshot_term", "damage") == [
        "snapshot", vector.layout.generation, 2, 2, [],
    ]  # fmt: skip
    assert told(path, "variant", "queues", "tasks") == [{"snapshot": vector.layout.variant}, 2, 2]
    assert listed(path) == listed(path, at=2) == HELD
    with pytest.raises(Compacted):
        listed(path, at=1)
    with pytest.raises(OutOfRange):
        listed(path, at=3)
    rows = list(dump(resolve(path)))
    assert [(row["kind"], row["queue"]) for row in rows] == [
        ("queue", ""), ("queue", "orders"), ("task", "orders"), ("task", "orders"),
    ]  # fmt: skip
    assert {(row["status"], row["index"], row["term"]) for row in rows} == {("ok", 2, 2)}
    for row in rows[2:]:
        # A task's place is that of its bytes: the payload is the last of them.
        stored = vector.data[row["offset"] : row["offset"] + row["size"]]
        assert b64encode(
            stored[stored.index(row["key"].to_bytes(8, "big", signed=True)) + 12 :]
        ) == (row["payload"].encode())


def test_generation_3_shows_the_ids_that_are_stored(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"tflux.snapshot": SNAPSHOT_3}) / "tflux.snapshot"
    assert identified(path) == [("orders", 3, -1, b""), ("orders", 2, 5, b"hi")]
    assert [row["last_id"] for row in dump(resolve(path)) if row["kind"] == "queue"] == [0, 3]
    path = write_files(tmp_path, {"raft.snapshot": SNAPSHOT_2}) / "raft.snapshot"
    assert all("id" not in row for row in dump(resolve(path)))


# --- directories (3.0) ---------------------------------------------------------------------------

HOMES = {
    "1": ("consensus", "raft.log", "raft.metadata", "raft.snapshot"),
    "2, documented": ("consensus", "log.raft", "raft.metadata", "raft.snapshot"),
    "2, of that week": ("consensus", "raft.log", "raft.metadata", "raft.snapshot"),
    "2, later": ("data", "tflux.log", "tflux.metadata", "tflux.snapshot"),
    "3": ("data", f"log/{0:019d}.log", "tflux.metadata", "tflux.snapshot"),
}

META = {vector.name: vector.data for vector in METADATA}

# Layout of the directory, files of log, metadata and snapshot; what is in it.
NODES = [
    ("1", LOG_1, META["1 with a vote"], None),
    ("1", LOG_1A, META["1a with a vote"], None),
    ("1", LOG_1C, META["1b with a vote"], None),
    ("1", LOG_1[:8], META["1 with a vote"], SNAPSHOT_1),
    ("1", LOG_1[:8], META["1b with a vote"], SNAPSHOT_1B),
    ("2, documented", LOG_2, META["2 with a vote"], None),
    ("2, of that week", LOG_2, META["2 as programmed"], None),
    ("2, later", LOG_2, META["2 as programmed"], None),
    ("2, documented", LOG_2_EMPTY, META["2 with a vote"], SNAPSHOT_2),
    ("2, of that week", LOG_2_EMPTY, META["2 as programmed"], SNAPSHOT_2_CODE),
    ("2, later", LOG_2_EMPTY, META["2 as programmed"], SNAPSHOT_2_CODE),
    ("3", LOG_3, META["3 with a vote"], None),
    ("3", LOG_3, META["3 with a vote"], SNAPSHOT_3),
]


def node_files(layout: str, log: bytes, metadata: bytes, snapshot: bytes | None) -> Files:
    home, log_name, metadata_name, snapshot_name = HOMES[layout]
    files = {f"{home}/{log_name}": log, f"{home}/{metadata_name}": metadata}
    return files if snapshot is None else files | {f"{home}/{snapshot_name}": snapshot}


@pytest.mark.parametrize(("layout", "log", "metadata", "snapshot"), NODES)
def test_a_node_is_found_by_its_root_its_home_and_its_segments(
    tmp_path: Path, layout: str, log: bytes, metadata: bytes, snapshot: bytes | None
) -> None:
    root = write_files(tmp_path, node_files(layout, log, metadata, snapshot))
    home = HOMES[layout][0]
    paths = [root, root / home, *([root / "data/log"] if layout == "3" else [])]
    committed = [HI] if log is LOG_2 else []
    for path in paths:
        assert damage_of(path) == []
        assert told(path, "kind", "generation", "vote") == [
            "directory", int(layout[0]), 1 if layout == "1" else 2,
        ]  # fmt: skip
        assert told(path, "snapshot_index", "tasks") == (
            [None, len(committed)] if snapshot is None else [2, 2]
        )
        assert listed(path) == (committed if snapshot is None else HELD)
        if snapshot is None:
            assert [listed(path, at=index) for index in (-1, 0, 1, 2)] == [[], [], [HI], []]
        else:
            assert listed(path, at=2) == HELD
            assert len(list(dump(resolve(path)))) == 5 + told(path, "entries")[0]


@pytest.mark.parametrize(("layout", "log", "metadata", "snapshot"), NODES)
def test_each_file_of_a_node_can_be_named_alone(
    tmp_path: Path, layout: str, log: bytes, metadata: bytes, snapshot: bytes | None
) -> None:
    root = write_files(tmp_path, node_files(layout, log, metadata, snapshot))
    home, log_name, metadata_name, snapshot_name = HOMES[layout]
    kinds = {log_name: "log", metadata_name: "metadata", snapshot_name: "snapshot"}
    for name, kind in kinds.items():
        if kind == "snapshot" and snapshot is None:
            continue
        path = root / home / name
        assert told(path, "kind", "generation", "damage") == [kind, int(layout[0]), []]
        assert listed(path) == (
            HELD if kind == "snapshot" else [HI] if log is LOG_2 and kind == "log" else []
        )


@pytest.mark.parametrize("missing", ["log", "metadata", "snapshot"])
@pytest.mark.parametrize("layout", ["1", "2, documented", "3"])
def test_a_missing_or_empty_file_stands_for_its_default_or_is_reported(
    tmp_path: Path, layout: str, missing: str
) -> None:
    # Metadata of a later term was written once, and a snapshot has a segment beside it.
    is_seen = (layout, missing) in (("2, documented", "metadata"), ("3", "metadata"), ("3", "log"))
    # R1. The snapshot is at entry 2, so the empty log of generations 1 and 2 continues it.
    sources = {
        "1": (LOG_1[:8], META["1 with a vote"], SNAPSHOT_1),
        "2, documented": (LOG_2_EMPTY, META["2 with a vote"], SNAPSHOT_2),
        "3": (LOG_3, META["3 with a vote"], SNAPSHOT_3),
    }
    files = node_files(layout, *sources[layout])
    (name,) = [
        file
        for file in files
        if missing in file.removesuffix(".log") or (missing == "log" and "log" in file)
    ]
    for number, data in enumerate([b"", None]):
        changed = {file: content for file, content in files.items() if file != name}
        if data is not None:
            changed[name] = data
        root = write_files(tmp_path / str(number), changed)
        assert [row["status"] for row in damage_of(root)] == ["missing"] * is_seen
        assert listed(root) == ([] if missing == "snapshot" else HELD)


def test_other_files_beside_are_passed_over(tmp_path: Path) -> None:
    files = node_files("3", LOG_3, META["3 with a vote"], SNAPSHOT_3)
    more = {
        "data/log/1.log": b"x",
        "data/log/0000000000000000000.log.penstock-temporary": b"x",
        "data/log/notes.txt": b"x",
        "data/temporary/something": b"x",
        "data/log/9999999999999999999.log": b"beyond 64 bits",
        "penstock.lock": b"",
    }
    root = write_files(tmp_path, files | more)
    assert damage_of(root) == []
    assert told(root, "log_files") == [1]


# --- what is none of ours ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"hello, world", "not a file that Penstock knows"),
        (bytes(64), "not a file that Penstock knows"),
        (b"\x12\x76", "ends inside the marker"),
        (MARKER_1[:3], "ends inside the marker"),
    ],
)
def test_a_file_of_no_known_kind_is_refused_with_a_reason(
    tmp_path: Path, data: bytes, words: str
) -> None:
    path = write_files(tmp_path, {"file": data}) / "file"
    with pytest.raises(PenstockError, match=words) as caught:
        resolve(path)
    assert str(path) in str(caught.value)


def test_a_directory_without_our_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PathRefused, match="no files that Penstock knows"):
        resolve(tmp_path)
    with pytest.raises(PathMissing):
        resolve(tmp_path / "nowhere")
    write_files(tmp_path, {"file": b""})
    with pytest.raises(PathMissing):
        resolve(tmp_path / "file" / "below")
