"""Which node a client turns to next; without a socket."""

from __future__ import annotations

from itertools import islice

from penstock.client.addresses import ADDRESSES_MAX, parse_addresses
from penstock.client.nodes import CONNECT_SECONDS_MAX, GONE_SECONDS, Nodes, Way


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def nodes_at(text: str, clock: Clock | None = None) -> Nodes:
    return Nodes(parse_addresses(text), clock=clock or Clock())


def tried(nodes: Nodes, count: int | None = None) -> list[str]:
    return [address.host for address in islice(nodes.candidates(), count)]


def test_nodes_are_tried_in_turns_each_once() -> None:
    nodes = nodes_at("a,b,c")
    assert tried(nodes, 1) == ["a"]
    assert tried(nodes, 1) == ["b"]
    assert tried(nodes) == ["c", "a", "b"]
    assert tried(nodes) == ["c", "a", "b"]


def test_a_leader_that_was_named_is_tried_before_the_others_and_once() -> None:
    nodes = nodes_at("a,b,c")
    assert tried(nodes, 1) == ["a"]
    assert nodes.turn("c:2602") is Way.LEADER
    assert tried(nodes) == ["c", "b", "a"]
    assert tried(nodes, 1) == ["b"]


def test_a_leader_that_nobody_knew_is_known_from_then_on() -> None:
    nodes = nodes_at("a")
    assert tried(nodes, 1) == ["a"]
    assert nodes.turn("z:1") is Way.LEADER
    assert tried(nodes) == ["z", "a"]
    assert sorted(tried(nodes)) == ["a", "z"]


def test_without_a_name_the_next_node_is_asked_if_there_is_one() -> None:
    assert nodes_at("a,b").turn(None) is Way.NEXT
    assert nodes_at("a,b").turn("") is Way.NEXT
    assert nodes_at("a").turn(None) is Way.NOWHERE


def test_an_address_that_means_nothing_is_passed_over() -> None:
    nodes = nodes_at("a")
    for text in ("", "node 2 leads", "http://b", "b:0", "b,c", ":1"):
        assert nodes.turn(text) is Way.NOWHERE
    nodes.learn(["", "b:x"])
    assert tried(nodes) == ["a"]


def test_a_node_that_names_itself_is_about_to_lead_and_is_waited_for() -> None:
    nodes = nodes_at("a,b")
    assert tried(nodes, 1) == ["a"]
    assert nodes.turn("a:2602") is Way.NOWHERE


def test_a_leader_that_has_just_not_answered_is_not_asked_again_because_others_believe_in_it() -> (
    None
):
    clock = Clock()
    nodes = nodes_at("a,b,c", clock)
    assert tried(nodes, 1) == ["a"]
    nodes.note_gone()
    assert tried(nodes, 1) == ["b"]
    assert nodes.turn("a:2602") is Way.NEXT
    clock.now += GONE_SECONDS
    assert nodes.turn("a:2602") is Way.LEADER


def test_whoever_is_passed_over_while_connecting_counts_as_gone() -> None:
    nodes = nodes_at("a,b")
    assert tried(nodes, 2) == ["a", "b"]
    assert nodes.turn("a:2602") is Way.NEXT


def test_what_is_learned_is_bounded() -> None:
    nodes = nodes_at("a")
    nodes.learn(f"n{number}:1" for number in range(10_000))
    assert len(tried(nodes)) == ADDRESSES_MAX
    assert nodes.turn("one-more:1") is Way.NEXT


def test_one_of_several_gets_less_time_than_the_only_one() -> None:
    assert nodes_at("a").patience(10.0) == 10.0
    assert nodes_at("a,b").patience(10.0) == CONNECT_SECONDS_MAX
    assert nodes_at("a,b").patience(0.5) == 0.5
