"""What all format tests share: kernels that are compiled once, before any test is timed."""

from __future__ import annotations

import pytest

from penstock.formats.taskflux.entries import scan_entries
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record


@pytest.fixture(scope="session")
def warm_kernels() -> None:
    """Compile the scanner and both payload kernels; tests that use them ask for this by name."""
    for layout in LogLayout:
        data = encode_header(layout) + encode_record(layout, term=1, payload=b"D\x00")
        for _ in scan_entries(data, layout, start=layout.header_size):
            pass
