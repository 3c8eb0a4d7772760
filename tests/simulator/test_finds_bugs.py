"""The simulator's checks can fail: wrong versions of the product, each a small patch, and the seeds that find them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.raft.core import Raft
from penstock.raft.leading import Leadership
from penstock.raft.log import Log
from penstock.raft.messages import Entry, Kind, Message
from penstock.server.broker import Broker
from penstock.storage.metadata import MetadataStore
from penstock.storage.segmented_log import SegmentedLog
from simulation.run import run_seed
from simulation.swarm import Fault

SEEDS_MAX = 40


@dataclass(frozen=True)
class Bug:
    name: str
    seed: Callable[[pytest.MonkeyPatch], None]
    faults: tuple[Fault, ...]
    first: int = 0  # a seed not long before the one that finds it
    expected: str = ""  # what the verdict speaks of


def sync_does_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SegmentedLog, "sync", lambda _self: None)


def every_append_truncates(patch: pytest.MonkeyPatch) -> None:
    def take(self: Log, previous: int, previous_term: int, entries: Sequence[Entry]) -> int | None:
        if not self.has(previous, previous_term):
            return None
        if entries and entries[0].index > self.committed:
            self.append(entries)
        return previous + len(entries)

    patch.setattr(Log, "take", take)


def freshness_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "is_older_than", lambda _self, _index, _term: True)


def vote_is_given_twice(patch: pytest.MonkeyPatch) -> None:
    decide = Raft._decide_vote

    def decide_freely(self: Raft, message: Any) -> None:
        vote, leader, self.vote, self.leader = self.vote, self.leader, 0, 0
        decide(self, message)
        self.vote, self.leader = self.vote or vote, leader

    patch.setattr(Raft, "_decide_vote", decide_freely)


def retries_count_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Broker, "_find_produced", lambda *_: 0)


def leader_stays_without_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "check_quorum", lambda _self: True)


def lease_is_ignored(patch: pytest.MonkeyPatch) -> None:
    enter = Raft._enter_newer_term

    def enter_freely(self: Raft, message: Message) -> bool:
        leader, self.leader = self.leader, 0
        goes_on = enter(self, message)
        if message.kind is Kind.PRE_VOTE:
            self.leader = leader
        return goes_on

    patch.setattr(Raft, "_enter_newer_term", enter_freely)


def being_asked_moves_the_term(patch: pytest.MonkeyPatch) -> None:
    enter = Raft._enter_newer_term

    def enter_at_once(self: Raft, message: Message) -> bool:
        goes_on = enter(self, message)
        if goes_on and message.kind is Kind.PRE_VOTE:
            self.become_follower(message.term, 0)
        return goes_on

    patch.setattr(Raft, "_enter_newer_term", enter_at_once)


def vote_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MetadataStore, "replace", lambda _self, _state: None)


BUGS = (
    Bug("sync does nothing", sync_does_nothing, (Fault.POWER,), expected="its disk may lose it"),
    Bug("every append truncates", every_append_truncates, (Fault.ECHO, Fault.RESET), 50),
    Bug("freshness is not checked", freshness_is_not_checked, (Fault.KILL, Fault.PARTITION)),
    Bug("vote is given twice", vote_is_given_twice, (Fault.PARTITION, Fault.KILL), 10),
    Bug("retries count again", retries_count_again, (Fault.RESET,)),
    Bug(
        "leader stays without quorum",
        leader_stays_without_quorum,
        (Fault.PARTITION,),
        expected="reached no majority",
    ),
    Bug("lease is ignored", lease_is_ignored, (Fault.KILL,), expected="lost sight of it"),
    Bug(
        "being asked moves the term", being_asked_moves_the_term, (Fault.KILL,), expected="ran for"
    ),
    Bug("vote is not stored", vote_is_not_stored, (Fault.KILL,), expected="speaks of its vote"),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "_"))
def test_a_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.seed(monkeypatch)
    for seed in range(bug.first, bug.first + SEEDS_MAX):
        violation = run_seed(seed, faults=frozenset(bug.faults)).violation
        if violation is not None:
            print(f"{bug.name}: seed {seed}: {violation}")
            assert bug.expected in violation
            return
    raise AssertionError(f"{bug.name}: not found in {SEEDS_MAX} seeds from {bug.first} on")
