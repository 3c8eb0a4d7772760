"""A node, and a world around it, for every test that asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.blocking import Client
from penstock.server.embedded import EmbeddedNode
from penstock.server.settings import Settings
from spooling.world import World


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EmbeddedNode]:
    node = EmbeddedNode(Settings(data=tmp_path / "node"))
    with Client(node.connect):  # a node ends with its last connection
        yield node


@pytest.fixture
def world(node: EmbeddedNode) -> Iterator[World]:
    world = World(node)
    yield world
    world.close()
