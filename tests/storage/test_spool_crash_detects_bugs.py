"""The test of the spool's crash tests: spools with one bug in them, which must be found.

A bug that survives is a finding against test_spool_crash.py and test_spool_faults.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from penstock.errors import PenstockError
from penstock.formats.beats.segment import Options
from penstock.testing.disk import MemoryFiles, crash_states
from storage.test_spool_crash import check_kills
from storage.test_spool_faults import ENOSPC, check_failures, check_full_disk
from support import spool_bugs as bugs
from support.report import report
from support.spool_lives import (
    AES,
    LZ4,
    PLAIN,
    LifeOver,
    check_image,
    draining,
    random_life,
    scripted,
)

BETRAYALS = (AssertionError, PenstockError, LookupError, OSError, LifeOver, pytest.fail.Exception)

Finder = Callable[[Options], None]
"""Raises one of ``BETRAYALS`` if something is wrong."""


def by_power_cut(options: Options) -> None:
    for make in (scripted, draining, partial(random_life, 0), partial(random_life, 1)):
        life = make(options)
        for crash in crash_states(life.files, seed=1, random_states=2):
            files = MemoryFiles(crash.image)
            check_image(life, files, crash.operations, goes_on=False)


def by_kill(options: Options) -> None:
    check_kills(scripted(options))


def by_full_disk(options: Options) -> None:
    check_full_disk(options, ENOSPC, half=True)


def by_failing_disk(options: Options) -> None:
    check_failures(options, half=False)


@dataclass(frozen=True)
class Bug:
    name: str
    seed: Callable[[pytest.MonkeyPatch], None]
    options: Options = PLAIN
    finder: Finder = by_power_cut


BUGS = [
    Bug("frames are not synced", bugs.seed_frames_unsynced),
    Bug("frames are not synced, compressed", bugs.seed_frames_unsynced, LZ4),
    Bug("a segment's name is not synced", bugs.seed_names_unsynced),
    Bug("told before the last segment is written",
        bugs.seed_told_before_the_last_segment_is_written),
    Bug("a number is used again", bugs.seed_number_used_again),
    Bug("a vector without a mark", bugs.seed_vector_without_a_mark, AES),
    Bug("a full disk: nothing is cut back", bugs.seed_not_cut_back, finder=by_full_disk),
    Bug("a full disk: goes on in an encrypted segment that was cut",
        bugs.seed_goes_on_in_a_segment_that_was_cut, AES, by_full_disk),
    Bug("a full disk: a new segment stays behind",
        bugs.seed_new_segment_stays_behind, finder=by_full_disk),
    Bug("a failed write is forgotten", bugs.seed_failure_forgotten, finder=by_failing_disk),
    Bug("the state is not synced", bugs.seed_state_unsynced),
    Bug("the state's name is not synced", bugs.seed_state_name_unsynced),
    Bug("the state is emptied and written", bugs.seed_state_in_place),
    Bug("the reader's position is saved", bugs.seed_position_of_the_reader_saved),
    Bug("gaps count as acknowledged", bugs.seed_gaps_acknowledged),
    Bug("the state is saved at close only", bugs.seed_state_saved_at_close_only),
    Bug("the state is not saved at close", bugs.seed_state_not_saved_at_close),
    Bug("what is being sent is not saved", bugs.seed_sending_forgotten),
    Bug("what is being sent is saved with an old position", bugs.seed_sending_of_before),
    Bug("a segment goes when it was read", bugs.seed_removed_when_read),
    Bug("a start removes the reader's segment", bugs.seed_removed_with_the_readers_segment),
    Bug("a start cuts one byte too much", bugs.seed_cut_one_byte_too_much),
    Bug("a start cuts one byte too much, compressed", bugs.seed_cut_one_byte_too_much, LZ4),
    Bug("a start believes the count of frames", bugs.seed_cut_at_the_first_flaw_of_any_segment),
    Bug("a start cuts in silence", bugs.seed_cut_in_silence),
    Bug("a start syncs no frames", bugs.seed_nothing_synced_at_start, finder=by_kill),
    Bug("a start syncs no names", bugs.seed_names_unsynced_at_start, finder=by_kill),
]  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_seeded_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.seed(monkeypatch)
    found = None
    try:
        bug.finder(bug.options)
    except BETRAYALS as error:
        found = f"{error!r:.80}"
    report(f"seeded bug of the spool: {bug.name}: {found or 'SURVIVED'}")
    assert found is not None
