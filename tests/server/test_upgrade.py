"""A directory of generation 1 is upgraded when a node starts on it, and its files stay as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import open as open_node
from penstock.client.blocking import Client
from penstock.formats.taskflux.log import LogLayout
from support.at_rest import listed, tree
from support.command import penstock, refused
from support.directories import EXPECTED, build_1
from support.node_files import write_files
from support.node_process import NodeProcess, start
from support.taskflux_vectors import LOG_1, LOG_1A, SNAPSHOT_1, SNAPSHOT_1B


def held(client: Client) -> list[tuple[str, int, bytes]]:
    """Return all that a node holds, in the order of delivery."""
    return [
        (str(stat.name), task.key, task.payload)
        for stat in sorted(client.queues(), key=lambda stat: stat.name)
        for task in client.peek(stat.name, 100)
    ]


@pytest.mark.parametrize("layout", [LogLayout.ONE_A, LogLayout.ONE_B])
def test_generation_1_is_upgraded_once_and_its_files_are_kept(
    tmp_path: Path, layout: LogLayout
) -> None:
    root = build_1(tmp_path / "node", layout)
    before = tree(root / "consensus")
    with start(root) as node, node.client() as client:
        upgraded = node.wait_said("upgraded")
        assert str(root / "consensus") in upgraded["text"]
        assert node.wait_said("listening")["generation"] == 3
        assert held(client) == EXPECTED
        client.enqueue("mail", b"new", key=9)
        assert node.stop() == 0
    assert tree(root / "consensus") == before
    assert sorted(path.name for path in root.iterdir()) == ["consensus", "data", "penstock.lock"]
    with open_node(root) as client:
        assert sorted(held(client)) == sorted([*EXPECTED, ("mail", 9, b"new")])
    assert tree(root / "consensus") == before


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"raft.log": LOG_1}, None),
        ({"raft.log": LOG_1A}, None),
        ({"raft.snapshot": SNAPSHOT_1}, [("orders", -1, b""), ("orders", 5, b"hi")]),
        ({"raft.snapshot": SNAPSHOT_1B}, [("orders", -1, b""), ("orders", 5, b"hi")]),
    ],
    ids=["log", "log 1a", "snapshot", "snapshot 1b"],
)
def test_the_vectors_of_generation_1_are_served_as_the_tools_list_them(
    tmp_path: Path, files: dict[str, bytes], expected: list[tuple[str, int, bytes]] | None
) -> None:
    """Here the files are in the node's directory itself, without one named consensus."""
    root = write_files(tmp_path / "node", files)
    expected = listed(root) if expected is None else expected
    with open_node(root) as client:
        assert held(client) == expected
    assert listed(root / "data") == expected
    for name, data in files.items():
        assert (root / name).read_bytes() == data
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node"]


DEATH = "import os, signal\ndef die():\n    os.kill(os.getpid(), signal.SIGKILL)\n"

BEFORE_THE_METADATA = """
from penstock.families.taskflux.new_directory import NewDirectory
NewDirectory.write_metadata = lambda self, state: die()
"""

BEFORE_THE_RENAME = """
import penstock.server.upgrade as upgrade
convert = upgrade.convert
def dying(*given):
    convert(*given)
    die()
upgrade.convert = dying
"""

BEHIND_THE_RENAME = """
from penstock.storage.files import OsFiles
rename = OsFiles.rename
def dying(self, *given):
    rename(self, *given)
    die()
OsFiles.rename = dying
"""


@pytest.mark.parametrize(
    "death",
    [BEFORE_THE_METADATA, BEFORE_THE_RENAME, BEHIND_THE_RENAME],
    ids=["before-metadata", "before-rename", "behind-rename"],
)
def test_a_node_killed_in_mid_upgrade_is_upgraded_by_the_next_start(
    tmp_path: Path, death: str
) -> None:
    root = build_1(tmp_path / "node")
    before = tree(root / "consensus")
    with NodeProcess(root, before=DEATH + death) as node:
        assert node.wait() == -9
    assert tree(root / "consensus") == before
    assert listed(root / "consensus") == EXPECTED
    with open_node(root) as client:
        assert held(client) == EXPECTED
    assert tree(root / "consensus") == before
    assert listed(root) == EXPECTED
    assert penstock("verify", root).code == 0
    assert sorted(path.name for path in root.iterdir()) == ["consensus", "data", "penstock.lock"]


def test_damage_in_generation_1_is_refused_with_its_place_and_nothing_is_made(
    tmp_path: Path,
) -> None:
    root = build_1(tmp_path / "node")
    log = root / "consensus" / "raft.log"
    data = log.read_bytes()
    log.write_bytes(data[:-30] + b"\xff" * 30)
    before = tree(root)
    words = refused("serve", "--data", root, "--listen", "127.0.0.1:0")
    assert words.startswith(f"penstock: {log}, offset ")
    after = tree(root)
    after.pop("penstock.lock", None)
    assert after == before
