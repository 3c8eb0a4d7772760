"""H: a member that a crash made forget how far its log was agreed on, with changes of members behind that.

Changes are in force when they are applied, and a note of what is committed may be lost with the power. The members of two
changes ago may have a majority in which nobody has what was committed since.
"""

from __future__ import annotations

from random import Random

import pytest

from penstock.raft.configuration import Step, encode_change
from penstock.raft.core import Raft
from penstock.raft.messages import Entry, EntryKind, HardState, Kind
from penstock.raft.roles import Role
from raft.groups import THREE, check, go_on, one_step, run
from raft.stepping import Stepped
from raft.world import SCRIPT_SETTINGS

SEEDS = range(6)


def change(index: int, step: Step, member: int) -> Entry:
    return Entry(index, 1, encode_change(one_step(step, member)), EntryKind.CONFIGURATION)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_majority_of_two_changes_ago_elects_nobody(seed: int) -> None:
    world = run(seed, "cluster 3", "campaign 1", "beat 1", "isolate 3", "conf 1 -3", "beat 1")
    go_on(world, "conf 1 +4", "beat 1", "beat 1", "crash 2", "propose 1 x", "beat 1")
    check(world, "1,4 voters 1,2,4", "1,4 last 4", "1,4 commit 4")
    forgetful = world.members[2]
    stored = forgetful.disk.hard_state
    forgetful.disk.hard_state, forgetful.applied = HardState(stored.term, stored.vote, 0), 0
    # 2 and 3 were a majority once. By what 2 has in its log it needs 1, which has what it lacks.
    go_on(world, "heal", "isolate 1", "restart 2", "campaign 2")
    check(world, "2 last 3", "2 voters 1,2", "2 state candidate")
    go_on(world, "heal", "campaign 4", "campaign 4", "beat 4", "beat 4")
    check(world, "4 state leader", "1,2,4 commit @4", "1,2,4 voters 1,2,4")


def started(*kept: Entry, commit: int = 0) -> Stepped:
    """Return member 2 of three, begun anew with this log and this note of what is committed."""
    one = Stepped(2)
    one.disk.kept = list(kept)
    one.core = Raft(
        2,
        one.disk,
        hard_state=HardState(1, 0, commit),
        configuration=THREE,
        settings=SCRIPT_SETTINGS,
        draw=Random(0).randrange,
    )
    return one


def test_all_changes_but_the_last_are_committed() -> None:
    one = started(
        Entry(1, 1),
        change(2, Step.REMOVE, 3),
        Entry(3, 1),
        change(4, Step.VOTER, 4),
        change(5, Step.LEARNER, 5),
        Entry(6, 1),
    )
    assert one.core.log.committed == 4
    one.core.campaign()
    assert one.core.role is Role.FOLLOWER, "not before these changes are in force"
    one.pump()
    assert one.core.configuration.voters == (1, 2, 4)
    one.core.campaign()
    assert [message.to for message in one.pump() if message.kind is Kind.VOTE] == [1, 4]


def test_one_change_says_nothing_of_itself() -> None:
    one = started(Entry(1, 1), change(2, Step.REMOVE, 3), Entry(3, 1))
    assert (one.core.log.committed, one.core.configuration) == (0, THREE)


def test_a_higher_note_counts() -> None:
    one = started(change(1, Step.REMOVE, 3), change(2, Step.VOTER, 4), Entry(3, 1), commit=3)
    assert one.core.log.committed == 3
