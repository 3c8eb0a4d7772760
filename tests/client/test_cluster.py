"""Clients of a group: they find the leader, follow it, and repeat what may be repeated."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

import pytest

import penstock
from client.fake_node import FakeNode, fake_node
from penstock import aio
from penstock.client.blocking import Client
from penstock.model import QueueName
from penstock.protocol import version2 as v2

DEFAULT = QueueName("")
NOBODY = v2.not_leader(-1, None)
UNKNOWN = v2.Failed(v2.Failure.OUTCOME_UNKNOWN, "leadership changed")


@pytest.fixture
def other(node: FakeNode) -> Iterator[FakeNode]:
    """A second node of the group of the first."""
    with fake_node() as other:
        other.share(node)
        yield other


def led_by(node: FakeNode, number: int = 2) -> v2.Failed:
    return v2.not_leader(number, node.address)


def payloads(node: FakeNode) -> list[bytes]:
    return [task[2] for task in node.queues[DEFAULT].tasks]


def status(node: FakeNode, leader: FakeNode | None, *, seen_by: int = 1) -> v2.ClusterInfo:
    """Return what a node says of a group of two: itself, and who leads if that is another one."""
    members = {1: node.address} if leader is None else {1: node.address, 2: leader.address}
    return v2.ClusterInfo(
        node=seen_by,
        leader=None if leader is None else 2,
        role="leader" if seen_by == 2 else "follower",
        is_leading=seen_by == 2,
        is_joint=False,
        term=3,
        first=0,
        last=9,
        committed=9,
        applied=9,
        members=tuple(
            v2.ClusterMember(
                node=number,
                address="",
                client_address=address,
                standing="voter",
                is_leader=number == 2,
                is_self=number == seen_by,
            )
            for number, address in members.items()
        ),
    )


# --- finding the leader --------------------------------------------------------------------------


def test_a_leader_that_was_not_in_the_list_is_found(node: FakeNode, other: FakeNode) -> None:
    other.refuses = led_by(node)
    with penstock.connect(other.address, retry=5) as client:
        assert client.enqueue("", b"x") == 1
        assert client.stat("").count == 1
    assert (other.count(v2.Enqueue), node.count(v2.Enqueue)) == (1, 1)
    assert other.count(v2.Stat) == 0, "it went back to a node that does not lead"


def test_an_asyncio_client_finds_it_too(node: FakeNode, other: FakeNode) -> None:
    other.refuses = led_by(node)

    async def main() -> None:
        async with asyncio.timeout(20), aio.connect(other.address, retry=5) as client:
            ids = await asyncio.gather(*[client.enqueue("", b"%d" % n) for n in range(20)])
            assert sorted(ids) == list(range(1, 21))

    asyncio.run(main())
    assert len(payloads(node)) == 20


def test_the_only_known_node_is_asked_again_until_it_leads(client: Client, node: FakeNode) -> None:
    refusals = [NOBODY] * 3
    node.script = lambda _request: refusals.pop() if refusals else None
    assert client.enqueue("", b"x") == 1
    assert (node.count(v2.Enqueue), node.greetings) == (4, 1)


def test_who_finds_no_leader_hears_so_in_the_end(node: FakeNode, other: FakeNode) -> None:
    """Two nodes that send a client to each other are asked with pauses between, not in a storm."""
    node.refuses, other.refuses = led_by(other), led_by(node)
    addresses = f"{node.address},{other.address}"
    with (
        penstock.connect(addresses, retry=0.5) as client,
        pytest.raises(penstock.NotLeader) as caught,
    ):
        client.enqueue("", b"x")
    assert caught.value.leader == 2
    assert caught.value.address in (node.address, other.address)
    assert 2 <= node.greetings + other.greetings < 40


def test_a_leader_that_is_gone_is_not_believed_in(node: FakeNode, other: FakeNode) -> None:
    with fake_node() as third:
        gone = third.address
    other.refuses = v2.not_leader(3, gone)
    with penstock.connect(f"{other.address},{node.address}", retry=5) as client:
        client.enqueue("", b"x")
    assert payloads(node) == [b"x"]


def test_a_refusal_that_came_late_does_not_drive_away_from_the_new_leader(
    node: FakeNode, other: FakeNode
) -> None:
    other.refuses = led_by(node)
    with penstock.connect(other.address, retry=5) as client:
        left = client._link.number
        client.enqueue("", b"x")
        assert client._leave(left, other.address)
        client.enqueue("", b"y")
    assert node.greetings == 1


def test_what_is_under_way_on_a_connection_that_is_left_is_still_answered(
    node: FakeNode, other: FakeNode
) -> None:
    """Else an ack or a purge of another thread would have an unknown outcome for no reason."""
    with penstock.connect(other.address, retry=5) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.dequeue_many, "", 1, wait=10)
        other.wait_for(lambda: other.count(v2.Dequeue) == 1)
        client._leave(client._link.number, node.address)
        client.ping()
        assert node.count(v2.Ping) == 1
        with other.changed:
            other.queues[DEFAULT].tasks.append((0, 7, b"late"))
            other._deliver()
        (delivery,) = waiting.result(10)
        assert delivery.payload == b"late"
        with pytest.raises(penstock.LeaseLost):
            client.ack(delivery)
    other.wait_for(lambda: not other._peers)


def test_a_closed_client_lets_nobody_wait_on_a_connection_that_was_left(
    node: FakeNode, other: FakeNode
) -> None:
    with ThreadPoolExecutor(1) as pool:
        client = penstock.connect(other.address, retry=5)
        waiting = pool.submit(client.dequeue_many, "", 1, wait=60)
        other.wait_for(lambda: other.count(v2.Dequeue) == 1)
        client._leave(client._link.number, node.address)
        client.close()
        with pytest.raises(penstock.ConnectionFailed, match="closed"):
            waiting.result(10)


# --- outcomes that are unknown -------------------------------------------------------------------


def test_an_enqueue_of_unknown_outcome_is_repeated_and_counts_once(
    node: FakeNode, other: FakeNode
) -> None:
    def lose(request: v2.Request) -> v2.Answer | None:
        if not isinstance(request, v2.Enqueue):
            return None
        other.refuses = led_by(node)
        other._enqueue(other.queues[request.queue], request)
        return UNKNOWN

    other.script = lose
    with penstock.connect(f"{other.address},{node.address}", retry=5) as client:
        assert client.enqueue("", b"x") == 1
    assert payloads(node) == [b"x"]
    assert [each for each in node.requests if isinstance(each, v2.Enqueue)] == [
        each for each in other.requests if isinstance(each, v2.Enqueue)
    ]


def test_many_enqueues_stay_in_order_over_a_change_of_leader(
    node: FakeNode, other: FakeNode
) -> None:
    """Eight frames are on their way when the leader loses its office: some done, some not, some refused."""
    seen = 0

    def lose(request: v2.Request) -> v2.Answer | None:
        nonlocal seen
        if not isinstance(request, v2.Enqueue):
            return None
        seen += 1
        if seen == 3:
            other._enqueue(other.queues[request.queue], request)
        if seen in (3, 4):
            return UNKNOWN
        if seen == 5:
            other.refuses = led_by(node)
        return None

    other.script = lose
    bodies = [b"%d" % number for number in range(20_000)]
    with penstock.connect(f"{other.address},{node.address}", retry=5) as client:
        ids = client.enqueue_many("", bodies)
    assert ids == list(range(1, 20_001))
    assert payloads(node) == bodies


# --- without repetition --------------------------------------------------------------------------


def numbered(*bodies: bytes) -> list[v2.Enqueue]:
    return [
        v2.Enqueue(DEFAULT, [0], [body], producer=v2.Producer(b"p" * v2.PRODUCER_SIZE, number + 1))
        for number, body in enumerate(bodies)
    ]


WAYS = {
    "enqueue": lambda client: client.enqueue("", b"x"),
    "enqueue_many": lambda client: client.enqueue_many("", [b"x"]),
    "enqueue_numbered": lambda client: client.enqueue_numbered(numbered(b"x")),
}


def once(face: str, addresses: str, way: str) -> None:
    """Enqueue one task by a client that repeats nothing."""
    if face == "blocking":
        with penstock.connect(addresses, retry=0.0) as client:
            WAYS[way](client)
        return

    async def main() -> None:
        async with asyncio.timeout(20), aio.connect(addresses, retry=0.0) as client:
            await WAYS[way](client)

    asyncio.run(main())


faces = pytest.mark.parametrize("face", ["blocking", "asyncio"])
ways = pytest.mark.parametrize("way", WAYS)


@faces
@ways
def test_a_client_that_repeats_nothing_follows_the_leader_once(
    node: FakeNode, other: FakeNode, face: str, way: str
) -> None:
    other.refuses = led_by(node)
    once(face, f"{other.address},{node.address}", way)
    assert payloads(node) == [b"x"]
    assert (other.count(v2.Enqueue), node.count(v2.Enqueue)) == (1, 1)


@faces
@ways
def test_it_does_not_follow_a_second_time(
    node: FakeNode, other: FakeNode, face: str, way: str
) -> None:
    node.refuses, other.refuses = led_by(other), led_by(node)
    with pytest.raises(penstock.NotLeader):
        once(face, f"{other.address},{node.address}", way)
    assert (other.count(v2.Enqueue), node.count(v2.Enqueue)) == (1, 1)


@faces
@ways
def test_it_repeats_nothing_of_unknown_outcome(
    node: FakeNode, other: FakeNode, face: str, way: str
) -> None:
    other.refuses = UNKNOWN
    with pytest.raises(penstock.ConnectionLost, match="look before repeating"):
        once(face, f"{other.address},{node.address}", way)
    assert (other.count(v2.Enqueue), node.count(v2.Enqueue)) == (1, 0)


@faces
@ways
def test_what_a_leader_that_was_followed_left_unknown_is_told_as_such(
    node: FakeNode, other: FakeNode, face: str, way: str
) -> None:
    other.refuses, node.refuses = led_by(node), UNKNOWN
    with pytest.raises(penstock.ConnectionLost, match="look before repeating"):
        once(face, f"{other.address},{node.address}", way)
    assert (other.count(v2.Enqueue), node.count(v2.Enqueue)) == (1, 1)


@faces
@ways
def test_a_refusal_is_no_unknown_outcome_when_the_leader_is_gone(
    other: FakeNode, face: str, way: str
) -> None:
    with fake_node() as third:
        gone = third.address
    other.refuses = v2.not_leader(3, gone)
    with pytest.raises((penstock.NotLeader, penstock.Unreachable)):
        once(face, other.address, way)


@faces
def test_all_of_a_window_follow_the_leader_in_their_order(
    node: FakeNode, other: FakeNode, face: str
) -> None:
    other.refuses = led_by(node)
    bodies = [b"%d" % number for number in range(20_000)]
    addresses = f"{other.address},{node.address}"
    if face == "blocking":
        with penstock.connect(addresses, retry=0.0) as client:
            client.enqueue_many("", bodies)
    else:

        async def main() -> None:
            async with asyncio.timeout(20), aio.connect(addresses, retry=0.0) as client:
                await client.enqueue_many("", bodies)

        asyncio.run(main())
    assert payloads(node) == bodies


def test_a_purge_of_unknown_outcome_is_told_and_not_repeated(
    client: Client, node: FakeNode
) -> None:
    node.script = lambda request: UNKNOWN if isinstance(request, v2.Purge) else None
    with pytest.raises(penstock.ConnectionLost, match=r"purge took effect is unknown"):
        client.purge("")
    assert node.count(v2.Purge) == 1
    client.ping()


def test_a_queue_whose_creation_had_an_unknown_outcome_is_looked_at(
    client: Client, node: FakeNode
) -> None:
    def lose(request: v2.Request) -> v2.Answer | None:
        if isinstance(request, v2.Create) and node.count(v2.Create) == 1:
            node._create(request)
            return UNKNOWN
        return None

    node.script = lose
    client.create_queue("q", size_max=5)
    assert node.count(v2.Create) == 2


# --- leases --------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [NOBODY, UNKNOWN])
def test_leases_of_a_leader_that_was_are_lost_and_told(
    client: Client, node: FakeNode, refusal: v2.Failed
) -> None:
    client.enqueue("", b"x")
    (delivery,) = client.dequeue_many("", 1)
    node.script = lambda request: refusal if isinstance(request, v2.Ack) else None
    expected = penstock.LeaseLost if refusal is NOBODY else penstock.ConnectionLost
    with pytest.raises(expected):
        client.ack(delivery)
    assert node.count(v2.Ack) == 1


def test_a_subscription_goes_on_with_the_new_leader(node: FakeNode, other: FakeNode) -> None:
    with penstock.connect(f"{other.address},{node.address}", retry=5) as client:
        client.enqueue_many("", [b"%d" % number for number in range(10)])
        with client.subscribe("", prefetch=4) as subscription:
            held = list(islice(subscription, 2))
            other.step_down(led_by(node))
            # What the old leader had sent ahead may still be handed out; its acks are lost too.
            held += islice(subscription, 2)
            seen = []
            for delivery in islice(subscription, 10):
                subscription.ack(delivery)
                seen.append(delivery.payload)
            assert seen == [b"%d" % number for number in range(10)]
            subscription.ack(held)
            with pytest.raises(penstock.LeaseLost) as caught:
                subscription.flush()
            assert list(caught.value.deliveries) == held
            assert subscription.lost_count == 4
    assert payloads(node) == []
    assert node.count(v2.Subscribe) == 1


def test_an_asyncio_subscription_goes_on_too(node: FakeNode, other: FakeNode) -> None:
    async def main() -> list[bytes]:
        async with asyncio.timeout(20), aio.connect(other.address, retry=5) as client:
            await client.enqueue_many("", [b"%d" % number for number in range(10)])
            seen: list[bytes] = []
            async with client.subscribe("", prefetch=1) as subscription:
                await anext(subscription)
                other.step_down(led_by(node))
                async for delivery in subscription:
                    await subscription.ack(delivery)
                    seen.append(delivery.payload)
                    if len(seen) == 10:
                        break
            return seen

    assert asyncio.run(main()) == [b"%d" % number for number in range(10)]


def test_a_subscription_gives_up_when_nobody_leads_for_too_long(node: FakeNode) -> None:
    node.refuses = NOBODY
    with penstock.connect(node.address, retry=0.3) as client:
        subscription = client.subscribe("")
        with pytest.raises(penstock.NotLeader):
            next(subscription)
    assert 1 <= node.count(v2.Subscribe) < 40


def test_a_worker_goes_on_with_the_new_leader(node: FakeNode, other: FakeNode) -> None:
    stop = threading.Event()
    done: list[bytes] = []

    @penstock.worker("", concurrency=2)
    def work(delivery: penstock.Delivery) -> None:
        if len(done) == 3:
            other.step_down(led_by(node))
        done.append(delivery.payload)
        if len(set(done)) == 20:
            stop.set()

    with penstock.connect(f"{other.address},{node.address}", retry=5) as client:
        client.enqueue_many("", [b"%d" % number for number in range(20)])
        work.run(client, stop)
    assert payloads(node) == []
    assert len(done) < 30


# --- what is said of the group -------------------------------------------------------------------


def test_the_cluster_is_asked_of_its_leader(node: FakeNode, other: FakeNode) -> None:
    other.cluster, node.cluster = status(other, node), status(other, node, seen_by=2)
    with penstock.connect(other.address, retry=5) as client:
        assert client.cluster(own=True) == other.cluster
        assert client.cluster() == node.cluster
        assert client.cluster() == node.cluster
    assert (other.count(v2.Cluster), node.count(v2.Cluster)) == (2, 2)


def test_a_leader_that_cannot_be_asked_is_described_by_another_node(node: FakeNode) -> None:
    with fake_node() as gone:
        node.cluster = status(node, gone)
    with penstock.connect(node.address, retry=5) as client:
        assert client.cluster() == node.cluster
        client.ping()


def test_addresses_that_a_node_told_are_used_when_it_is_gone(other: FakeNode) -> None:
    with fake_node() as told:
        told.share(other)
        told.script = lambda request: (
            v2.NodeInfo(
                node=1,
                leader=1,
                version="",
                generation=3,
                term=1,
                first=0,
                committed=-1,
                frame_size_max=1,
                payload_size_max=1,
                addresses=(told.address, other.address),
            )
            if isinstance(request, v2.Node)
            else None
        )
        client = penstock.connect(told.address, retry=5)
        client.node()
    with client:
        assert client.enqueue("", b"x") == 1
    assert other.count(v2.Enqueue) == 1


def test_members_are_changed_and_leadership_is_transferred(client: Client, node: FakeNode) -> None:
    client.change_members(learners={4: "n4:2702"}, voters={5: ""}, remove=[3])
    client.transfer(2)
    step = v2.MemberStep
    assert node.requests == [
        v2.ChangeMembers(
            [
                v2.MemberChange(step.VOTER, 5),
                v2.MemberChange(step.LEARNER, 4, "n4:2702"),
                v2.MemberChange(step.REMOVE, 3),
            ]
        ),
        v2.Transfer(2),
    ]


def test_asyncio_has_the_same_names(node: FakeNode) -> None:
    node.cluster = status(node, None)

    async def main() -> None:
        async with asyncio.timeout(20), aio.connect(node.address) as client:
            assert await client.cluster() == node.cluster
            await client.change_members(remove=[3])
            await client.transfer(2)

    asyncio.run(main())
    assert [type(request) for request in node.requests] == [
        v2.Cluster,
        v2.ChangeMembers,
        v2.Transfer,
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "1 to 64 steps"),
        ({"voters": {0: "a:1"}}, "a node's number is a whole number from 1"),
        ({"voters": {"1": "a:1"}}, "a node's number is a whole number from 1"),
        ({"learners": {1: "a"}}, "node 1 needs HOST:PORT"),
        ({"learners": {1: None}}, "node 1 needs an address"),
        ({"learners": {1: "a:1#b"}}, "node 1 needs HOST:PORT"),
        ({"voters": {1: "a:1"}, "remove": [1]}, "names a node twice"),
    ],
)
def test_a_change_that_means_nothing_is_not_sent(
    client: Client, node: FakeNode, change: dict[str, object], words: str
) -> None:
    with pytest.raises(penstock.InvalidValue, match=words):
        client.change_members(**change)  # type: ignore[arg-type]
    with pytest.raises(penstock.InvalidValue):
        client.transfer(0)
    assert node.requests == []


def test_a_change_that_is_refused_says_why(client: Client, node: FakeNode) -> None:
    failed = v2.Failed(v2.Failure.CHANGE_REFUSED, "another change is under way")
    node.script = lambda _request: failed
    with pytest.raises(penstock.RequestRefused, match="another change is under way"):
        client.change_members(remove=[3])
    assert len(node.requests) == 1


def test_a_change_whose_outcome_is_unknown_is_not_repeated(client: Client, node: FakeNode) -> None:
    node.drop(v2.ChangeMembers, applied=True)
    with pytest.raises(penstock.ConnectionLost, match="unknown"):
        client.change_members(remove=[3])
    with suppress(penstock.ConnectionLost):
        client.ping()
    assert node.count(v2.ChangeMembers) == 1
