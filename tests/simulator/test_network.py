"""Simulated connections: in order until they break, then nothing."""

from __future__ import annotations

from random import Random

import pytest

from simulation.clock import MILLISECOND, SECOND, Timeline
from simulation.network import End, Network, Weather

ADDRESS = "n2:9000"


class Talk:
    """A connection from n1 to n2, and what came of it at both ends."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.near: End | None = None
        self.far: End | None = None
        self.heard: dict[str, list[bytes]] = {"n1": [], "n2": []}
        self.lost: list[str] = []
        self.failures = 0
        network.listen(ADDRESS, self._accept)
        network.connect("n1", ADDRESS, self._opened, self._failed)

    def _accept(self, end: End) -> None:
        self.far = end
        self._listen(end)
        end.write(b"welcome")

    def _opened(self, end: End) -> None:
        self.near = end
        self._listen(end)

    def _failed(self) -> None:
        self.failures += 1

    def _listen(self, end: End) -> None:
        end.on_data = self.heard[end.host].append
        end.on_lost = lambda: self.lost.append(end.host)


def open_talk(seed: int = 0, weather: Weather | None = None) -> Talk:
    network = Network(Timeline(), Random(seed))
    network.weather = weather or Weather(delay_min=MILLISECOND, delay_mean=5 * MILLISECOND)
    talk = Talk(network)
    network.timeline.run(SECOND)
    assert talk.near is not None
    return talk


def ends(talk: Talk) -> tuple[End, End]:
    assert talk.near is not None
    assert talk.far is not None
    return talk.near, talk.far


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_in_order_and_what_the_acceptor_says_first_is_not_lost(seed: int) -> None:
    talk = open_talk(seed)
    near, far = ends(talk)
    sent = [bytes([n]) for n in range(50)]
    for piece in sent:
        near.write(piece)
        far.write(piece)
    assert talk.heard["n2"] == []  # nothing arrives before its time
    talk.network.timeline.run(2 * SECOND)
    assert talk.heard == {"n1": [b"welcome", *sent], "n2": sent}


def test_nobody_listens_where_a_host_is_gone() -> None:
    network = Network(Timeline(), Random(1))
    talk = Talk(network)
    network.crash("n2")
    network.timeline.run(SECOND)
    assert (talk.near, talk.failures) == (None, 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_reset_loses_a_tail_and_both_sides_learn_of_it(seed: int) -> None:
    talk = open_talk(seed)
    near, _ = ends(talk)
    sent = [bytes([n]) for n in range(30)]
    for piece in sent:
        near.write(piece)
    talk.network.reset(near)
    near.write(b"too late")
    assert talk.lost == []  # nobody is told inside a call
    talk.network.timeline.run(3 * SECOND)
    heard = talk.heard["n2"]
    assert heard == sent[: len(heard)]
    assert sorted(talk.lost) == ["n1", "n2"]


def test_resets_lose_some_tails_and_leave_some_bytes() -> None:
    counts = set()
    for seed in range(30):
        talk = open_talk(seed)
        near, _ = ends(talk)
        for _ in range(30):
            near.write(b"x")
        talk.network.reset(near)
        talk.network.timeline.run(3 * SECOND)
        counts.add(len(talk.heard["n2"]))
    assert len(counts) > 3
    assert 0 < max(counts) < 30


def order_over_two_connections(seed: int) -> list[bytes]:
    """Say something, break the connection, say something else on a new one; return what was heard in which order."""
    talk = open_talk(seed, Weather(delay_min=0, delay_mean=50 * MILLISECOND))
    near, far = ends(talk)
    network, order = talk.network, list[bytes]()
    network.listen(ADDRESS, lambda end: setattr(end, "on_data", order.append))
    far.on_data = order.append
    for _ in range(5):
        near.write(b"old")
    network.reset(near)
    network.connect("n1", ADDRESS, lambda end: end.write(b"new"), lambda: None)
    network.timeline.run(5 * SECOND)
    return order


def test_bytes_of_a_broken_connection_may_arrive_behind_those_of_the_next() -> None:
    orders = [order_over_two_connections(seed) for seed in range(60)]
    assert any(b"old" in order[order.index(b"new") :] for order in orders if b"new" in order)


def test_a_cut_holds_one_direction_back_until_it_is_healed() -> None:
    talk = open_talk()
    near, far = ends(talk)
    network = talk.network
    network.cut("n1", "n2")
    near.write(b"held")
    far.write(b"passes")
    network.timeline.run(network.timeline.now + SECOND // 4)
    assert talk.heard == {"n1": [b"welcome", b"passes"], "n2": []}
    network.heal("n1", "n2")
    near.write(b"behind")
    network.timeline.run(network.timeline.now + SECOND)
    assert talk.heard["n2"] == [b"held", b"behind"]
    assert talk.lost == []


def test_a_connection_that_waits_too_long_breaks_and_a_new_one_times_out() -> None:
    talk = open_talk()
    network = talk.network
    network.cut("n1", "n2")
    network.cut("n1", "n2")  # two reasons
    network.timeline.run(network.timeline.now + 10 * SECOND)
    assert talk.lost == ["n1"]  # the news cannot get to the other side
    failures = list[int]()
    network.connect("n1", ADDRESS, lambda _: None, lambda: failures.append(network.timeline.now))
    network.timeline.run(network.timeline.now + 5 * SECOND)
    assert len(failures) == 1
    network.heal("n1", "n2")
    assert network.is_cut("n1", "n2")
    network.heal("n1", "n2")
    assert not network.is_cut("n1", "n2")
    network.timeline.run(network.timeline.now + 5 * SECOND)
    assert talk.lost == ["n1", "n2"]


def test_a_host_that_crashes_says_nothing_more_and_hears_nothing() -> None:
    talk = open_talk()
    near, far = ends(talk)
    near.write(b"to the dead")
    talk.network.crash("n2")
    far.write(b"from the dead")
    talk.network.timeline.run(5 * SECOND)
    assert talk.heard == {"n1": [b"welcome"], "n2": []}
    assert talk.lost == ["n1"]


def test_a_paused_host_hears_everything_when_it_goes_on() -> None:
    talk = open_talk()
    near, _ = ends(talk)
    gate = talk.network.gate("n2")
    gate.shut()
    near.write(b"a")
    near.write(b"b")
    talk.network.timeline.run(3 * SECOND)
    assert talk.heard["n2"] == []
    gate.open()
    assert talk.heard["n2"] == [b"a", b"b"]


def test_flipped_bits_change_one_bit_between_nodes_and_none_of_a_client() -> None:
    talk = open_talk()
    near, _ = ends(talk)
    talk.network.weather = Weather(flip=1.0)
    near.write(bytes(8))
    talk.network.timeline.run(3 * SECOND)
    (heard,) = talk.heard["n2"]
    assert int.from_bytes(heard, "big").bit_count() == 1
    near.host = "c1"
    near.write(bytes(8))
    talk.network.timeline.run(4 * SECOND)
    assert talk.heard["n2"][1] == bytes(8)


def test_a_clog_holds_the_whole_link_up() -> None:
    talk = open_talk()
    near, _ = ends(talk)
    start = talk.network.timeline.now
    talk.network.weather = Weather(clog=1.0, clog_max=4 * SECOND)
    near.write(b"x")
    talk.network.weather = Weather()
    near.write(b"y")
    while len(talk.heard["n2"]) < 2:
        talk.network.timeline.run(talk.network.timeline.now + 10 * MILLISECOND)
    assert talk.network.timeline.now - start > 100 * MILLISECOND
    assert talk.heard["n2"] == [b"x", b"y"]


def test_a_closed_connection_delivers_what_was_said_before() -> None:
    talk = open_talk()
    near, _ = ends(talk)
    near.write(b"last words")
    near.close()
    near.write(b"more")
    talk.network.timeline.run(3 * SECOND)
    assert talk.heard["n2"] == [b"last words"]
    assert talk.lost == ["n2"]
