"""``penstock dev-cluster``: a group in one command, with nodes that really run."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest

import penstock
from support.dev_cluster import DevCluster
from support.group_processes import wait_until


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_cluster_is_there_survives_its_leader_and_goes_when_told(tmp_path: Path) -> None:
    with DevCluster("--base-port", "0", "--data", tmp_path / "cluster") as cluster:
        told = cluster.wait_told()
        assert told["leader"] in (1, 2, 3)
        assert [node["node"] for node in told["nodes"]] == [1, 2, 3]
        assert told["connect"] == ",".join(node["address"] for node in told["nodes"])
        assert Path(told["nodes"][0]["data"]) == tmp_path / "cluster" / "node-1"
        pids = {node["node"]: node["pid"] for node in told["nodes"]}
        with penstock.connect(told["connect"]) as client:
            client.enqueue("", b"before")
            os.kill(pids[told["leader"]], signal.SIGKILL)
            said = cluster.wait_said(f"node {told['leader']} ended (SIGKILL)")
            assert said.startswith("penstock: ")
            client.enqueue("", b"after")
            assert [task.payload for task in client.peek("", 2)] == [b"before", b"after"]
        assert cluster.stop(signal.SIGINT) == 0
        assert not any(map(is_running, pids.values()))
        logs = [line for line in cluster.words if line.startswith("[")]
        assert {line[:4] for line in logs} >= {"[1] ", "[2] ", "[3] "}
        assert all(line[4] == "{" for line in logs), logs


@pytest.mark.heavy
def test_a_node_that_ends_is_started_again_if_wanted_and_what_nobody_wants_to_keep_goes() -> None:
    with DevCluster("--nodes", "1", "--base-port", "0", "--restart") as cluster:
        told = cluster.wait_told()
        data = Path(told["nodes"][0]["data"])
        with penstock.connect(told["connect"]) as client:
            client.enqueue("", b"kept")
            os.kill(told["nodes"][0]["pid"], signal.SIGKILL)
            cluster.wait_said("node 1 ended (SIGKILL) and is started again")
            assert client.stat("").count == 1
        assert data.is_dir()
        assert cluster.stop() == 0
    assert not data.parent.exists()


def test_a_node_that_cannot_start_ends_all_with_exit_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        if port > 65_000:
            pytest.skip("no ports behind the one that is taken")
        with DevCluster("--base-port", str(port), "--data", tmp_path) as cluster:
            assert cluster.wait() == 1
            assert cluster.rows == []
            # A port behind the one that is taken may be another program's: then node 2 or 3 is first.
            refused = re.compile(
                r"penstock: node \d did not start \(exit code 1\); the others are stopped"
            )
            assert any(refused.fullmatch(line) for line in cluster.words)


@pytest.mark.heavy
def test_a_cluster_whose_nodes_have_all_ended_ends_with_exit_1(tmp_path: Path) -> None:
    with DevCluster("--nodes", "1", "--base-port", "0", "--data", tmp_path) as cluster:
        pid = cluster.wait_told()["nodes"][0]["pid"]
        os.kill(pid, signal.SIGTERM)
        assert cluster.wait() == 1
        wait_until(lambda: not is_running(pid), "the node has ended")
        assert "penstock: node 1 ended (exit code 0)" in cluster.words
