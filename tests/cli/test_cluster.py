"""``penstock cluster`` against a node of the tests, and the flags that place a node in a group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from client.fake_node import FakeNode, fake_node
from penstock.cli import cluster as commands
from penstock.cli.group_flags import in_group, parse_peers
from penstock.errors import InvalidValue
from penstock.protocol import version2 as v2
from penstock.server.settings import Settings
from support.command import penstock, refused

PEERS = "1=127.0.0.1:2702,2=127.0.0.1:2703,3=127.0.0.1:2704"


def member(number: int, standing: str = "voter", **progress: object) -> v2.ClusterMember:
    return v2.ClusterMember(
        node=number,
        address=f"n{number}:2702",
        client_address="",
        standing=standing,
        is_leader=number == 1,
        is_self=number == 1,
        **progress,  # type: ignore[arg-type]
    )


class LeadingNode:
    """Node 1 of three, which leads, and does with its members what it is asked."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.lags = [5000, 1200, 20]  # of a new member, from one look to the next
        node.script = self.answer
        members = tuple(member(number, match=9, lag=0) for number in (1, 2, 3))
        node.cluster = v2.ClusterInfo(
            node=1,
            leader=1,
            role="leader",
            is_leading=True,
            is_joint=False,
            term=3,
            first=0,
            last=9,
            committed=9,
            applied=9,
            members=(replace(members[0], client_address=node.address), *members[1:]),
        )

    @property
    def info(self) -> v2.ClusterInfo:
        assert self.node.cluster is not None
        return self.node.cluster

    def set(self, **changes: object) -> None:
        self.node.cluster = replace(self.info, **changes)  # type: ignore[arg-type]

    def answer(self, request: v2.Request) -> v2.Answer | None:
        if isinstance(request, v2.ChangeMembers):
            for step in request.steps:
                self.change(step)
            return v2.Ok()
        if isinstance(request, v2.Cluster):
            self.set(members=tuple(self.progressed(each) for each in self.info.members))
        return None

    def change(self, step: v2.MemberChange) -> None:
        others = [each for each in self.info.members if each.node != step.node]
        if step.step is not v2.MemberStep.REMOVE:
            standing = "voter" if step.step is v2.MemberStep.VOTER else "learner"
            changed = member(step.node, standing, lag=10_000, pace="probe")
            others.append(replace(changed, address=step.address or changed.address))
        self.set(members=tuple(others))

    def progressed(self, each: v2.ClusterMember) -> v2.ClusterMember:
        if each.standing == "learner" and self.lags:
            return replace(each, lag=self.lags.pop(0), pace="replicate")
        return each

    def changes(self) -> list[v2.MemberChange]:
        asked = [each for each in self.node.requests if isinstance(each, v2.ChangeMembers)]
        return [step for each in asked for step in each.steps]


@pytest.fixture
def leading(monkeypatch: pytest.MonkeyPatch) -> Iterator[LeadingNode]:
    monkeypatch.setattr(commands, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(commands, "SAY_SECONDS", 0.0)
    with fake_node() as node:
        monkeypatch.setenv("PENSTOCK_NODE", node.address)
        yield LeadingNode(node)


def usage(*words: str | Path) -> str:
    """Run a command that means nothing, and return what it says: exit 2, and no traceback."""
    outcome = penstock(*words)
    assert (outcome.code, outcome.out) == (2, "")
    return outcome.err


# --- status --------------------------------------------------------------------------------------


def test_status_has_a_row_for_each_member(leading: LeadingNode) -> None:
    outcome = penstock("cluster", "status")
    assert outcome.code == 0
    assert [row["node"] for row in outcome.rows] == [1, 2, 3]
    assert outcome.rows[0] == {
        "node": 1,
        "standing": "voter",
        "is_leader": True,
        "address": leading.node.address,
        "peer_address": "n1:2702",
        "match": 9,
        "lag": 0,
        "pace": None,
        "window": None,
        "seen_by": 1,
        "term": 3,
        "commit_index": 9,
        "is_joint": False,
    }


def test_status_is_a_table_for_people(leading: LeadingNode) -> None:
    outcome = penstock("cluster", "status", "--table")
    assert outcome.code == 0
    assert "node 1 leads, term 3, committed 9, seen by node 1" in outcome.out
    assert "leader" in outcome.out
    assert "n3:2702" in outcome.out


def test_status_without_a_leader_is_exit_1(leading: LeadingNode) -> None:
    leading.set(leader=None, is_leading=False, role="candidate")
    outcome = penstock("cluster", "status", "--own")
    assert outcome.code == 1
    assert len(outcome.rows) == 3
    assert "knows no leader" in outcome.err


# --- add, remove, transfer -----------------------------------------------------------------------


def test_add_makes_a_learner_waits_until_it_has_caught_up_and_makes_it_a_voter(
    leading: LeadingNode,
) -> None:
    outcome = penstock("cluster", "add", "4=10.0.0.4:2702")
    assert outcome.code == 0, outcome.err
    assert [(row["node"], row["standing"]) for row in outcome.rows] == [(4, "voter")]
    step = v2.MemberStep
    assert leading.changes() == [
        v2.MemberChange(step.LEARNER, 4, "10.0.0.4:2702"),
        v2.MemberChange(step.VOTER, 4, "10.0.0.4:2702"),
    ]
    assert outcome.words == [
        "penstock: node 4 is a learner at 10.0.0.4:2702",
        "penstock: node 4 is 5000 entries behind",
        "penstock: node 4 is 1200 entries behind",
        "penstock: node 4 is a voter at 10.0.0.4:2702",
    ]


def test_add_goes_on_with_a_learner_that_is_there(leading: LeadingNode) -> None:
    learner = member(4, "learner", lag=7, pace="snapshot")
    learner = replace(learner, address="10.0.0.4:2702")
    leading.set(members=(*leading.info.members, learner))
    leading.lags = []
    outcome = penstock("cluster", "add", "4=10.0.0.4:2702", "--wait", "0.05")
    assert outcome.code == 1
    assert "node 4 is being sent a snapshot" in outcome.err
    assert "has not caught up in 0.05 s; it stays a learner" in outcome.err
    leading.lags = [0]
    assert penstock("cluster", "add", "4=10.0.0.4:2702").code == 0
    assert [change.step for change in leading.changes()] == [v2.MemberStep.VOTER]


def test_add_leaves_a_learner_if_that_is_wanted_and_a_voter_as_it_is(leading: LeadingNode) -> None:
    assert (
        penstock("cluster", "add", "4=10.0.0.4:2702", "--learner").rows[0]["standing"] == "learner"
    )
    assert penstock("cluster", "add", "2=n2:2702").rows[0]["standing"] == "voter"
    assert [change.node for change in leading.changes()] == [4]


def test_add_tells_a_groups_member_its_new_address(leading: LeadingNode) -> None:
    outcome = penstock("cluster", "add", "2=10.0.0.2:2702")
    assert outcome.rows[0]["peer_address"] == "10.0.0.2:2702"
    assert leading.changes() == [v2.MemberChange(v2.MemberStep.VOTER, 2, "10.0.0.2:2702")]


def test_a_change_whose_answer_got_lost_is_looked_at(leading: LeadingNode) -> None:
    leading.node.drop(v2.ChangeMembers, applied=True)
    outcome = penstock("cluster", "remove", "3")
    assert (outcome.code, outcome.rows) == (0, [{"node": 3, "removed": True}])
    leading.node.drop(v2.ChangeMembers, applied=False)
    assert "unknown" in refused("cluster", "remove", "2")


def test_remove_knows_who_is_no_member(leading: LeadingNode) -> None:
    assert "node 9 is not a member" in refused("cluster", "remove", "9")
    assert leading.changes() == []


def test_transfer_says_who_led_before(leading: LeadingNode) -> None:
    outcome = penstock("cluster", "transfer", "1")
    assert outcome.rows == [{"leader": 1, "before": 1, "term": 3}]
    assert leading.node.count(v2.Transfer) == 0


@pytest.mark.parametrize("words", [("remove", "2"), ("transfer", "2")])
def test_what_the_group_refuses_is_exit_1_with_its_reason(
    leading: LeadingNode, words: tuple[str, str]
) -> None:
    failed = v2.Failed(v2.Failure.CHANGE_REFUSED, "another change is under way")
    leading.node.script = lambda request: None if isinstance(request, v2.Cluster) else failed
    assert refused("cluster", *words) == "penstock: another change is under way"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("add", "4"), "'4' is not a peer; write NUMBER=HOST:PORT"),
        (("add", "0=a:1"), "nodes are numbered from 1 to 2147483647, not '0'"),
        (("add", "4=a"), "needs a port; write 4=a:2702"),
        (("add", "4=a:99999"), "1 to 65535"),
        (("add", "4=a:1,b:2"), "more than one address"),
        (("remove", "x"), "nodes are numbered from 1 to"),
        (("transfer", "-"), "nodes are numbered from 1 to"),
        (("transfer", "99999999999"), "nodes are numbered from 1 to"),
    ],
)
def test_what_means_nothing_is_wrong_usage(
    leading: LeadingNode, words: tuple[str, ...], expected: str
) -> None:
    assert expected in usage("cluster", *words)
    assert leading.node.requests == []


# --- serve ---------------------------------------------------------------------------------------


def grouped(settings: Settings | None = None, **changes: object) -> Settings:
    """Return the settings of node 2 of three, or what becomes of them with other flags."""
    given = {
        "node": 2,
        "peers": PEERS,
        "is_joining": False,
        "advertise": None,
        "election_ms": 1000,
        "heartbeat_ms": 100,
    } | changes
    return in_group(settings or ALONE, **given)  # type: ignore[arg-type]


ALONE = Settings(data=Path("node"), port=2602)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"peers": None}, "--node needs --peers"),
        ({"peers": None, "node": None, "is_joining": True}, "--join needs --peers"),
        ({"node": None}, "--peers needs --node"),
        ({"peers": "1=127.0.0.1:2703"}, "names 1 but not node 2"),
        ({"peers": "1=127.0.0.1:2702,1=127.0.0.1:2703"}, "node 1 is listed twice"),
        ({"peers": "1=127.0.0.1:2702,2=127.0.0.1:2702"}, "two peers have the address"),
        ({"peers": "0=127.0.0.1:2702"}, "numbered from 1 to"),
        ({"peers": "1:127.0.0.1:2702"}, "is not a peer"),
        ({"peers": "2=127.0.0.1"}, "needs a port"),
        (
            {"peers": "1=10.0.0.2:2702,2=127.0.0.1:2702"},
            "10.0.0.2 is reachable from other machines",
        ),
        ({"settings": replace(ALONE, generation=2)}, "of generation 3"),
        ({"heartbeat_ms": 5}, "--heartbeat is 10 ms or more"),
        ({"heartbeat_ms": 400}, "3 heartbeats or more, here 1200"),
        ({"election_ms": 700_000}, "to 600000 ms"),
        ({"settings": replace(ALONE, port=0)}, "add --advertise HOST:PORT"),
        ({"settings": replace(ALONE, host="0.0.0.0", is_open=True)}, "add --advertise HOST:PORT"),
        ({"advertise": "a,b"}, "--advertise takes one address"),
    ],
)
def test_a_place_in_a_group_that_cannot_be_is_refused(
    changes: dict[str, object], expected: str
) -> None:
    with pytest.raises(InvalidValue, match=expected):
        grouped(**changes)  # type: ignore[arg-type]


def test_serve_says_what_is_wrong_with_a_group() -> None:
    said = usage("serve", "--data", "node", "--node", "4", "--peers", PEERS)
    assert "--peers names 1, 2, 3 but not node 4" in said


def test_a_node_knows_its_place_in_its_group() -> None:
    settings = grouped()
    group = settings.group
    assert group is not None
    assert (settings.node, group.node, group.is_joining) == (2, 2, False)
    assert group.peers == {1: "127.0.0.1:2702", 2: "127.0.0.1:2703", 3: "127.0.0.1:2704"}
    assert (group.listen, group.client_address) == ("127.0.0.1:2703", "127.0.0.1:2602")
    assert (group.tick_ms, group.election_ticks, group.heartbeat_ticks) == (100, 10, 1)


def test_a_node_that_joins_and_one_that_is_reached_elsewhere_say_so() -> None:
    group = grouped(is_joining=True, advertise="queue-2.example:2602").group
    assert group is not None
    assert (group.is_joining, group.client_address) == (True, "queue-2.example:2602")


@pytest.mark.parametrize(
    ("election_ms", "heartbeat_ms"), [(1000, 100), (1500, 500), (150, 50), (30, 10), (5000, 10)]
)
def test_both_times_are_kept_with_ten_ticks_to_an_election_at_least(
    election_ms: int, heartbeat_ms: int
) -> None:
    group = grouped(election_ms=election_ms, heartbeat_ms=heartbeat_ms).group
    assert group is not None
    assert group.election_ticks >= 10
    assert election_ms <= group.election_ticks * group.tick_ms < election_ms + group.tick_ms
    assert group.heartbeat_ticks * group.tick_ms <= heartbeat_ms
    assert heartbeat_ms < (group.heartbeat_ticks + 1) * group.tick_ms


def test_peers_of_ipv6_have_brackets() -> None:
    assert str(parse_peers("1=[::1]:2702")[1]) == "[::1]:2702"
    with pytest.raises(InvalidValue):
        parse_peers("1=::1:2702")


# --- a file of flags -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("datas = 'x'", "'datas' is not a flag"),
        ("config = 'x'", "'config' is not a flag"),
        ("max-queues = 1\nmax_queues = 2", "max-queues is given twice"),
        ("data = [1]", "data is a value, or a table of texts"),
        ("data = {a = 1}", "data is a value, or a table of texts"),
        ("data", "is not valid TOML"),
        ("a = " + "[" * 5000, "is not valid TOML"),
        ("data = 'node'\nmax-queues = 'many'", "--max-queues"),
        ("data = 'node'\nnode = 4\n[peers]\n1 = '127.0.0.1:2702'", "names 1 but not node 4"),
        (
            "data = 'node'\nnode = 1\npeers = '1=127.0.0.1:1,1=127.0.0.1:2'",
            "node 1 is listed twice",
        ),
        ("listen = '127.0.0.1:1'", "--data"),
    ],
)
def test_a_file_with_flags_that_mean_nothing_is_wrong_usage(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "node.toml"
    path.write_text(text)
    said = usage("serve", "--config", path)
    assert expected in " ".join(said.split())


def test_a_file_of_flags_that_cannot_be_read_is_wrong_usage(tmp_path: Path) -> None:
    assert "No such file" in usage("serve", "--config", tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff")
    assert "is not valid TOML" in usage("serve", "--config", tmp_path / "bytes")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**30)
    assert "more than 1048576 bytes" in usage("serve", "--config", tmp_path / "large")


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text("data = 'node'\nlisten = '127.0.0.1:1'\ngeneration = 3\nmax-queues = 7\n")
    assert "--generation is 2 or 3" in usage("serve", "--config", path, "--generation", "1")


@pytest.mark.parametrize("words", [("--nodes", "0"), ("--nodes", "10"), ("--base-port", "65500")])
def test_a_dev_cluster_that_cannot_be_is_wrong_usage(words: tuple[str, str]) -> None:
    assert words[0] in usage("dev-cluster", *words)
