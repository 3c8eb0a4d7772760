"""Power cuts at every operation of a paged store, on a disk that keeps what it likes.

A store that stands alone must come back as one of its syncs left it, one under a log exactly as the last
checkpoint did. The second half is the test of this test: stores with one bug in them, which must be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from penstock.errors import PenstockError
from penstock.testing.disk import CrashState, MemoryFiles, crash_states, crash_states_now
from support import paged_bugs as bugs
from support.paged_lives import (
    Life,
    check,
    check_promise,
    open_store,
    overlapping,
    promises,
    random_life,
    replayed,
    scripted,
    state_of,
    tabled,
    upgraded,
)
from support.report import report

ALONE, UNDER_A_LOG = True, False
WAYS = pytest.mark.parametrize("alone", [ALONE, UNDER_A_LOG], ids=["alone", "under a log"])
BETRAYALS = (AssertionError, PenstockError, LookupError, OSError, ValueError)

Make = Callable[..., Life]

CHECK_FURTHER = 7
"""Of so many states one is also written to: that takes longer than to look at it."""


States = Callable[..., Iterator[CrashState]]


def some_states(files: MemoryFiles, *, seed: int, random_states: int) -> Iterator[CrashState]:
    """Yield the first state behind every operation, and a third of the others, in turns."""
    operations, number = -1, 0
    for crash in crash_states(files, seed=seed, random_states=random_states):
        number = number + 1 if crash.operations == operations else 0
        operations = crash.operations
        if number == 0 or (number + operations) % 3 == 0:
            yield crash


def check_everywhere(
    life: Life, *, seed: int, random_states: int, states: States = some_states
) -> int:
    count = 0
    for crash in states(life.files, seed=seed, random_states=random_states):
        check(life, crash, goes_on=count % CHECK_FURTHER == 0)
        count += 1
    assert count > len(life.files.operations)
    return count


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("make", "alone"),
    [
        *((make, way) for make in (scripted, overlapping, tabled) for way in (ALONE, UNDER_A_LOG)),
        *((make, UNDER_A_LOG) for make in (replayed, upgraded)),
    ],
)
def test_every_state_of_the_lives_below_is_recovered(make: Make, alone: bool) -> None:
    check_everywhere(make(alone=alone), seed=1, random_states=1, states=crash_states)


@WAYS
@pytest.mark.parametrize("make", [scripted, overlapping])
def test_what_was_promised_is_there_and_nothing_else_wherever_the_power_is_cut(
    make: Make, alone: bool
) -> None:
    count = check_everywhere(make(alone=alone), seed=1, random_states=1)
    report(f"paged store, {make.__name__}, alone={alone}: {count} crash states recovered")


@WAYS
def test_tables_say_what_their_files_said_wherever_the_power_is_cut(alone: bool) -> None:
    life = tabled(alone=alone)
    written = {op.path for op in life.files.operations if op.path.endswith(".places")}
    assert {path.split("/")[-2] for path in written} >= {"msg_store_persistent"}
    assert len(written) >= 5, "no tables were made"
    count = check_everywhere(life, seed=4, random_states=1)
    report(f"paged store, tables, alone={alone}: {count} crash states recovered")


@pytest.mark.parametrize("make", [replayed, upgraded])
def test_under_a_log_what_another_life_left_is_neither_lost_nor_believed(make: Make) -> None:
    count = check_everywhere(make(alone=False), seed=5, random_states=1)
    report(f"paged store, {make.__name__}: {count} crash states recovered")


@WAYS
@pytest.mark.parametrize("seed", [0])
def test_random_lives_survive_every_cut(seed: int, alone: bool) -> None:
    count = check_everywhere(random_life(seed, alone=alone), seed=seed, random_states=1)
    report(f"paged store, seed {seed}, alone={alone}: {count} crash states recovered")


@pytest.mark.heavy
@WAYS
@pytest.mark.parametrize("seed", range(1, 41))
def test_many_random_lives_survive_every_cut(seed: int, alone: bool) -> None:
    life = random_life(seed, alone=alone, length=60)
    count = check_everywhere(life, seed=seed, random_states=6, states=crash_states)
    report(f"paged store, seed {seed}, alone={alone}: {count} crash states recovered")


@WAYS
def test_a_segment_that_gets_messages_while_it_is_being_forgotten_keeps_its_acks(
    alone: bool,
) -> None:
    life = Life(alone=alone)
    life.queue(1)
    life.publish(1, [900, 400])
    life.sync()
    life.flush(1)
    life.ack(1, [0, 1])
    life.begin()
    life.publish(1, [60])
    life.write()
    life.finish()
    life.checkpoint()
    check_everywhere(life, seed=8, random_states=1)


@WAYS
def test_a_second_power_cut_during_recovery_loses_nothing_either(alone: bool) -> None:
    life = scripted(alone=alone)
    count = 0
    for number, crash in enumerate(crash_states(life.files, seed=2, random_states=1)):
        if number % 61:
            continue
        for promise in promises(life, crash.operations):
            files = MemoryFiles(crash.image)
            check_promise(files, promise)
            for second in crash_states(files, seed=number, random_states=1):
                check_promise(MemoryFiles(second.image), promise)
                count += 1
    report(f"paged store, alone={alone}: {count} crash states of recovery recovered")
    assert count > 0


def merging(*, alone: bool) -> Life:
    """A life of merges: every file loses most of its messages, and what is left moves twice."""
    life = Life(alone=alone)
    life.queue(1)
    life.publish(1, [800] * 12)
    life.sync()
    life.ack(1, [0, 2, 3, 5, 6, 8])
    life.sync()
    life.collect()
    life.sync()
    life.publish(1, [900] * 3)
    life.ack(1, [1, 4, 9])
    life.checkpoint()
    life.collect()
    life.collect(1)
    life.checkpoint()
    return life


@WAYS
def test_a_merge_that_is_cut_anywhere_loses_no_message_as_the_originals_does(alone: bool) -> None:
    # The original cuts the left file, extends it with zeros and fills it again; what a crash leaves
    # behind the zeros it never finds. Section 8 of the format's description.
    life = merging(alone=alone)
    merges = [event for event in life.events if event.kind == "collect"]
    assert sum(event.end > event.begin for event in merges) >= 2, "no merge took place"
    check_everywhere(life, seed=3, random_states=2)


def shrinking(*, alone: bool) -> Life:
    """A short life in which everything goes away again: messages, store files, segments, a queue."""
    life = Life(alone=alone)
    life.queue(1)
    life.queue(2)
    life.publish(1, [900] * 4)
    life.publish(2, [20, 600])
    life.checkpoint()
    life.ack(1, [0, 1, 2])
    life.delete(2)
    life.sync()
    life.publish(1, [20])
    life.sync()
    return life


def check_kills(life: Life) -> int:
    """Kill the process now and then, and whenever a file was renamed; what the next one finds must last."""
    done = life.files.operations
    renamed = {number for number, operation in enumerate(done, 1) if operation.kind == "rename"}
    count = 0
    for operations in sorted(renamed | set(range(0, len(done) + 1, 11))):
        for promise in promises(life, operations):
            files = life.files.after(operations)
            state = check_promise(files, promise)
            for crash in crash_states_now(files, seed=operations, random_states=1):
                again = open_store(MemoryFiles(crash.image), promise.at_mark)
                assert state_of(again) == state, "what a start found was lost by the next power cut"
                count += 1
    return count


@WAYS
def test_what_a_start_found_after_a_kill_survives_a_power_cut(alone: bool) -> None:
    assert check_kills(scripted(alone=alone)) > 0


# --- the test of the test --------------------------------------------------------------------------

Finder = Callable[[bool, tuple[Make, ...]], str | None]
"""Returns what betrays a bug in one of some lives, or ``None`` if all is well."""


def by_power_cut(alone: bool, lives: tuple[Make, ...]) -> str | None:
    for make in lives:
        try:
            life = make(alone=alone)
        except BETRAYALS as error:
            return f"{make.__name__}, without a cut: {error!r:.80}"
        states = list(some_states(life.files, seed=1, random_states=1))
        # Most bugs show in many states, but only late in a life.
        for number, crash in enumerate(state for n in range(9) for state in states[8 - n :: 9]):
            try:
                check(life, crash, goes_on=number % CHECK_FURTHER == 0)
            except BETRAYALS as error:
                return f"{make.__name__}, {crash.operations}, {crash.survived}: {error!r:.80}"
    return None


def by_kill(alone: bool, lives: tuple[Make, ...]) -> str | None:
    for make in lives:
        try:
            check_kills(make(alone=alone))
        except BETRAYALS as error:
            return f"{error!r:.80}"
    return None


@dataclass(frozen=True)
class Bug:
    name: str
    seed: Callable[[pytest.MonkeyPatch], None]
    ways: tuple[bool, ...] = (ALONE, UNDER_A_LOG)
    finder: Finder = by_power_cut
    lives: tuple[Make, ...] = (scripted,)


BUGS = [
    Bug("the checkpoint goes before the sync", bugs.seed_checkpoint_before_sync),
    Bug("a checkpoint syncs no files", bugs.seed_files_unsynced),
    Bug("a checkpoint syncs no names", bugs.seed_names_unsynced),
    Bug("the checkpoint is overwritten in place", bugs.seed_checkpoint_in_place),
    Bug("segments go before the checkpoint is there", bugs.seed_removed_before_the_checkpoint),
    Bug("a deleted queue's files go at once", bugs.seed_deleted_queue_removed_at_once,
        lives=(shrinking,)),
    Bug("store files go when they are garbage", bugs.seed_garbage_removed_at_once,
        lives=(shrinking,)),
    Bug("a flush empties the journal", bugs.seed_flush_empties_the_journal, (ALONE,)),
    Bug("a journal is cut while a checkpoint still needs it",
        bugs.seed_journal_goes_on_where_it_was, (ALONE,), lives=(overlapping,)),
    Bug("a new journal is sealed like the old one", bugs.seed_generation_never_changes, (ALONE,)),
    Bug("a torn journal is believed", bugs.seed_journal_believed_to_its_end, (ALONE,)),
    Bug("the journal is not cut back", bugs.seed_journal_not_cut, (UNDER_A_LOG,),
        lives=(upgraded,)),
    Bug("a seal outruns the messages", bugs.seed_sealed_before_the_store_is_synced, (ALONE,)),
    Bug("the journal is not synced", bugs.seed_journal_unsynced, (ALONE,)),
    Bug("segments are not cut back", bugs.seed_segments_not_cut),
    Bug("segments of later are believed", bugs.seed_unknown_segments_kept),
    Bug("delivers are flushed twice", bugs.seed_delivers_flushed_twice),
    Bug("a table of another life is believed", bugs.seed_stale_tables_believed, (UNDER_A_LOG,),
        lives=(replayed,)),
    Bug("a table is newer than its checkpoint", bugs.seed_tables_of_the_present, lives=(tabled,)),
    Bug("nothing is read behind a table", bugs.seed_nothing_read_behind_a_table, lives=(tabled,)),
    Bug("nothing is read behind a store's table", bugs.seed_nothing_read_behind_a_stores_table,
        lives=(tabled,)),
    Bug("a merge is made in place", bugs.seed_merge_in_place, lives=(merging,)),
    Bug("a merged file is not synced", bugs.seed_merge_unsynced, lives=(merging,)),
    Bug("a start syncs nothing", bugs.seed_nothing_synced_at_start, (ALONE,), by_kill),
    Bug("a start does not sync the checkpoint's name",
        bugs.seed_checkpoint_name_unsynced_at_start, (ALONE,), by_kill),
]  # fmt: skip

CASES = [(bug, way) for bug in BUGS for way in bug.ways]


@pytest.mark.parametrize(
    ("bug", "alone"),
    CASES,
    ids=[f"{bug.name}, {'alone' if way else 'under a log'}" for bug, way in CASES],
)
def test_a_seeded_bug_is_found(bug: Bug, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.seed(monkeypatch)
    found = bug.finder(alone, bug.lives)
    report(f"seeded bug of the paged store: {bug.name}: {found or 'SURVIVED'}")
    assert found is not None
