"""Quorum queues and streams of a node, which are detected and named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.families.rabbitmq.location import find_other_queues, resolve
from support.rabbitmq_directories import NAMES, unpacked

NAME = "c9_quorum_and_stream_kill9"
QUORUM, STREAM = ("quorum", b"qq"), ("stream", b"st")


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return unpacked(NAME, tmp_path / "node")


def found(node: Path) -> list[tuple[str, bytes | None]]:
    return [(other.type, other.queue) for other in find_other_queues(node)]


def test_a_nodes_quorum_queue_and_stream_are_found(node: Path) -> None:
    assert found(node) == [QUORUM, STREAM]
    assert [other.path.parent.name for other in resolve(node).others] == [
        "rabbitq@localhost",
        "stream",
    ]


def test_directories_count_without_metadata(node: Path) -> None:
    (node / "LATEST.LOG").unlink()
    assert sorted(found(node), key=str) == [QUORUM, ("stream", None)]
    (unnamed,) = [other for other in find_other_queues(node) if other.type == "stream"]
    assert unnamed.words == "stream '__st_1794906611941994819'"
    next(node.glob("quorum/*/*/config")).unlink()
    assert {queue for _, queue in found(node)} == {None}


def test_metadata_counts_without_directories(node: Path) -> None:
    for name in ("quorum", "stream"):
        shutil.rmtree(node / name)
    assert found(node) == [QUORUM, STREAM]


def test_a_queue_with_copies_on_other_nodes_only_is_not_left_out(node: Path) -> None:
    for name in ("quorum", "stream"):
        shutil.rmtree(node / name)
    log = node / "LATEST.LOG"
    data = log.read_bytes()
    end = data.index(b"dcl_log") if b"dcl_log" in data else data.index(b"trans_log")
    # The header names another node: none of the records lists it as a member.
    log.write_bytes(data[:end] + data[end:].replace(b"rabbitq@localhost", b"rabbitx@localhost", 1))
    assert found(node) == []


@pytest.mark.parametrize("name", [name for name in NAMES if name != NAME])
def test_nodes_with_classic_queues_only_leave_nothing_out(name: str, tmp_path: Path) -> None:
    assert find_other_queues(unpacked(name, tmp_path)) == ()
