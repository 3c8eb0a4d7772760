"""A node finds members that it was never told of: their addresses come over proven links, and only their addresses."""

from __future__ import annotations

from pathlib import Path
from random import Random

from penstock.raft.configuration import Configuration
from penstock.server.membership import Membership, label
from penstock.server.settings import GroupSettings
from penstock.testing.disk import MemoryFiles
from support.command import penstock as command
from support.group_processes import GroupProcesses, group_processes, wait_until

PEERS = {1: "host1:2702", 2: "host2:2702", 3: "host3:2702"}


def membership() -> Membership:
    settings = GroupSettings(node=1, peers=PEERS)
    files = MemoryFiles()
    files.make_directory(Path("/node"))
    return Membership(files, Path("/node"), settings, is_new=False, draw=Random(1).randrange)


def configuration(*members: int, moved: dict[int, str] | None = None) -> Configuration:
    addresses = {**PEERS, 4: "host4:2702", **(moved or {})}
    labels = tuple((member, label(addresses[member], "")) for member in members)
    return Configuration(voters=members, labels=labels)


def test_addresses_of_a_newer_configuration_are_dialled_and_are_no_members() -> None:
    own, changes = membership(), list[int]()
    own.follow(configuration(1, 2, 3), 5)
    own.when_changed.append(lambda: changes.append(1))
    own.note_addresses({1: "host1:2702", 3: "elsewhere:1", 4: "host4:2702"}, 9)
    assert own.peers() == [2, 3, 4]
    assert own.address(3) == "elsewhere:1"
    assert own.address(4) == "host4:2702"
    assert own.configuration.members == (1, 2, 3)
    assert len(changes) == 1


def test_addresses_of_an_older_configuration_are_not_taken() -> None:
    own = membership()
    own.follow(configuration(1, 2, 3), 5)
    own.note_addresses({4: "host4:2702"}, 9)
    own.note_addresses({4: "elsewhere:1"}, 8)
    assert own.address(4) == "host4:2702"


def test_the_nodes_own_configuration_ends_what_it_was_told() -> None:
    own = membership()
    own.follow(configuration(1, 2, 3), 5)
    own.note_addresses({3: "elsewhere:1", 4: "host4:2702"}, 9)
    own.follow(configuration(1, 2), 7)  # an entry on the way there
    assert own.peers() == [2, 3, 4]
    own.follow(configuration(1, 2, 4, moved={4: "moved:1"}), 9)
    assert own.peers() == [2, 4]
    assert own.address(4) == "moved:1"


def add(group: GroupProcesses, number: int) -> None:
    place = f"{number}={group.peer_address(number)}"
    assert command("cluster", "add", place, "--connect", group.connect).code == 0


def lead(group: GroupProcesses, number: int) -> None:
    """Let a node lead; a new one may not be connected to all others yet, and is then asked again."""

    def leads() -> bool:
        return command("cluster", "transfer", str(number), "--connect", group.connect).code == 0

    wait_until(leads, f"node {number} leads")


def test_a_new_node_that_was_told_of_one_follower_only_joins(tmp_path: Path) -> None:
    with group_processes(tmp_path) as group:
        leader = group.wait_led()
        follower = next(number for number in group.nodes if number != leader)
        group.start(4, is_joining=True, known=[follower]).wait_listening()
        add(group, 4)
        with group.client() as client:
            client.enqueue("", b"task")
            group.wait_caught_up(client, 4)


def test_a_node_that_was_down_while_a_new_one_came_to_lead_hears_it(tmp_path: Path) -> None:
    with group_processes(tmp_path) as group:
        leader = group.wait_led()
        late = next(number for number in group.nodes if number != leader)
        group.nodes[late].kill()
        group.start(4, is_joining=True).wait_listening()
        add(group, 4)
        lead(group, 4)
        group.start(late).wait_listening()
        with group.client() as client:
            client.enqueue("", b"task")
            assert client.cluster().node == 4
            group.wait_caught_up(client, late)
