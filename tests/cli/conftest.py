"""A node that the tests of one module share; each test works on queues of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.node_process import NodeProcess, start


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A running node."""
    with start(tmp_path_factory.mktemp("shared") / "node") as node:
        yield node


@pytest.fixture
def node(shared_node: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> NodeProcess:
    """The shared node, as the one that commands talk to."""
    monkeypatch.setenv("PENSTOCK_NODE", shared_node.address)
    return shared_node


@pytest.fixture
def queue(node: NodeProcess, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new queue with a name of its own."""
    name: str = request.node.name[:200].replace(" ", "_")
    with node.client() as client:
        client.create_queue(name)
        yield name
        client.delete_queue(name)


@pytest.fixture
def nobody(tmp_path: Path) -> str:
    """An address at which nobody listens."""
    with start(tmp_path / "gone") as node:
        return node.address
