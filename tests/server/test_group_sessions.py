"""What callers of both versions hear from the nodes of a group, leading or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model import Policy, QueueName
from penstock.protocol import version1 as v1
from penstock.protocol import version2 as v2
from penstock.protocol.frames import FrameReader
from penstock.protocol.version2 import Failure
from penstock.server.disk import InlineDisk
from penstock.server.node import Node
from penstock.server.session2 import Session2
from penstock.server.settings import Settings
from support.memory_group import MemoryGroup

DEFAULT = QueueName("")
ORDERS = QueueName("orders")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[MemoryGroup]:
    """Three nodes, of which node 2 leads."""
    group = MemoryGroup(tmp_path)
    assert group.elect(2) == 2
    yield group
    group.close()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemoryGroup]:
    """The same, for all tests that leave it as it is."""
    group = MemoryGroup(tmp_path_factory.mktemp("calm"))
    assert group.elect(2) == 2
    yield group
    group.close()


def enqueue(payload: bytes = b"x", sequence: int | None = None) -> v2.Enqueue:
    producer = None if sequence is None else v2.Producer(bytes(16), sequence)
    return v2.Enqueue(DEFAULT, (0,), [payload], producer=producer)


# --- version 2 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        enqueue(),
        enqueue(sequence=1),
        v2.Dequeue(DEFAULT),
        v2.Ack((1,)),
        v2.Nack((1,)),
        v2.Extend((1,), 5),
        v2.Subscribe(DEFAULT, 1),
        v2.Peek(DEFAULT),
        v2.Purge(DEFAULT),
        v2.Create(ORDERS, Policy()),
        v2.Delete(ORDERS),
        v2.Stat(),
        v2.ChangeMembers([v2.MemberChange(v2.MemberStep.REMOVE, 3)]),
        v2.Transfer(3),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_node_that_does_not_lead_tells_where_the_leader_is(
    calm: MemoryGroup, request_: v2.Request
) -> None:
    assert calm.caller2(1).ask(request_) == v2.Failed(Failure.NOT_LEADER, "n2:2602", 2)


def test_many_small_enqueues_are_refused_one_by_one(calm: MemoryGroup) -> None:
    caller = calm.caller2(3)
    frames = b"".join(v2.encode_request(enqueue(), number) for number in range(1, 6))
    caller.session.receive(frames)
    caller.session.flush()
    refusal = v2.not_leader(2, "n2:2602")
    assert caller.answers == [(number, refusal) for number in range(1, 6)]
    assert caller.session.in_flight_size == 0


def test_a_group_without_a_leader_says_so(group: MemoryGroup) -> None:
    group.cut = {2, 3}
    group.wait(lambda: group.caller2(1).ask(v2.Stat()) == v2.not_leader(-1, None))


def test_any_node_answers_what_needs_no_leader(calm: MemoryGroup) -> None:
    assert isinstance(calm.caller2(2).ask(enqueue(b"hello")), v2.Enqueued)
    calm.tick(3)
    caller = calm.caller2(1)
    assert caller.ask(v2.Ping()) == v2.Ok()
    info = caller.ask(v2.Node())
    assert isinstance(info, v2.NodeInfo)
    assert (info.node, info.leader) == (1, 2)
    assert info.addresses == ("n1:2602", "n2:2602", "n3:2602")
    entries = caller.ask(v2.Read(0))
    assert isinstance(entries, v2.Entries)
    assert entries.committed == info.committed
    assert b"hello" in entries.payloads[-1]


def test_each_node_describes_the_group_and_the_leader_its_progress(calm: MemoryGroup) -> None:
    led = calm.caller2(2).ask(v2.Cluster())
    seen = calm.caller2(3).ask(v2.Cluster())
    assert isinstance(led, v2.ClusterInfo)
    assert isinstance(seen, v2.ClusterInfo)
    assert (led.role, led.is_leading, led.leader) == ("leader", True, 2)
    assert (seen.role, seen.is_leading, seen.leader) == ("follower", False, 2)
    for info, node in ((led, 2), (seen, 3)):
        assert info.node == node
        assert [member.node for member in info.members if member.is_self] == [node]
        assert [member.node for member in info.members if member.is_leader] == [2]
        assert [member.client_address for member in info.members] == [
            "n1:2602",
            "n2:2602",
            "n3:2602",
        ]
        assert [member.address for member in info.members] == list(calm.peers.values())
        assert {member.standing for member in info.members} == {"voter"}
    assert [(member.match, member.lag) for member in led.members] == [(led.last, 0)] * 3
    assert {member.pace for member in led.members if not member.is_self} == {"replicate"}
    assert {(member.match, member.pace) for member in seen.members} == {(None, None)}


def test_a_subscription_and_a_dequeue_that_waits_end_with_the_leader(group: MemoryGroup) -> None:
    caller = group.caller2(2)
    subscription = caller.send(v2.Subscribe(DEFAULT, 10))
    waiting = caller.send(v2.Dequeue(DEFAULT, wait_ms=60_000))
    group.tick()
    assert caller.answer(subscription) == v2.Ok()
    group.elect(3)
    refused = [
        number
        for number, answer in caller.answers
        if isinstance(answer, v2.Failed) and answer.code == Failure.NOT_LEADER
    ]
    assert sorted(refused) == [subscription, waiting]
    assert isinstance(caller.ask(v2.Unsubscribe(subscription)), v2.Failed)


def test_leases_end_with_the_leader_and_the_task_comes_again(group: MemoryGroup) -> None:
    caller = group.caller2(2)
    caller.ask(enqueue(b"task"))
    delivered = caller.ask(v2.Dequeue(DEFAULT))
    assert isinstance(delivered, v2.Delivered)
    group.elect(1)
    assert caller.ask(v2.Ack((delivered.token,))) == v2.not_leader(1, "n1:2602")
    again = group.caller2(1).ask(v2.Dequeue(DEFAULT))
    assert isinstance(again, v2.Delivered)
    assert (again.ids, again.payloads) == (delivered.ids, [b"task"])
    group.elect(2)
    assert caller.ask(v2.Ack((delivered.token,))) == v2.Settled((delivered.token,))


def test_what_a_leader_could_not_commit_has_an_unknown_outcome_and_can_be_repeated(
    group: MemoryGroup,
) -> None:
    """The entry reaches nobody before the leader is cut off; its repetition counts once, wherever it is made."""
    old = group.caller2(2)
    group.cut = {2}
    lost = old.send(enqueue(b"once", sequence=7))
    group.wait(lambda: bool(group.leading({1, 3})))
    new = group.caller2(group.leading({1, 3}))
    assert new.ask(enqueue(b"once", sequence=7)) == v2.Enqueued([v2.Run(0, 1, 1)])
    group.cut = set()
    group.wait(lambda: any(number == lost for number, _ in old.answers))
    failed = old.answer(lost)
    assert isinstance(failed, v2.Failed)
    assert failed.code == Failure.OUTCOME_UNKNOWN
    assert new.ask(enqueue(b"once", sequence=7)) == v2.Enqueued([v2.Run(0, 1, 1)])
    stats = new.ask(v2.Stat(DEFAULT))
    assert isinstance(stats, v2.Stats)
    assert stats.queues[0].count == 1


def test_members_are_added_and_removed_and_leadership_is_handed_over(group: MemoryGroup) -> None:
    step = v2.MemberStep
    leader = group.caller2(2)
    group.start(4, is_joining=True)
    learn = v2.ChangeMembers([v2.MemberChange(step.LEARNER, 4, "n4:2702")])
    assert leader.ask(learn) == v2.Ok()
    assert _standing(leader.ask(v2.Cluster()), 4) == ("learner", "n4:2702")
    group.wait(lambda: _lag(leader.ask(v2.Cluster()), 4) == 0)
    vote = v2.ChangeMembers([v2.MemberChange(step.VOTER, 4), v2.MemberChange(step.REMOVE, 1)])
    assert leader.ask(vote) == v2.Ok()
    group.wait(lambda: _members(leader.ask(v2.Cluster())) == [2, 3, 4])
    assert _standing(leader.ask(v2.Cluster()), 4) == ("voter", "n4:2702")
    assert leader.ask(v2.Transfer(4)) == v2.Ok()
    group.wait(lambda: group.leading() == 4)
    assert isinstance(group.caller2(4).ask(enqueue()), v2.Enqueued)


@pytest.mark.parametrize(
    "request_",
    [
        v2.Transfer(9),
        v2.ChangeMembers([v2.MemberChange(v2.MemberStep.REMOVE, number) for number in (1, 2, 3)]),
    ],
)
def test_what_the_group_does_not_do_is_refused_with_a_reason(
    calm: MemoryGroup, request_: v2.Request
) -> None:
    failed = calm.caller2(2).ask(request_)
    assert isinstance(failed, v2.Failed)
    assert failed.code == Failure.CHANGE_REFUSED
    assert failed.text


def test_a_transfer_to_a_node_that_is_gone_is_answered_by_the_clock(group: MemoryGroup) -> None:
    group.cut = {3}
    failed = group.caller2(2).ask(v2.Transfer(3))
    assert isinstance(failed, v2.Failed)
    assert failed.code == Failure.CHANGE_REFUSED
    assert "node 3 did not take over in time" in failed.text


def _members(answer: v2.Answer) -> list[int]:
    assert isinstance(answer, v2.ClusterInfo)
    return [] if answer.is_joint else [member.node for member in answer.members]


def _member(answer: v2.Answer, node: int) -> v2.ClusterMember:
    assert isinstance(answer, v2.ClusterInfo)
    (found,) = [member for member in answer.members if member.node == node]
    return found


def _standing(answer: v2.Answer, node: int) -> tuple[str, str]:
    found = _member(answer, node)
    return found.standing, found.address


def _lag(answer: v2.Answer, node: int) -> int | None:
    return _member(answer, node).lag


def test_a_node_that_is_alone_is_a_group_of_one_that_cannot_be_changed(tmp_path: Path) -> None:
    node = Node(Settings(data=tmp_path), InlineDisk(), on_failure=lambda _: None)
    sent: list[bytes] = []
    session = Session2(node.broker, sent.append)
    add = v2.ChangeMembers([v2.MemberChange(v2.MemberStep.VOTER, 2, "a:1")])
    session.receive(v2.encode_request(v2.Cluster(), 1) + v2.encode_request(add, 2))
    session.flush()
    frames = FrameReader().receive(b"".join(sent))
    info, failed = (v2.decode_answer(kind, body) for kind, _, body in frames)
    assert isinstance(info, v2.ClusterInfo)
    assert (info.node, info.leader, info.is_leading, len(info.members)) == (1, 1, True, 1)
    assert (info.last, info.committed) == (node.directory.log.end - 1, node.replica.applied)
    assert isinstance(failed, v2.Failed)
    assert failed.code == Failure.CHANGE_REFUSED
    assert "--peers" in failed.text
    node.close()


# --- version 1 -----------------------------------------------------------------------------------


def test_version_1_has_members_as_places_in_the_list_of_addresses(calm: MemoryGroup) -> None:
    addresses = ("n1:2602", "n2:2602", "n3:2602")
    for number in (1, 2, 3):
        told = calm.caller1(number).ask(v1.AskCluster())
        assert told == v1.Cluster(addresses=addresses, leader=1, node=number - 1)


def test_version_1_numbers_the_leader_among_all_members_and_not_among_the_known(
    tmp_path: Path,
) -> None:
    """The leader's number was its place among the members that had been heard since the start.

    TaskFlux's client takes it for an index into its own list, and asked the wrong node again and again.
    """
    group = MemoryGroup(tmp_path)
    assert group.elect(3) == 3
    caller = group.caller1(2)
    assert caller.ask(v1.ListQueues()) == v1.NotLeader(leader=2)
    group.close()
    # Node 1 stays down, and node 2 finds its files as it left them.
    again = MemoryGroup(tmp_path, started=(2, 3))
    assert again.elect(3) == 3
    caller = again.caller1(2)
    assert caller.ask(v1.ListQueues()) == v1.NotLeader(leader=2)
    expected = v1.Cluster(addresses=("n1:2602", "n2:2602", "n3:2602"), leader=2, node=1)
    assert caller.ask(v1.AskCluster()) == expected
    again.close()


def test_version_1_does_not_count_a_leader_that_was_removed(group: MemoryGroup) -> None:
    """It counted itself, and the places of the members behind it were wrong by one."""
    remove = v2.ChangeMembers([v2.MemberChange(v2.MemberStep.REMOVE, 2)])
    assert group.caller2(2).ask(remove) == v2.Ok()
    told = group.caller1(2).ask(v1.AskCluster())
    assert isinstance(told, v1.Cluster)
    assert (told.addresses, told.node) == (("n1:2602", "n3:2602"), -1)


def test_version_1_lists_members_that_were_never_heard_without_an_address(tmp_path: Path) -> None:
    """A node that waits for the others of a new group listed nobody, itself included."""
    group = MemoryGroup(tmp_path, started=(2,))
    expected = v1.Cluster(addresses=("", "n2:2602", ""), leader=None, node=1)
    assert group.caller1(2).ask(v1.AskCluster()) == expected
    assert group.caller1(2).ask(v1.ListQueues()) == v1.NotLeader(leader=None)
    group.close()


def test_version_1_learns_a_new_address_of_a_member(group: MemoryGroup) -> None:
    node = group.nodes[3].group
    assert node is not None
    node.note_client_address(1, "elsewhere:2602")
    expected = v1.Cluster(addresses=("elsewhere:2602", "n2:2602", "n3:2602"), leader=1, node=2)
    assert group.caller1(3).ask(v1.AskCluster()) == expected


@pytest.mark.parametrize(
    "request_",
    [
        v1.Dequeue(queue=DEFAULT, wait_ms=0),
        v1.Count(queue=DEFAULT),
        v1.Create(queue=ORDERS, policy=Policy()),
        v1.Delete(queue=ORDERS),
        v1.ListQueues(),
    ],
    ids=lambda request: type(request).__name__,
)
def test_version_1_hears_the_leaders_place(calm: MemoryGroup, request_: v1.Request) -> None:
    caller = calm.caller1(1)
    assert caller.ask(request_) == v1.NotLeader(leader=1)
    assert caller.ask(request_) == v1.NotLeader(leader=1)  # the connection goes on (7.2)


def test_version_1_hears_it_of_an_enqueue_after_its_acknowledgement(calm: MemoryGroup) -> None:
    caller = calm.caller1(3)
    assert caller.ask(v1.Enqueue(queue=DEFAULT, key=0, payload=b"x")) == v1.Ok()
    assert caller.ask(v1.Acknowledge()) == v1.NotLeader(leader=1)
    assert caller.ask(v1.Enqueue(queue=DEFAULT, key=0, payload=b"x")) == v1.Ok()
    assert caller.ask(v1.Reject()) == v1.Ok()


@pytest.mark.parametrize("verdict", [v1.Acknowledge(), v1.Reject()])
def test_version_1_hears_it_of_a_task_that_is_out(group: MemoryGroup, verdict: v1.Request) -> None:
    group.caller2(2).ask(enqueue(b"task"))
    caller = group.caller1(2)
    assert isinstance(caller.ask(v1.Dequeue(queue=DEFAULT, wait_ms=0)), v1.Delivered)
    group.elect(3)
    assert caller.ask(verdict) == v1.NotLeader(leader=2)
    stats = group.caller2(3).ask(v2.Stat(DEFAULT))
    assert isinstance(stats, v2.Stats)
    assert (stats.queues[0].count, stats.queues[0].leased) == (1, 0)


def test_version_1_hears_it_of_a_request_whose_outcome_is_unknown(group: MemoryGroup) -> None:
    caller = group.caller1(2)
    assert caller.ask(v1.Enqueue(queue=DEFAULT, key=0, payload=b"x")) == v1.Ok()
    group.cut = {2}
    caller.send(v1.Acknowledge())
    group.wait(lambda: bool(group.leading({1, 3})))
    leader = group.leading({1, 3})
    group.cut = set()
    group.wait(lambda: bool(caller._data))
    heard = caller.take()
    assert isinstance(heard, v1.NotLeader)
    assert heard.leader in (None, leader - 1)
