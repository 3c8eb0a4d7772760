"""A fake node and a client of it, for every test that asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from client.fake_node import FakeNode, fake_node
from penstock.client.blocking import Client


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with fake_node() as node:
        yield node


@pytest.fixture
def client(node: FakeNode) -> Iterator[Client]:
    with penstock.connect(node.address, timeout=5, retry=5) as client:
        yield client
