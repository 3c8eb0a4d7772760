"""The order *write, sync, tell*: nothing is told before the disk has it, and what was told survives a power cut."""

from __future__ import annotations

import errno
from collections import Counter

import pytest

from penstock.errors import StorageFailed
from penstock.formats.taskflux.generation import Generation
from penstock.model import DEFAULT_QUEUE
from penstock.protocol import version2 as v2
from penstock.server.disk import LaterDisk
from penstock.testing.disk import Operation, crash_states
from server.test_rebuild import Told, payloads
from support.node_rig import Rig, rebuilt
from support.report import report

GENERATIONS = [Generation.TWO, Generation.THREE]


class Cut(Told):
    """A life with snapshots, and what was told after how many operations of the disk."""

    def __init__(self, generation: Generation, seed: int) -> None:
        super().__init__(generation, seed)
        self.account = [(len(self.rig.files.operations), self.known())]

    def snapshot(self) -> None:
        self.rig.snapshot()

    def restart(self) -> None:
        pass  # the recording disk goes on through it, but one start is enough here

    def step(self) -> None:
        super().step()
        self.account.append((len(self.rig.files.operations), self.known()))

    def known(self) -> Counter[bytes]:
        return payloads(self.rig.state)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_was_told_is_there_after_a_power_cut_at_any_operation(generation: Generation) -> None:
    count = 0
    for seed in (3, 11):
        life = Cut(generation, seed)
        for _ in range(32):
            life.step()
        account = life.account
        for crash in crash_states(life.rig.files, seed=seed, random_states=1):
            told = [place for place, row in enumerate(account) if row[0] <= crash.operations]
            if not told:
                continue  # the node had not come up yet
            last = told[-1]
            following = account[min(last + 1, len(account) - 1)]
            found = payloads(rebuilt(crash.image, generation))
            where = f"seed {seed}, after {crash.operations} operations, {crash.survived}"
            known, coming = account[last][1].keys(), following[1].keys()
            assert known & coming <= found.keys(), where
            assert found.keys() <= known | coming, where
            count += 1
    report(f"power cuts under the replica, generation {generation}: {count} states")


def test_nothing_is_told_before_the_disk_is_done() -> None:
    rig = Rig(Generation.THREE, later=LaterDisk())
    rig.sync()
    caller = rig.caller()
    numbers = [rig.send(caller, v2.Enqueue(DEFAULT_QUEUE, [n], [b"x"])) for n in range(3)]
    rig.replica.advance()
    numbers.append(rig.send(caller, v2.Enqueue(DEFAULT_QUEUE, [3], [b"x"])))
    rig.replica.advance()
    assert not caller.answers
    assert not len(rig.queue())
    assert rig.later is not None
    rig.later.run_one()  # what arrived while the disk was busy is one batch, and the next
    assert sorted(caller.answers) == numbers[:3]
    assert len(rig.queue()) == 3
    rig.later.run_one()
    assert sorted(caller.answers) == numbers
    assert not rig.later.waiting


@pytest.mark.parametrize("kind", ["write", "sync"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_disk_that_fails_ends_all_answers(generation: Generation, kind: str) -> None:
    rig = Rig(generation)
    caller = rig.caller()
    rig.ask(caller, v2.Enqueue(DEFAULT_QUEUE, [1], [b"kept"]))

    def fault(operation: Operation) -> None:
        if operation.kind == kind:
            raise OSError(errno.EIO, "Input/output error")

    rig.files.fault = fault
    number = rig.send(caller, v2.Enqueue(DEFAULT_QUEUE, [1], [b"unknown"]))
    rig.replica.advance()
    assert number not in caller.answers
    assert [type(failure) for failure in rig.failures] == [StorageFailed]
    rig.files.fault = None
    number = rig.send(caller, v2.Enqueue(DEFAULT_QUEUE, [1], [b"later"]))
    rig.replica.advance()  # the kernel may have dropped the page: a second try proves nothing
    assert number not in caller.answers
    assert len(rig.failures) == 1


def test_a_snapshot_gets_its_place_while_callers_never_pause() -> None:
    rig = Rig(Generation.THREE, later=LaterDisk())
    rig.sync()
    assert rig.later is not None
    caller = rig.caller()
    rig.send(caller, v2.Enqueue(DEFAULT_QUEUE, [0], [b"x"]))
    rig.replica.advance()
    rig.snapshot()
    for turn in range(6):
        rig.send(caller, v2.Enqueue(DEFAULT_QUEUE, [turn], [b"x"]))
        rig.replica.advance()
        rig.later.run_one()
    assert not rig.is_installing
    assert rig.directory.snapshot.point is not None
    rig.sync()
    assert rig.dump() == rig.rebuilt()


def test_a_snapshot_of_what_a_snapshot_holds_already_has_the_same_point() -> None:
    rig = Rig(Generation.TWO)
    rig.snapshot()
    point = rig.replica.snapshot_point()
    rig.snapshot()
    assert rig.directory.snapshot.point == point
    assert rig.dump() == rig.rebuilt()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_snapshot_keeps_the_delay_of_a_task_whose_purge_is_not_durable_yet(
    generation: Generation,
) -> None:
    rig = Rig(generation, later=LaterDisk())
    rig.sync()
    assert rig.later is not None
    caller = rig.caller()
    rig.send(caller, v2.Enqueue(DEFAULT_QUEUE, [0, 0], [b"x", b"y"], 10_000))
    rig.sync()
    rig.send(caller, v2.Enqueue(DEFAULT_QUEUE, [0], [b"z"]))
    rig.replica.advance()  # the disk is busy with it
    rig.send(caller, v2.Purge(DEFAULT_QUEUE))
    rig.snapshot()  # of a state in which both are on their way out, but not gone
    rig.later.run_one()
    rig.later.run_one()
    assert not rig.is_installing
    assert len(rig.queue()) == 3
    rig.later.waiting.clear()  # the power is cut before the log has the purge
    assert rig.rebuilt() == rig.dump()
    assert len(rig.queue().delays()) == 2


def test_a_chain_of_operations_does_not_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    # A purge in thousands of parts, each begun when the one before is told, on a disk that is done at once.
    monkeypatch.setattr("penstock.server.broker.PURGE_COUNT_MAX", 1)
    rig = Rig(Generation.THREE)
    caller = rig.caller()
    rig.ask(caller, v2.Enqueue(DEFAULT_QUEUE, [0] * 1500, [b""] * 1500))
    assert rig.ask(caller, v2.Purge(DEFAULT_QUEUE)) == v2.Purged(1500)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_start_begins_a_term_that_was_never_used(generation: Generation) -> None:
    rig = Rig(generation)
    terms = [rig.replica.group.term]
    for _ in range(3):
        rig.restart()
        terms.append(rig.replica.group.term)
        assert rig.directory.metadata.state.term == terms[-1]
        assert rig.directory.log.last_term == terms[-1]
    assert terms == sorted(set(terms))
