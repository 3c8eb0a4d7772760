"""Nodes on a disk that is really full: no room for a snapshot, while the log has what it set aside."""

from __future__ import annotations

from pathlib import Path

import penstock
from support.node_process import NodeProcess, start
from support.small_disk import leave, small_disk

MIB = 2**20
LOG_FILE = 16 * MIB
DISK_SIZE = 80 * MIB  # two files of the log and some snapshots
ROOM_LEFT = MIB // 4
STATE = MIB


def snapshots_said(node: NodeProcess) -> list[str]:
    return [str(row["text"]) for row in node.said("snapshot")]


def temporary_files(data: Path) -> list[Path]:
    return list(data.rglob("*snapshot*.penstock-temporary"))


def churn(client: penstock.Client, size: int) -> None:
    """Grow the log and not the state."""
    for _ in range(size // MIB):
        client.enqueue("churn", bytes(MIB))
        with client.dequeue("churn"):
            pass


def wait_spare(disk: Path, client: penstock.Client) -> None:
    """Wait until the log's next file is whole; the log does not grow meanwhile."""
    while not any(each.stat().st_size >= LOG_FILE for each in disk.rglob("spare*")):
        client.stat("kept")


def test_a_node_without_room_for_a_snapshot_serves_on_and_takes_it_when_there_is_room(
    tmp_path: Path,
) -> None:
    flags = ("--snapshot-bytes", MIB, "--min-free", 1)
    kept = [bytes([n]) * (STATE // 8) for n in range(8)]
    with small_disk(tmp_path / "disk", DISK_SIZE) as disk:
        with start(disk / "node", *flags) as node, node.client() as client:
            for queue in ("kept", "churn", "other"):
                client.create_queue(queue)
            client.enqueue_many("kept", kept)
            # The log has half a file left and the next one set aside: it wants no room for a while.
            while not list(disk.rglob("spare*")):
                churn(client, MIB)
            wait_spare(disk, client)
            node.wait_said("snapshot")
            ballast = leave(disk, ROOM_LEFT)
            churn(client, 2 * MIB)
            while not any("No space left on device" in text for text in snapshots_said(node)):
                client.stat("kept")  # the log must not grow meanwhile: its room ends
            churn(client, 2 * MIB)
            assert "no snapshot" in snapshots_said(node)[-1]
            assert [text for text in snapshots_said(node) if "No space" in text] == [
                snapshots_said(node)[-1]
            ]
            assert temporary_files(disk) == []
            node.kill()
        with start(disk / "node", *flags) as node, node.client() as client:
            assert client.stat("kept").count == len(kept)  # the old snapshot and the log are whole
            client.enqueue(
                "other", b""
            )  # a start threw the next file away; the first entry asks for it
            wait_spare(disk, client)
            churn(client, 2 * MIB)
            node.wait_said("snapshot")  # the log must not grow meanwhile: its room ends
            ballast.unlink()
            text = node.wait_said("snapshot", count=2)["text"]  # without another request
            assert str(text).startswith("snapshot at entry")
            node.kill()
        with start(disk / "node", *flags) as node, node.client() as client:
            found: list[bytes] = []
            while taken := client.dequeue_many("kept", 100):
                found += [each.payload for each in taken]
            assert found == kept
