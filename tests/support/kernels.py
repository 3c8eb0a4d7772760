"""Has the large kernels compiled once: else every worker of a run on a fresh machine compiles all of them.

Run as a script beside the workers, while these collect their tests. It does what some of the tests do, on little data;
numba keeps the machine code on disk. A kernel that is missing here is compiled by whoever needs it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory


def use() -> None:
    """Let every scanner and the paged store read or write something."""
    import numpy as np

    from penstock.families.rabbitmq.location import resolve
    from penstock.families.rabbitmq.read import Wanted
    from penstock.families.rabbitmq.rows import tasks
    from penstock.formats.beats.frame_scan import FrameScanner, scan_frames
    from penstock.formats.taskflux.entries import scan_entries
    from penstock.formats.taskflux.extensions import scan_extensions
    from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record
    from support.beats_spools import VECTORS
    from support.paged_lives import scripted
    from support.rabbitmq_directories import unpacked

    for layout in LogLayout:
        data = encode_header(layout) + encode_record(layout, term=1, payload=b"D\x00")
        list(scan_entries(data, layout, start=layout.header_size))
    scan_extensions(b"\xff", np.array([0]), np.array([1]))
    with TemporaryDirectory() as place:
        location = resolve(unpacked("c4_props_ttl_priority_kill9", Path(place)))
        list(tasks(location, Wanted(as_of_us=0), report=lambda _: None, bulk_from=0))
    spool = VECTORS["v2_cbor"]
    list(scan_frames(spool, offset=12, start=12, stop=len(spool)))
    scanner = FrameScanner(12)
    list(scanner.feed(spool[12:]))
    list(scanner.feed(b"", is_last=True))
    scripted(alone=True)
    scripted(alone=False)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    use()
