"""Time and chance of simulated worlds."""

from __future__ import annotations

from simulation.clock import SECOND, START_MS, Chance, Gate, NodeClock, Timeline


def test_events_happen_in_the_order_of_their_times_and_then_of_their_asking() -> None:
    timeline, seen = Timeline(), list[str]()
    timeline.after(20, lambda: seen.append("late"))
    timeline.after(10, lambda: seen.append("first"))
    timeline.after(10, lambda: seen.append("second"))
    timeline.run(15)
    assert (seen, timeline.now) == (["first", "second"], 15)
    timeline.run(100)
    assert (seen, timeline.now) == (["first", "second", "late"], 100)
    assert timeline.events == 3


def test_what_an_event_asks_for_now_happens_behind_what_is_due_already() -> None:
    timeline, seen = Timeline(), list[str]()
    timeline.at(5, lambda: timeline.at(0, lambda: seen.append("asked for")))
    timeline.at(5, lambda: seen.append("was due"))
    timeline.run(5)
    assert seen == ["was due", "asked for"]


def test_a_run_stops_behind_the_event_after_which_it_is_over() -> None:
    timeline, seen = Timeline(), list[int]()
    for number in range(5):
        timeline.after(number, lambda number=number: seen.append(number))  # type: ignore[misc]
    timeline.run(100, lambda: len(seen) == 3)
    assert (seen, timeline.now) == ([0, 1, 2], 2)


def test_streams_of_one_seed_do_not_shift_each_other() -> None:
    drawn = Chance(17).stream("disk")
    alone = [drawn.random() for _ in range(3)]
    chance = Chance(17)
    network, disk = chance.stream("network"), chance.stream("disk")
    between = []
    for _ in range(3):
        network.random()
        between.append(disk.random())
    assert between == alone
    assert [Chance(18).stream("disk").random()] != alone[:1]
    assert Chance(17).stream("network").random() != alone[0]


def test_a_gate_keeps_what_comes_while_it_is_shut_and_its_order() -> None:
    gate, seen = Gate(), list[int]()
    gate.run(lambda: seen.append(1))
    gate.shut()
    gate.run(lambda: seen.append(2))
    gate.run(gate.shut)  # shut anew by something that has waited
    gate.run(lambda: seen.append(3))
    assert seen == [1]
    gate.open()
    assert seen == [1, 2]
    gate.open()
    assert seen == [1, 2, 3]
    gate.shut()
    gate.run(lambda: seen.append(4))
    gate.forget()
    assert (seen, gate.is_shut) == ([1, 2, 3], False)


def test_clocks_drift_and_only_the_one_on_the_wall_jumps() -> None:
    timeline = Timeline()
    fast = NodeClock(timeline, drift=0.05)
    timeline.run(100 * SECOND)
    assert fast.wall_ms() == START_MS + 105_000
    assert fast.seconds() == 105.0
    assert fast.span(105 * SECOND) == 100 * SECOND
    fast.jumped_ms -= 5_000
    assert fast.wall_ms() == START_MS + 100_000
    assert fast.seconds() == 105.0
