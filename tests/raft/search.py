"""Every course that a small group can take: each order of delivery, loss and repetition, crash and restart.

A message that was sent may be delivered at any later time, again, or never: the network is the set of all that were ever
sent. What a member does depends on its own state and the message alone, so that the core is asked once for each pair; the
walk through the combinations of such states is arithmetic on tables, which a kernel does. It stops and asks when it meets a
pair that the tables do not know. Time does not pass: any member may run for leader at any moment.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from penstock.formats.kernel import compiled
from penstock.raft.configuration import Configuration
from penstock.raft.core import Raft
from penstock.raft.messages import Message
from penstock.raft.refusals import Refused
from penstock.raft.roles import Role
from raft.world import SCRIPT_SETTINGS, Disk

MEMBERS: Final = (1, 2, 3)

# Believed the first time, a rejection leaves no count behind; and whoever is believed too early must not harm.
SETTINGS: Final = replace(SCRIPT_SETTINGS, doubts_max=1)

STATES_MAX: Final = 4096  # of one member
WORDS: Final = 4
MESSAGES_MAX: Final = 64 * WORDS
CAMPAIGN, PROPOSE, RESTART, DELIVER = 0, 1, 2, 3
ACTIONS: Final = DELIVER + MESSAGES_MAX
UNKNOWN: Final = -1

# Why the kernel came back.
FINISHED, ASKS_FOR_STEP, ASKS_FOR_PAIR, BROKEN, ENOUGH, STACK_FULL = range(6)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a course is followed."""

    terms: int = 2
    entries: int = 2  # of any log
    crashes: int = 1


@dataclass(slots=True)
class _One:
    """A member and its disk in one of its states."""

    core: Raft
    disk: Disk


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the checks ask of a state."""

    term: int
    is_leader: bool
    log: tuple[tuple[int, bytes], ...]
    committed: int


class Search:
    """A walk through all places that a group of three can be in."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.ones: list[_One] = []
        self.facts: list[_Facts] = []
        self.messages: list[Message] = []
        self._numbers: dict[object, int] = {}
        self._bits: dict[Message, int] = {}
        # By [is the power lost before anything is durable, state, action]: the next state, and what was sent.
        self._next = np.full((2, STATES_MAX, ACTIONS), UNKNOWN, dtype=np.int32)
        self._sends = np.zeros((2, STATES_MAX, ACTIONS, WORDS), dtype=np.uint64)
        self._receiver = np.zeros(MESSAGES_MAX, dtype=np.int64)
        self._traits = np.zeros((STATES_MAX, 3), dtype=np.int64)  # term, is leader, length of log
        self._pairs = np.full((STATES_MAX, STATES_MAX), UNKNOWN, dtype=np.int8)

    def run(self, *, places_max: int) -> tuple[int, bool]:
        """Walk until everything was seen, or so many places; return how many were, and whether that was all."""
        bounds = np.array(
            (self.bounds.terms, self.bounds.entries, self.bounds.crashes), dtype=np.int64
        )
        start = [self._fresh(member) for member in MEMBERS]
        seen = np.zeros(1 << max(16, (2 * places_max).bit_length()), dtype=np.uint64)
        stack = np.zeros((max(1 << 16, places_max // 4), 1 + WORDS), dtype=np.uint64)
        stack[0, 0] = start[0] | start[1] << 16 | start[2] << 32
        counts = np.array((1, 0, 0, 0, 0), dtype=np.int64)  # on the stack, seen, and what is asked
        scratch = np.zeros((2, WORDS), dtype=np.uint64)
        walk = compiled(_walk)
        while True:
            tables = (self._next, self._sends, self._receiver, self._traits, self._pairs)
            why = walk(*tables, bounds, seen, stack, counts, scratch, places_max)
            if why == ASKS_FOR_STEP:
                self._work_out(*map(int, counts[2:]))
            elif why == ASKS_FOR_PAIR:
                one, other = int(counts[2]), int(counts[3])
                _check_pair(self.facts[one], self.facts[other])
                self._pairs[one, other] = 1
            elif why == BROKEN:
                raise AssertionError(f"two leaders in term {counts[2]}")
            else:
                assert why != STACK_FULL, "the walk is wider than its stack"
                return int(counts[1]), why == FINISHED

    # --- one member ---

    def _work_out(self, is_lost: int, number: int, action: int) -> None:
        """Ask the core what an action leads to, and keep the answer."""
        following, sent = self._act(number, action, is_lost=bool(is_lost))
        self._next[is_lost, number, action] = following
        words = [(sent >> (64 * word)) & (2**64 - 1) for word in range(WORDS)]
        self._sends[is_lost, number, action] = words

    def _act(self, number: int, action: int, *, is_lost: bool) -> tuple[int, int]:
        one = deepcopy(self.ones[number])
        if action == RESTART:
            return self._number(self._started(one.core.member, one.disk)), 0
        try:
            if action == CAMPAIGN:
                one.core.campaign()
            elif action == PROPOSE:
                one.core.propose([b"x%d" % one.core.term])
            else:
                one.core.step(self.messages[action - DELIVER])
        except Refused:
            return number, 0
        sent = 0
        while one.core.has_ready:
            ready = one.core.ready()
            sent |= self._sent(ready.messages)
            if is_lost:
                return self._number(self._started(one.core.member, one.disk)), sent
            one.disk.store(ready)
            one.core.persisted(ready.token)
            sent |= self._sent(ready.messages_after)
            if ready.committed:
                one.core.applied(ready.committed[-1].index)
        return self._number(one), sent

    def _sent(self, messages: list[Message]) -> int:
        bits = 0
        for message in messages:
            if message not in self._bits:
                assert len(self.messages) < MESSAGES_MAX, (
                    "more messages than the tables have room for"
                )
                self._receiver[len(self.messages)] = message.to - 1
                self._bits[message] = 1 << len(self.messages)
                self.messages.append(message)
            bits |= self._bits[message]
        return bits

    def _fresh(self, member: int) -> int:
        return self._number(self._started(member, Disk(Configuration(voters=MEMBERS))))

    def _started(self, member: int, disk: Disk) -> _One:
        core = Raft(
            member,
            disk,
            hard_state=disk.hard_state,
            configuration=disk.stored_snapshot.configuration,
            settings=SETTINGS,
            draw=_no_chance,
        )
        while core.has_ready:
            ready = core.ready()
            core.persisted(ready.token)
            if ready.committed:
                core.applied(ready.committed[-1].index)
        return _One(core, disk)

    def _number(self, one: _One) -> int:
        """Return the number of a state: the same for all that behave alike from here on."""
        core, log = one.core, one.core.log
        entries = log.entries(1, log.last + 1, size_max=2**20) if log.last else []
        terms = tuple((entry.term, entry.payload) for entry in entries)
        progress: tuple[Any, ...] = ()
        if core.leadership is not None:
            progress = tuple(
                (m, p.match, p.next, p.pace, p.is_paused, p.sent_commit, len(p.window))
                for m, p in core.leadership.progress.items()
            )
        votes = tuple(sorted(core.votes.items()))
        key = (core.member, core.role, core.term, core.vote, core.leader, terms, log.committed)
        whole = (*key, votes, progress, one.disk.hard_state)
        number = self._numbers.get(whole)
        if number is None:
            number = self._numbers[whole] = len(self.ones)
            assert number < STATES_MAX, "more states than the tables have room for"
            is_leader = core.role is Role.LEADER
            self.ones.append(one)
            self.facts.append(_Facts(core.term, is_leader, terms, log.committed))
            self._traits[number] = (core.term, is_leader, len(terms))
        return number


def _no_chance(most: int) -> int:
    del most
    return 0


def _check_pair(one: _Facts, other: _Facts) -> None:
    """Raise ``AssertionError`` for states that must not be at the same time."""
    agreed = min(one.committed, other.committed)
    assert one.log[:agreed] == other.log[:agreed], "two committed logs differ"
    for leader, follower in ((one, other), (other, one)):
        if leader.is_leader and leader.term >= follower.term:
            committed = follower.log[: follower.committed]
            assert leader.log[: len(committed)] == committed, "a leader lacks a committed entry"
    for index in range(min(len(one.log), len(other.log)), 0, -1):
        if one.log[index - 1][0] == other.log[index - 1][0]:
            assert one.log[:index] == other.log[:index], "two logs with one entry differ before it"
            break


def _walk(
    following: Any,
    sends: Any,
    receiver: Any,
    traits: Any,
    pairs: Any,
    bounds: Any,
    seen: Any,
    stack: Any,
    counts: Any,
    scratch: Any,
    places_max: int,
) -> int:
    """Walk from what is on the stack until it is empty, or something must be asked. A kernel.

    A place is a word with the members' states, who led each term and the crashes so far, and words of what was sent.
    It is taken off the stack only when all that follows from it was looked at, so that it is looked at again after a
    question.
    """
    terms, entries, crashes_max = bounds[0], bounds[1], bounds[2]
    mask = np.uint64(len(seen) - 1)
    sent, new_sent = scratch[0], scratch[1]
    while counts[0] > 0:
        top = counts[0] - 1
        place = stack[top, 0]
        for word in range(WORDS):
            sent[word] = stack[top, 1 + word]
        crashes = np.int64((place >> np.uint64(60)) & np.uint64(3))
        # First everything is known that can follow, then it is put on the stack.
        for is_final in range(2):
            if is_final == 1:
                counts[0] = top
            for action in range(DELIVER + MESSAGES_MAX):
                is_message = action >= DELIVER
                if is_message:
                    bit = action - DELIVER
                    if (sent[bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1) == np.uint64(0):
                        continue
                for position in range(3):
                    if is_message and receiver[action - DELIVER] != position:
                        continue
                    number = np.int64((place >> np.uint64(16 * position)) & np.uint64(0xFFFF))
                    if action == CAMPAIGN and (
                        traits[number, 0] >= terms or traits[number, 1] == 1
                    ):
                        continue
                    if action == PROPOSE and (
                        traits[number, 1] == 0 or traits[number, 2] >= entries
                    ):
                        continue
                    for is_lost in range(2):
                        more = is_lost + (action == RESTART)
                        if crashes + more > crashes_max or more > 1:
                            continue
                        after = np.int64(following[is_lost, number, action])
                        if after == UNKNOWN:
                            counts[2], counts[3], counts[4] = is_lost, number, action
                            return ASKS_FOR_STEP
                        is_same = after == number
                        for word in range(WORDS):
                            new_sent[word] = sent[word] | sends[is_lost, number, action, word]
                            is_same = is_same and new_sent[word] == sent[word]
                        if is_same:
                            continue
                        for other in range(3):
                            peer = np.int64((place >> np.uint64(16 * other)) & np.uint64(0xFFFF))
                            if other != position and pairs[after, peer] == UNKNOWN:
                                counts[2], counts[3] = after, peer
                                return ASKS_FOR_PAIR
                        shift = np.uint64(16 * position)
                        new = (place & ~(np.uint64(0xFFFF) << shift)) | (np.uint64(after) << shift)
                        if traits[after, 1] == 1:
                            where = np.uint64(48 + 2 * traits[after, 0])
                            led_by = (new >> where) & np.uint64(3)
                            if led_by != np.uint64(0) and led_by != np.uint64(position + 1):
                                counts[2] = traits[after, 0]
                                return BROKEN
                            new |= np.uint64(position + 1) << where
                        new += np.uint64(more) << np.uint64(60)
                        if is_final == 0:
                            continue
                        # A fingerprint of 64 bits stands for the place.
                        mark = new * np.uint64(0x9E3779B97F4A7C15)
                        for word in range(WORDS):
                            mark = (mark ^ (mark >> np.uint64(29))) + new_sent[word]
                            mark *= np.uint64(0xBF58476D1CE4E5B9)
                        mark = (mark ^ (mark >> np.uint64(31))) | np.uint64(1)
                        slot = mark & mask
                        while seen[slot] != np.uint64(0) and seen[slot] != mark:
                            slot = (slot + np.uint64(1)) & mask
                        if seen[slot] == mark:
                            continue
                        seen[slot] = mark
                        counts[1] += 1
                        if counts[0] >= len(stack):
                            return STACK_FULL
                        stack[counts[0], 0] = new
                        for word in range(WORDS):
                            stack[counts[0], 1 + word] = new_sent[word]
                        counts[0] += 1
        if counts[1] >= places_max:
            return ENOUGH
    return FINISHED
