"""Another's snapshot comes into place and the log begins anew behind it, wherever the power is cut meanwhile."""

from __future__ import annotations

from penstock.formats.taskflux.generation import Generation
from penstock.model import HardState, Term
from penstock.storage.directory import NodeDirectory
from penstock.testing.disk import MemoryFiles, crash_states
from storage.test_compaction import ENTRIES, open_node, pieces_of
from support.log_stores import append, content, point
from support.report import report

THREE = Generation.THREE
AT = point(20, 2)


def node_with_old_log() -> tuple[MemoryFiles, NodeDirectory]:
    """Return a node of term 2 that holds nine entries, and a disk that begins with them."""
    files = MemoryFiles()
    node = open_node(files, THREE)
    node.metadata.replace(HardState(term=Term(2)))
    append(node.log, 1, *(payload for _, payload in ENTRIES.values()))
    node.log.sync()
    node.close()
    files = MemoryFiles(files.image())
    return files, open_node(files, THREE)


def test_a_power_cut_leaves_the_old_log_or_the_whole_snapshot() -> None:
    files, node = node_with_old_log()
    writer = node.snapshot.write(pieces_of(AT, THREE))
    node.install_received(AT, writer)
    append(node.log, 2, b"behind it")
    node.log.sync()
    outcomes = {"old": 0, "new": 0}
    for crash in crash_states(files, random_states=2):
        again = open_node(crash.image, THREE)
        if again.snapshot.point is None:
            outcomes["old"] += 1
            assert content(again.log) == ENTRIES
        else:
            outcomes["new"] += 1
            assert again.snapshot.point == AT
            assert again.log.first == 21
        if crash.operations == len(files.operations):
            assert content(again.log) == {21: (2, b"behind it")}
    report(f"received snapshot: {outcomes['old']} cuts left the old log, {outcomes['new']} the new")
    assert min(outcomes.values()) > 5
