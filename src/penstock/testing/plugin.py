"""The pytest plugin: the fixture ``penstock_node``.

pytest loads it through the entry point ``pytest11`` of the package. It imports the node only when a test asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.node import InProcessNode


@pytest.fixture
def penstock_node() -> Iterator[InProcessNode]:
    """A Penstock node in this process, on a manual clock and a disk in memory."""
    from penstock.testing.node import InProcessNode

    with InProcessNode() as node:
        yield node
