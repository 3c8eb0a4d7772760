"""A directory with a term that no cluster can reach is refused at the start, and there is a way back from it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.errors import CorruptData
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.metadata import encode_metadata
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import DEFAULT_QUEUE, TERM_MAX, AddTask, HardState, Index, Term
from penstock.storage.directory import NodeDirectory, locate
from penstock.storage.files import OsFiles
from support.command import penstock as command
from support.group_processes import GroupProcesses, group_processes

IMPOSSIBLE = 2**63 - 1


def metadata_of(data: Path) -> Path:
    layout = locate(OsFiles(), data)
    assert layout is not None
    return layout.metadata


def set_term(data: Path, term: int) -> None:
    state = HardState(term=Term(term))
    metadata_of(data).write_bytes(encode_metadata(state, WRITTEN[Generation.THREE].metadata))


def filled(data: Path) -> Path:
    """Return a directory with an entry of the last possible term."""
    with_entries = NodeDirectory(OsFiles(), data, generation=Generation.THREE)
    with_entries.metadata.replace(HardState(term=Term(TERM_MAX)))
    with_entries.log.append(Term(TERM_MAX), [b""])
    with_entries.log.sync()
    with_entries.close()
    return data


def test_the_last_possible_term_is_opened(tmp_path: Path) -> None:
    NodeDirectory(OsFiles(), filled(tmp_path)).close()


def test_an_impossible_term_in_the_metadata_is_refused(tmp_path: Path) -> None:
    set_term(filled(tmp_path), TERM_MAX + 1)
    with pytest.raises(CorruptData) as caught:
        NodeDirectory(OsFiles(), tmp_path)
    assert caught.value.path == str(metadata_of(tmp_path))
    assert caught.value.found == str(TERM_MAX + 1)
    set_term(tmp_path, TERM_MAX)
    NodeDirectory(
        OsFiles(), tmp_path
    ).close()  # the refusal let the directory go, and changed nothing


def test_an_impossible_term_in_the_log_is_refused(tmp_path: Path) -> None:
    opened = NodeDirectory(OsFiles(), filled(tmp_path))
    opened.log.append(Term(TERM_MAX + 1), [b""])
    opened.log.sync()
    opened.close()
    with pytest.raises(CorruptData) as caught:
        NodeDirectory(OsFiles(), tmp_path)
    assert caught.value.expected == f"term {TERM_MAX + 1} or later"
    set_term(tmp_path, TERM_MAX + 1)
    with pytest.raises(CorruptData) as caught:
        NodeDirectory(OsFiles(), tmp_path)
    assert caught.value.expected == f"at most {TERM_MAX}"


def test_a_repaired_directory_has_all_entries_and_possible_terms(tmp_path: Path) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    payloads = [
        encode_delta(AddTask(queue=DEFAULT_QUEUE, key=1, payload=b"%d" % n)) for n in range(3)
    ]
    opened = NodeDirectory(OsFiles(), bad, generation=Generation.THREE)
    opened.metadata.replace(HardState(term=Term(IMPOSSIBLE)))
    for term, payload in zip((2, TERM_MAX + 1, IMPOSSIBLE), payloads, strict=True):
        opened.log.append(Term(term), [payload])
    opened.log.sync()
    opened.close()
    done = command("repair", bad, "--out", good)
    assert done.code == 0
    with_entries = NodeDirectory(OsFiles(), good)
    found = with_entries.log.read(Index(0), Index(3), size_max=2**20)
    assert [entry.payload for entry in found] == payloads
    assert [entry.term for entry in found] == [2, 2, 2]
    assert with_entries.metadata.state == HardState(term=Term(2))
    with_entries.close()


def refused(group: GroupProcesses, number: int) -> str:
    """Start a node that must not start; return what it says."""
    node = group.start(number)
    assert node.wait() != 0
    return "\n".join([*node.words, *(str(event) for event in node.events)])


def test_one_node_with_an_impossible_term_comes_back_with_an_empty_directory(
    tmp_path: Path,
) -> None:
    with group_processes(tmp_path) as group, group.client() as client:
        client.enqueue("", b"task")
        leader = group.wait_led()
        bad = next(number for number in group.nodes if number != leader)
        group.nodes[bad].kill()
        set_term(group.data(bad), IMPOSSIBLE)
        said = refused(group, bad)
        assert str(metadata_of(group.data(bad))) in said
        assert str(IMPOSSIBLE) in said
        assert "Traceback" not in said
        shutil.rmtree(group.data(bad))
        group.start(bad).wait_listening()
        group.wait_caught_up(client, bad)


def test_a_cluster_in_which_all_have_an_impossible_term_starts_again_from_a_repaired_directory(
    tmp_path: Path,
) -> None:
    with group_processes(tmp_path) as group:
        with group.client() as client:
            client.enqueue_many("", [b"%d" % number for number in range(10)])
            for number in group.nodes:
                group.wait_caught_up(client, number)
        group.stop_all()
        for number in group.nodes:
            set_term(group.data(number), IMPOSSIBLE)
            assert str(IMPOSSIBLE) in refused(group, number)
        repaired = tmp_path / "repaired"
        assert command("repair", group.data(1), "--out", repaired).code == 0
        for number in group.nodes:
            shutil.rmtree(group.data(number))
        repaired.rename(group.data(1))
        for number in group.nodes:
            group.start(number).wait_listening()
        group.wait_led()
        with group.client() as client:
            found = [bytes(task.payload) for task in client.dequeue_many("", 20)]
        assert sorted(found) == [b"%d" % number for number in range(10)]
