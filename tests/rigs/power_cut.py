"""Power cuts of a real file system under the real storage code.

A process appends, syncs, snapshots and compacts on a file system of its own, and tells what it was promised
only after the call returned. At a random moment the file system is shut down without flushing its journal,
as a power cut does; it is mounted again, the directory is opened, and everything told must be there.

Needs root, loop devices and mkfs.ext4 (or mkfs.xfs). Says so loudly if it cannot run.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import track

from penstock.errors import StorageFailed
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.snapshot import encode_snapshot
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    HardState,
    Index,
    NodeId,
    QueueHead,
    SnapshotPoint,
    TaskId,
    Term,
)
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import OsFiles
from penstock.storage.log import LogLimits
from rigs.loop_disk import FILE_SYSTEMS, LoopDisk, NoLoopDisk, loop_disk

LIMITS = LogLimits(soft=256 * 1024, hard=512 * 1024, growth=128 * 1024)


def payload(index: int) -> bytes:
    """Return what entry ``index`` holds, always: whoever wrote it, before or after a cut."""
    random = Random(index)
    return f"{index}:".encode() + random.randbytes(random.choice((3, 40, 100, 700, 3000)))


def work(root: Path, generation: Generation, seed: int) -> None:
    """Use a directory until the disk goes away; tell each promise on stdout."""
    random = Random(seed)
    node = NodeDirectory(OsFiles(), root, generation=generation, limits=LIMITS)
    term = node.metadata.state.term + 1
    try:
        node.metadata.replace(HardState(term=Term(term), vote=NodeId(1)))
        _tell(f"term {term}")
        while True:
            first = node.log.end
            count = random.choice((1, 2, 10, 60))
            node.log.append(Term(term), [payload(first + n) for n in range(count)])
            node.log.sync()
            _tell(f"end {node.log.end}")
            if random.random() < 0.5:
                node.log.set_committed(Index(node.log.end - 1))
            if random.random() < 0.02 and node.log.committed >= node.log.first:
                _snapshot(node, node.log.committed, generation)
                _tell(f"snapshot {node.log.committed}")
    except StorageFailed:
        return  # the power is gone


def _snapshot(node: NodeDirectory, index: int, generation: Generation) -> None:
    point = SnapshotPoint(index=Index(index), term=node.log.term(Index(index)))
    head = QueueHead(name=DEFAULT_QUEUE, policy=NO_LIMITS, last_id=TaskId(1), count=1)
    task = (1, 0, payload(index) * 20)
    node.save_snapshot(
        point, encode_snapshot(point, 1, [(head, [task])], WRITTEN[generation].snapshot)
    )


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass
class Told:
    """What the process was promised, over all rounds."""

    end: int = 0
    term: int = 0
    snapshot: int = -1

    def hear(self, line: str) -> None:
        kind, _, number = line.partition(" ")
        setattr(self, kind, max(getattr(self, kind), int(number)))


@contextlib.contextmanager
def disk(kind: str) -> Iterator[LoopDisk]:
    """Make a file system, and take it away whatever happens. Raises ``NoLoopDisk``."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-power-"))
    try:
        with loop_disk(directory, kind) as made:
            yield made
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def one_round(place: LoopDisk, generation: Generation, seed: int, told: Told) -> int:
    """Work, cut, mount again; return how many promises were heard."""
    random = Random(seed)
    command = [sys.executable, "-m", "rigs.power_cut", "--work", str(place.mounted / "node")]
    command += ["--generation", str(int(generation)), "--seed", str(seed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    promises, patience = 0, random.randint(5, 400)
    for line in process.stdout:
        told.hear(line.strip())
        promises += 1
        if promises == patience:
            place.cut_power()
    code = process.wait()
    assert code == 0, f"seed {seed}: the process failed by itself with {code}"
    assert promises >= patience, f"seed {seed}: the process ended before the cut"
    place.unmount()
    place.mount()
    return promises


def check(place: LoopDisk, generation: Generation, told: Told) -> int:
    """Open what is left and compare it with what was told; return the number of cuts recovery made."""
    node = NodeDirectory(OsFiles(), place.mounted / "node", generation=generation, limits=LIMITS)
    point = node.snapshot.point
    covered = -1 if point is None else point.index
    assert node.metadata.state.term >= told.term, "a term was forgotten"
    assert covered >= told.snapshot, "a snapshot was lost"
    assert node.log.first <= covered + 1, "entries are missing behind the snapshot"
    assert node.log.end >= told.end, f"lost entries {node.log.end} to {told.end - 1}"
    index = node.log.first
    while index < node.log.end:
        for entry in node.log.read(index, node.log.end):
            assert entry.payload == payload(entry.index), f"entry {entry.index} was never written"
            index = Index(entry.index + 1)
    cuts = len(node.cuts)
    node.close()
    return cuts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=100, help="power cuts per generation")
    parser.add_argument("--file-system", choices=FILE_SYSTEMS, default="ext4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--generation", type=int, default=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work, Generation(options.generation), options.seed)
        return
    try:
        _cut_all(options.cuts, options.file_system, options.seed)
    except NoLoopDisk as error:
        sys.exit(f"NOT SHOWN: {error}")


def _cut_all(cuts: int, file_system: str, seed: int) -> None:
    for generation in (Generation.TWO, Generation.THREE):
        told, promises, torn = Told(), 0, 0
        with disk(file_system) as place:
            rounds = track(range(cuts), f"generation {generation}", console=Console(stderr=True))
            for number in rounds:
                promises += one_round(place, generation, seed * 100_000 + number, told)
                torn += check(place, generation, told)
        sys.stdout.write(
            f"{file_system}, generation {generation}: {cuts} power cuts, {promises} promises,"
            f" {told.end} entries synced, 0 lost, 0 invented, {torn} torn tails cut\n"
        )


if __name__ == "__main__":
    main()
