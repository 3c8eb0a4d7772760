"""What all tests of the tools share: what they write is small and does not wait for the disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.at_rest import quick_writing


@pytest.fixture(autouse=True, scope="module")
def _writes_quickly() -> Iterator[None]:
    with quick_writing():
        yield
