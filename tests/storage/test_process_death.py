"""A process that is killed, then a start, then a power cut: what the start showed is still there.

A killed process leaves writes and names that only the cache of the system holds. The next process
reads them, and may vote and answer by them, so a start makes durable what it has read before it returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from penstock.formats.taskflux.generation import Generation
from penstock.model import HardState, SnapshotPoint
from penstock.storage.directory import NodeDirectory
from penstock.testing.disk import MemoryFiles, crash_states, crash_states_now
from storage.test_crash import LIMITS, ROOT, random_workload, scripted
from support.log_stores import Content, content
from support.report import report

GENERATIONS = [Generation.TWO, Generation.THREE]


@dataclass(frozen=True)
class Shown:
    """What a start shows, and a node may tell others."""

    entries: Content
    state: HardState
    snapshot: SnapshotPoint | None


def start(files: MemoryFiles, generation: Generation) -> Shown:
    node = NodeDirectory(files, ROOT, generation=generation, limits=LIMITS)
    return Shown(content(node.log), node.metadata.state, node.snapshot.point)


def check_that_it_lasts(files: MemoryFiles, shown: Shown, generation: Generation) -> int:
    """Cut the power now: all that was shown is there again, but for what a snapshot covers."""
    states = list(crash_states_now(files, random_states=4))
    for crash in states:
        again = start(MemoryFiles(crash.image), generation)
        assert again.state == shown.state
        assert again.snapshot == shown.snapshot
        covered = -1 if shown.snapshot is None else shown.snapshot.index
        for index, entry in shown.entries.items():
            if index > covered:
                assert again.entries.get(index) == entry, f"entry {index} was shown and is gone"
    return len(states)


def killed_everywhere(files: MemoryFiles) -> Iterator[MemoryFiles]:
    """Yield the disk that the next process finds if this one is killed after an operation."""
    for count in range(len(files.operations) + 1):
        yield files.after(count)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_a_start_shows_after_a_kill_survives_a_power_cut(generation: Generation) -> None:
    count = 0
    for work in (scripted(generation), random_workload(generation, seed=3)):
        for files in killed_everywhere(work.files):
            count += check_that_it_lasts(files, start(files, generation), generation)
    report(
        f"generation {generation}: {count} power cuts after a kill and a start lost nothing shown"
    )
    assert count > 200


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_kill_leaves_all_that_was_written_to_the_next_process(generation: Generation) -> None:
    work = scripted(generation)
    states = crash_states(work.files, random_states=0)
    whole = {s.operations: s.image for s in states if s.survived == "all kept"}
    for count, files in enumerate(killed_everywhere(work.files)):
        assert files.image() == whole[count]
    assert len(whole) == len(work.files.operations) + 1
