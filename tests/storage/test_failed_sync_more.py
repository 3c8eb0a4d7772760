"""A sync fails, the process ends and the next one starts: what the start shows survives a power cut.

After a failed sync Linux shows what was written, calls it clean, and never writes it. A process that reads it and syncs
is told that all is well.
"""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from penstock.errors import StorageFailed
from penstock.formats.taskflux.generation import Generation
from penstock.model import Term
from penstock.storage.directory import NodeDirectory
from simulation.disk import SimulatedFiles
from storage.test_crash import LIMITS
from support.log_stores import content

ROOT = Path("/node")


@pytest.mark.parametrize("generation", [Generation.TWO, Generation.THREE])
def test_what_a_start_shows_after_a_failed_sync_survives_a_power_cut(
    generation: Generation,
) -> None:
    files = SimulatedFiles(Random(7))
    node = NodeDirectory(files, ROOT, generation=generation, limits=LIMITS)
    node.metadata.replace(node.metadata.state)
    node.log.append(Term(1), [b"synced"])
    node.log.sync()
    node.log.append(Term(1), [b"shown by the cache alone"])

    def fail(kind: str, path: str) -> None:
        raise OSError(errno.EIO, kind, path)

    files.arm(1, fail)
    with pytest.raises(StorageFailed):
        node.log.sync()
    files.kill()
    shown = content(NodeDirectory(files, ROOT, generation=generation, limits=LIMITS).log)
    assert len(shown) == 2
    files.cut_power(survival=0.0)
    assert content(NodeDirectory(files, ROOT, generation=generation, limits=LIMITS).log) == shown
