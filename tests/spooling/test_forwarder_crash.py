"""A forwarder that ends at any step, and what the disk kept of it: nothing is lost, doubled or out of order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from penstock.formats.beats.task_event import encode_tasks
from penstock.server.embedded import EmbeddedNode
from penstock.spooling.forwarder import Forwarder
from penstock.spooling.identity import IdentityFile
from penstock.storage.spool import Spool, SpoolBatch
from penstock.testing.disk import MemoryFiles, crash_states_now
from spooling.world import (
    QUEUES,
    SMALL,
    Crash,
    Steps,
    Told,
    World,
    check,
    run_empty,
    some_tasks,
)


@dataclass
class Life:
    """Tasks that are spooled and sent, some now and some later."""

    tasks: Told
    promised: int = 0  # tasks whose publish has returned
    begun: int = 0

    def run(self, world: World) -> None:
        half = len(self.tasks) // 2
        with world.open() as spool:
            forwarder = world.forwarder(spool)
            self._publish(world, spool, half)
            forwarder.forward()
            self._publish(world, spool, len(self.tasks))
            run_empty(forwarder)
            forwarder.rest()
            forwarder.close()

    def _publish(self, world: World, spool: Spool, end: int) -> None:
        while self.promised < end:
            part = self.tasks[self.promised : min(end, self.promised + 15)]
            self.begun = self.promised + len(part)
            events = [
                encode_tasks(queue + world.suffix, [payload], [key], timestamp=1)
                for queue, key, payload in part
            ]
            spool.publish([event for (event,) in events])
            self.promised = self.begun

    def settled(self, world: World, words: str) -> Told:
        """Return the tasks that must be there: those that were promised, and of the rest those that are."""
        held = {payload for queue in QUEUES for _, payload in world.held(queue)}
        found = held | set(world.refused())
        assert {payload for _, _, payload in self.tasks[: self.promised]} <= found, words
        return [task for task in self.tasks[: self.begun] if task[2] in found]


def crash_and_go_on(node: EmbeddedNode, last: int, *, variant: int) -> None:
    """End a life at a step, open what one of the ways of losing power has left, and compare."""
    world = World(node, f"-{last}-{variant}")
    world.steps.last = last
    world.files.fault = world.steps.step
    life = Life(FEW_TASKS)
    with pytest.raises(Crash):
        life.run(world)
    states = list(crash_states_now(world.files, seed=last))
    state = states[variant % len(states)]
    world.files, world.steps = MemoryFiles(state.image), Steps()
    with world.open() as spool:
        run_empty(world.forwarder(spool))
    sent = life.settled(world, f"step {last}, {state.survived}")
    with world.open() as spool:
        assert run_empty(world.forwarder(spool)) == 0
    check(world, sent, refused_once=False)
    world.close()


STRIDE = 3
"""Of so many steps one is tried in the normal suite; the heavy one tries each, with every kind of loss."""

FEW_TASKS = some_tasks(90, seed=11)


def count_steps(node: EmbeddedNode) -> int:
    world = World(node, "-counting")
    world.files.fault = world.steps.step
    Life(FEW_TASKS).run(world)
    count = world.steps.count
    check(world, FEW_TASKS)
    world.close()
    return count


def test_a_crash_at_any_step_loses_doubles_and_reorders_nothing(node: EmbeddedNode) -> None:
    """Steps are: every file operation, before each request, after each answer."""
    count = count_steps(node)
    assert count > 60
    for last in range(1, count + 1, STRIDE):
        crash_and_go_on(node, last, variant=last)


def test_a_crash_loses_nothing_where_a_round_is_read_in_parts_and_every_acknowledgement_is_saved(
    node: EmbeddedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position within a round would be where no round begins: its requests would have other numbers."""
    monkeypatch.setattr("penstock.spooling.forwarder.READ_COUNT", 7)
    monkeypatch.setattr(World.open, "__defaults__", (replace(SMALL, ack_window=0),))
    for last in range(2, count_steps(node) + 1, STRIDE):
        crash_and_go_on(node, last, variant=last)


@pytest.mark.heavy
@pytest.mark.parametrize("variant", range(12))
def test_a_crash_at_any_step_and_of_any_kind(node: EmbeddedNode, variant: int) -> None:
    for last in range(1, count_steps(node) + 1):
        crash_and_go_on(node, last, variant=variant)


def save_nothing(self: Spool, **_: object) -> None:
    """A round whose end nobody knows."""


def never_the_same(self: IdentityFile, tell: object) -> bool:
    """A producer that the node has never heard of."""
    return False


def acknowledge_oldest_first(self: Spool, batch: SpoolBatch) -> None:
    """Save a position within a round."""
    waiting = self.__dict__.setdefault("test_batches", [])
    waiting.append(batch)
    if batch.number == min(self._out):
        for one in reversed(waiting):
            real_acknowledge(self, one)
        waiting.clear()


real_acknowledge = Spool.acknowledge


def acknowledge_first(self: Forwarder) -> int:
    """Acknowledge a round before it is sent."""
    under_way = self._next_round()
    if under_way is None:
        return 0
    for batch in under_way.batches:
        self._spool.acknowledge(batch)
    self._spool.save()
    for wave in under_way.waves:
        self._send(under_way, wave)
    return under_way.round.count


@pytest.mark.parametrize(
    ("what", "name", "wrong"),
    [
        (Spool, "save", save_nothing),
        (IdentityFile, "read", never_the_same),
        (Forwarder, "forward", acknowledge_first),
        (Spool, "acknowledge", acknowledge_oldest_first),
    ],
)
def test_a_wrong_forwarder_is_found_out(
    node: EmbeddedNode, monkeypatch: pytest.MonkeyPatch, what: type, name: str, wrong: object
) -> None:
    monkeypatch.setattr("penstock.spooling.forwarder.READ_COUNT", 7)
    monkeypatch.setattr(World.open, "__defaults__", (replace(SMALL, ack_window=0),))
    count = count_steps(node)
    monkeypatch.setattr(what, name, wrong)

    def is_found_out(last: int) -> bool:
        try:
            crash_and_go_on(node, last, variant=0)
        except AssertionError:
            return True
        except pytest.fail.Exception:  # it has fewer steps than the right one
            return False
        return False

    assert any(is_found_out(last) for last in range(count, 0, -1))
