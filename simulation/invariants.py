"""What must hold: after every event what is cheap to look at, at the end everything.

``watch`` is called with a process whenever something happened to it. All indexes here are the core's, from 1 on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import StorageFailed
from penstock.raft.configuration import Configuration
from penstock.raft.core import Raft
from penstock.server.entry_store import stored_payload
from penstock.server.node import Node
from penstock.storage.segmented_log import SegmentedLog
from simulation.checking import delivery
from simulation.checking.history import Op, Operation
from simulation.clients import LEASE_MS
from simulation.clock import MILLISECOND
from simulation.swarm import Fault
from simulation.witnessing import NotInLog

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World

DIGEST_GAP: Final = 64
"""Every so many applied entries the states of the nodes are compared."""


class Broken(Exception):
    """Something happened that must not."""


@dataclass(slots=True)
class _Seen:
    """What was last seen of a process, in one life."""

    life: int = 0
    term: int = 0
    vote: int = 0
    committed: int = 0
    applied: int = 0
    last: int = 0
    last_term: int = 0
    is_leader: bool = False
    configuration: Configuration = field(default_factory=Configuration)


class Invariants:
    """Watches a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[int, _Seen] = {}
        self._leaders: dict[int, int] = {}  # by term
        self._begun: set[int] = set()  # terms that somebody ran for
        self._terms: dict[int, int] = {}  # of committed entries, by index
        self._digests: dict[int, tuple[str, Any]] = {}  # by applied index: whose, and which
        # What lives came through: a seed in which leaders never change finds little.
        self.coverage: Counter[str] = Counter(
            dict.fromkeys(("elections", "truncations", "snapshots received", "member changes"), 0)
        )

    @property
    def has_seen_leader(self) -> bool:
        return bool(self._leaders)

    def watch(self, process: Process) -> None:
        """Look at a process after something has happened to it. Raises ``Broken``."""
        node = process.node
        if node is None:
            return
        core = core_of(node)
        seen = self._seen.get(process.number)
        if seen is None:
            seen = self._seen[process.number] = _Seen()
        log = core.log
        if seen.life != process.life:
            self._begin_life(process, core, seen)
        if log.last != seen.last:
            self._note_end(core, seen)
        if (
            core.term == seen.term
            and core.vote == seen.vote
            and log.committed == seen.committed
            and log.applied == seen.applied
            and core.is_leader == seen.is_leader
        ):
            return
        self._judge_term(process, core, seen)
        if core.is_leader and not seen.is_leader:
            self._judge_leader(process, core)
            self._world.nemesis.ambush()
        elif core.vote != seen.vote and core.vote:
            self._world.nemesis.ambush()
        if log.committed != seen.committed:
            self._judge_commit(process, core, seen)
        if log.applied < seen.applied or log.applied > log.committed:
            raise Broken(f"{process.host} had applied {seen.applied}, now {log.applied}")
        if log.applied // DIGEST_GAP > seen.applied // DIGEST_GAP:
            self._compare_state(process, node)
        seen.term, seen.vote = core.term, core.vote
        seen.committed, seen.applied = log.committed, log.applied
        seen.is_leader = core.is_leader
        self.coverage["member changes"] += seen.configuration != core.configuration
        seen.configuration = core.configuration

    def _note_end(self, core: Raft, seen: _Seen) -> None:
        """Note where the log ends now, and whether entries were replaced since, or a snapshot came."""
        log = core.log
        if log.first > seen.last + 1:
            self.coverage["snapshots received"] += 1
        elif log.last < seen.last or not log.has(seen.last, seen.last_term):
            self.coverage["truncations"] += seen.last >= log.first
        seen.last, seen.last_term = log.last, log.last_term
        if log.has_two_changes_behind(log.committed):
            raise Broken(f"member {core.member} has two changes of members that nobody agreed on")

    def _begin_life(self, process: Process, core: Raft, seen: _Seen) -> None:
        # What it had not told anybody may be forgotten, a term it led in may not.
        has_led = self._leaders.get(seen.term) == process.number
        if core.term < seen.term and has_led and not process.is_damaged:
            raise Broken(f"{process.host} has forgotten term {seen.term}, in which it led")
        seen.life = process.life
        self._begun.add(core.term)
        seen.term, seen.vote = core.term, core.vote
        # What is committed is learned anew; the log itself must still hold it.
        seen.committed = seen.applied = 0
        seen.is_leader = False
        seen.configuration = core.configuration
        seen.last, seen.last_term = core.log.last, core.log.last_term

    def _judge_term(self, process: Process, core: Raft, seen: _Seen) -> None:
        if core.vote == core.member:
            self._begun.add(core.term)
        elif core.term not in self._begun:
            raise Broken(f"{process.host} has entered term {core.term}, which nobody ran for")
        if core.term < seen.term:
            raise Broken(f"the term of {process.host} fell from {seen.term} to {core.term}")
        if core.term == seen.term and seen.vote not in (0, core.vote):
            raise Broken(
                f"{process.host} voted for {seen.vote} and {core.vote} in term {core.term}"
            )

    def _judge_leader(self, process: Process, core: Raft) -> None:
        other = self._leaders.setdefault(core.term, process.number)
        if other != process.number:
            raise Broken(f"nodes {other} and {process.number} both lead in term {core.term}")
        self.coverage["elections"] += 1
        self._world.note(f"{process.host} leads in term {core.term}")
        self._world.recorder.happen(process.host, Op.LEAD)
        for index, term in self._terms.items():
            # One that is elected late, in a term that others have left behind, owes nothing to later terms.
            if index < core.log.first - 1 or term > core.term:
                continue
            if index > core.log.last or core.log.term(index) != term:
                raise Broken(
                    f"{process.host} leads in term {core.term} without entry {index} of term {term},"
                    " which is committed"
                )

    def _judge_commit(self, process: Process, core: Raft, seen: _Seen) -> None:
        log, before = core.log, seen.committed
        if log.committed < before:
            raise Broken(f"the commit of {process.host} fell from {before} to {log.committed}")
        for index in range(max(before + 1, log.first), log.committed + 1):
            term = log.term(index)
            known = self._terms.get(index)
            if known is None:
                self._note_committed(core, index, term)
            elif known != term:
                raise Broken(
                    f"entry {index} is committed with term {known}, on {process.host} with {term}"
                )
        if core.is_leader:
            led_before = seen.is_leader and seen.term == core.term
            if led_before and log.term(log.committed) != core.term:
                raise Broken(
                    f"{process.host} leads in term {core.term}, and counts entry {log.committed} of another term"
                )
            # What was committed may have changed the members already, in the same event.
            if not self._is_on_majority(core, seen.configuration):
                self._refuse_minority(core)
            for peer, progress in core.leadership.progress.items():  # type: ignore[union-attr]
                if progress.match >= progress.next:
                    raise Broken(f"{process.host} knows {peer} to have what it will send next")

    def _note_committed(self, core: Raft, index: int, term: int) -> None:
        self._terms[index] = term
        (entry,) = core.log.entries(index, index + 1, size_max=1)
        self._world.witness.entries[index - 1] = term, stored_payload(entry)

    def _refuse_minority(self, core: Raft) -> None:
        if not self._is_on_majority(core, core.configuration):
            index = core.log.committed
            raise Broken(
                f"entry {index} of term {core.log.term(index)} is committed by {core.member}, and not durable on a"
                f" majority of {core.configuration.voters} or {core.configuration.outgoing}"
            )

    def _is_on_majority(self, core: Raft, configuration: Configuration) -> bool:
        """Return whether the last committed entry is durable on majorities: the disks know, not the nodes."""
        index = core.log.committed
        term = core.log.term(index)
        for voters in (configuration.voters, configuration.outgoing):
            count = sum(1 for number in voters if self._has_durably(number, index, term))
            if voters and 2 * count <= len(voters):
                return False
        return True

    def _has_durably(self, number: int, index: int, term: int) -> bool:
        process = self._world.processes[number]
        if process.node is None or process.is_damaged:
            # Who acknowledged it and lost its machine since is judged when it is back, by the log it then has; who
            # lost its disk since, not at all.
            return True
        try:
            return is_durable(process, process.node, index, term)
        except StorageFailed:
            return True  # it is about to stop: judged when it is back, too

    def is_held_by_others(self, number: int) -> bool:
        """Return whether a majority of machines that keep what they synced has all that this one has."""
        seen, plan = self._seen.get(number), self._world.plan
        if seen is None:
            return True
        count = 0
        for other in range(1, plan.nodes + 1):
            process = self._world.processes[other]
            if process.node is not None and other not in plan.victims:
                count += is_durable(process, process.node, seen.last, seen.last_term)
        return 2 * count > plan.nodes

    def _compare_state(self, process: Process, node: Node) -> None:
        if process.snapshots is not None and process.snapshots.is_under_way:
            return  # one walk over the state at a time
        applied = int(node.replica.applied)
        digest = node.state_digest()
        whose, known = self._digests.setdefault(applied, (process.host, digest))
        if known != digest:
            raise Broken(f"{process.host} and {whose} differ in their state at entry {applied}")

    # At the end.

    def finish(self, history: Sequence[Operation]) -> None:
        """Judge everything. Raises ``Broken``."""
        self._compare_logs()
        for process in self._world.processes.values():
            if process.node is not None:
                self._compare_state(process, process.node)
        self._judge_history(history)

    def _compare_logs(self) -> None:
        """Every entry that two nodes hold is the same, byte by byte."""
        payloads: dict[int, tuple[int, bytes, str]] = {}
        for process in self._world.processes.values():
            if process.node is None:
                continue
            log = core_of(process.node).log
            first = log.first
            while first <= log.committed:
                entries = log.entries(first, log.committed + 1, size_max=2**20)
                for entry in entries:
                    own = entry.term, entry.payload, process.host
                    other = payloads.setdefault(entry.index, own)
                    if other[:2] != own[:2]:
                        raise Broken(f"{process.host} and {other[2]} differ in entry {entry.index}")
                first += len(entries)

    def _judge_history(self, history: Sequence[Operation]) -> None:
        is_jumpy = Fault.CLOCK in self._world.plan.faults
        # Nodes count whole milliseconds, so that a lease may end within the last one.
        lease_time = 0.0 if is_jumpy else (LEASE_MS - 1) * MILLISECOND
        # A node that is cut off learns late that a client has gone; the order itself is for the witness.
        report = delivery.check(
            history, is_drained=True, lease_time=lease_time, notice_time=math.inf
        )
        if report.violations:
            words = "; ".join(map(str, report.violations[:3]))
            raise Broken(f"the clients' history is wrong: {words}")
        try:
            violations = self._world.witness.judge(history)
        except NotInLog as error:
            raise Broken(str(error)) from None
        if violations:
            raise Broken(f"answers are not those of a queue: {'; '.join(map(str, violations[:3]))}")


def core_of(node: Node) -> Raft:
    assert node.group is not None
    return node.group.replica.group.core


def is_durable(process: Process, node: Node, index: int, term: int) -> bool:
    """Return whether an entry would survive a power cut, by what the simulated disk knows."""
    directory = node.directory
    point, log = directory.snapshot.point, directory.log
    place = index - 1  # as files count
    if point is not None and place <= point.index:
        return True
    assert isinstance(log, SegmentedLog)
    if not log.first <= place < log.end:
        return False
    # Not asked of the log itself: one whose disk has failed answers nothing, also before its node has heard of it.
    segment = log._segment_of(place)  # noqa: SLF001
    if segment.records.term(place - segment.first) != term:
        return False
    path, start, end = log_place(log, place)
    return process.files.is_synced(path, start, end)


def log_place(log: SegmentedLog, place: int) -> tuple[str, int, int]:
    """Return the file and the bytes in which a segmented log holds an entry."""
    segment = log._segment_of(place)  # noqa: SLF001 - the disk model wants bytes, which no interface names
    offsets = segment.records.offsets
    own = place - segment.first
    end = offsets[own + 1] if own + 1 < len(offsets) else segment.records.end
    return str(segment.path), offsets[own], end
