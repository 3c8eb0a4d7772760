"""The test of the crash tests: storage with one bug in it, which the power cuts must find.

Each bug is a small wrong version of the storage (support/storage_bugs.py), put in by a patch for the time
of one test. What must find it are the lives and the check of test_crash.py, two more lives that
truncate and seal across segments, the kill of test_process_death.py, and the snapshot ahead of the log of
test_compaction.py. A bug that survives is a finding against these tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from penstock.errors import PenstockError
from penstock.formats.taskflux.generation import Generation
from penstock.model import Term
from penstock.storage.directory import NodeDirectory
from penstock.testing.disk import CrashState, MemoryFiles, crash_states
from storage.test_compaction import (
    test_a_snapshot_ahead_of_the_log_replaces_it_wherever_the_power_is_cut as check_ahead,
)
from storage.test_crash import LIMITS, ROOT, Workload, check, promised, random_workload, scripted
from storage.test_process_death import check_that_it_lasts, killed_everywhere, start
from support import storage_bugs as bugs
from support.log_stores import content
from support.report import report

TWO, THREE = Generation.TWO, Generation.THREE

Finder = Callable[[Generation], str | None]
"""Returns the first state that betrays a bug, or ``None`` if all is well."""

BETRAYALS = (AssertionError, PenstockError, LookupError, OSError)


# Lives beside those of test_crash.py.


def sealing(generation: Generation) -> Workload:
    """Entries that nobody synced when their segment is sealed, and a truncation across segments."""
    work = Workload(generation, MemoryFiles())
    work.append([b"a" * 10])
    work.sync()
    for letter in (b"b", b"c", b"d", b"e", b"f", b"g"):
        work.append([letter * 1400, letter * 1400])
    work.sync()
    work.truncate(3)
    work.append([b"h" * 50])
    work.sync()
    return work


def torn(generation: Generation) -> Workload:
    """Large batches without a sync, of which a cut leaves pieces."""
    work = Workload(generation, MemoryFiles())
    work.append([b"a"])
    work.sync()
    work.append([b"b" * 300, b"c" * 1500, b"d" * 40, b"e" * 40])
    work.append([b"f" * 700, b"g" * 20])
    work.sync()
    work.truncate(2)
    work.append([b"h"])
    work.sync()
    return work


def lives(generation: Generation) -> Iterator[tuple[str, Workload]]:
    yield "scripted", scripted(generation)
    yield "sealing", sealing(generation)
    yield "torn", torn(generation)
    for seed in (0, 2):
        yield f"seed {seed}", random_workload(generation, seed)


# Finders.


def by_power_cut(generation: Generation, names: tuple[str, ...] = ()) -> str | None:
    for name, work in lives(generation):
        if names and name not in names:
            continue
        for crash in crash_states(work.files, seed=5, random_states=3):
            try:
                check(work, crash)
                check_that_nothing_comes_back(work, crash)
            except BETRAYALS as error:
                return f"{name}, operation {crash.operations}, {crash.survived}: {words(error)}"
    return None


def check_that_nothing_comes_back(work: Workload, crash: CrashState) -> None:
    """An entry that was cut off stays away when one of equal size takes the place before it."""
    node = NodeDirectory(
        files := MemoryFiles(crash.image), ROOT, generation=work.generation, limits=LIMITS
    )
    log, before = node.log, content(node.log)
    written = promised(work, crash.operations).may.get(log.end, set())
    for term, payload in sorted(written)[-1:]:
        if all(known <= term for known, _ in before.values()):
            other = bytes(len(payload))
            log.append(Term(term), [other])
            log.sync()
            node.close()
            again = NodeDirectory(files, ROOT, generation=work.generation, limits=LIMITS)
            assert again.log.end == log.end, "an entry that was cut off came back"
            before[log.end - 1] = (term, other)
            kept = {n: e for n, e in before.items() if n >= again.log.first}
            assert content(again.log) == kept


def by_kill(generation: Generation) -> str | None:
    work = scripted(generation)
    for count, files in enumerate(killed_everywhere(work.files)):
        try:
            check_that_it_lasts(files, start(files, generation), generation)
        except BETRAYALS as error:
            return f"killed at operation {count}: {words(error)}"
    return None


def by_snapshot_ahead(generation: Generation) -> str | None:
    try:
        check_ahead(generation, 20)
    except BETRAYALS as error:
        return f"snapshot ahead: {words(error)}"
    return None


def words(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0] if len(lines[0]) <= 80 else lines[0][:79] + "…"


@dataclass(frozen=True)
class Bug:
    """A wrong version of the storage, and what must find it."""

    name: str
    seed: Callable[[pytest.MonkeyPatch], None]
    generations: tuple[Generation, ...] = (TWO, THREE)
    finder: Finder = by_power_cut


BUGS = [
    Bug("log.sync only notes the sync", bugs.seed_no_sync),
    Bug("the sync is noted before it is done", bugs.seed_sync_after_note),
    Bug("a truncation leaves the sync point as it is", bugs.seed_no_retreat),
    Bug("a withdrawn sync point is not synced", bugs.seed_retreat_unsynced),
    Bug("a replaced file is not synced", partial(bugs.seed_replace, syncs_file=False)),
    Bug("a replaced file's name is not synced", partial(bugs.seed_replace, syncs_directory=False)),
    Bug("a file is renamed before its sync", partial(bugs.seed_replace, renames_first=True)),
    Bug("metadata is overwritten in place", bugs.seed_metadata_in_place),
    Bug("no compaction sidecar", bugs.seed_no_sidecar, (TWO,)),
    Bug("no sidecar before the snapshot is there", bugs.seed_nothing_begun, (TWO,)),
    Bug("the sidecar does not count the records", bugs.seed_sidecar_without_count, (TWO,)),
    Bug("the sidecar goes before the log is replaced", bugs.seed_sidecar_removed_early, (TWO,)),
    Bug("the log is dropped before the snapshot is there", bugs.seed_log_dropped_first),
    Bug("a snapshot is installed unsynced", bugs.seed_snapshot_unsynced),
    # In generation 2 the directory is synced for the sidecar, before the log is shortened.
    Bug("a snapshot's name is not synced", bugs.seed_snapshot_name_unsynced, (THREE,)),
    Bug("compaction removes a segment too many", bugs.seed_segment_too_many, (THREE,)),
    Bug("a truncation is made in memory only", bugs.seed_truncate_in_memory_only),
    Bug("a truncation is not synced", bugs.seed_truncate_unsynced, (TWO,)),
    Bug("segments are truncated oldest first",
        partial(bugs.seed_truncation, oldest_first=True), (THREE,)),
    Bug("a truncation erases before it removes",
        partial(bugs.seed_truncation, erases_first=True), (THREE,)),
    Bug("the removal of a segment is not synced", bugs.seed_removal_unsynced, (THREE,)),
    Bug("a segment is sealed unsynced", bugs.seed_sealed_unsynced, (THREE,)),
    Bug("recovery leaves the torn tail in the file", bugs.seed_cut_not_erased),
    Bug("recovery erases only a marker of the torn tail", bugs.seed_cut_erases_a_marker_only),
    Bug("recovery sees no torn tail", bugs.seed_tail_left_behind),
    Bug("a lost sector is taken for damage", bugs.seed_lost_sector_is_damage),
    Bug("a start does not sync the entries it found", bugs.seed_no_sync_at_start, finder=by_kill),
    Bug("a start does not sync the names it found",
        bugs.seed_names_unsynced_at_start, finder=by_kill),
    Bug("a log is replaced while the sync point vouches for it",
        bugs.seed_nothing_begun, (THREE,), by_snapshot_ahead),
]  # fmt: skip

CASES = [(bug, generation) for bug in BUGS for generation in bug.generations]


@pytest.mark.parametrize(
    ("bug", "generation"), CASES, ids=[f"{bug.name}, {generation}" for bug, generation in CASES]
)
def test_a_seeded_bug_is_found(
    bug: Bug, generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug.seed(monkeypatch)
    found = bug.finder(generation)
    report(f"seeded bug in generation {generation}: {bug.name}: {found or 'SURVIVED'}")
    assert found is not None


@pytest.mark.parametrize(
    "names",
    [("scripted", "sealing", "torn"), pytest.param(("seed 0", "seed 2"), marks=pytest.mark.heavy)],
    ids=str,
)
@pytest.mark.parametrize("generation", [TWO, THREE])
def test_without_a_seeded_bug_no_power_cut_finds_one(
    generation: Generation, names: tuple[str, ...]
) -> None:
    assert by_power_cut(generation, names) is None


@pytest.mark.parametrize("generation", [TWO, THREE])
def test_without_a_seeded_bug_nothing_else_finds_one(generation: Generation) -> None:
    for finder in (by_kill, by_snapshot_ahead):
        assert finder(generation) is None


def test_growing_a_file_without_a_sync_costs_speed_not_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Why the growth is synced at all: later syncs then write data only. A power cut finds nothing.
    bugs.seed_growth_unsynced(monkeypatch)
    assert by_power_cut(TWO, ("scripted", "torn")) is None
