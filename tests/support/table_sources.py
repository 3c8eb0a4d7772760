"""Every directory of files that the tests keep, as sources of tables: golden ones of each family, and made ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.formats.taskflux.generation import Generation
from support import beats_golden, rabbitmq_directories, taskflux_golden
from support.beats_spools import VECTORS
from support.beats_spools import spool as write_spool
from support.directories import build


@dataclass(frozen=True, slots=True)
class TableSource:
    """A source on the disk, and the options that reading it needs."""

    path: Path
    options: dict[str, str] = field(default_factory=dict)


def _beats(name: str, root: Path) -> TableSource:
    case = beats_golden.unpacked(name, root)
    if case.key is None:
        return TableSource(case.queue)
    key = root / "key"
    key.write_bytes(case.key)
    return TableSource(case.queue, {"keyFile": str(key)})


def _taskflux(case: taskflux_golden.Case, root: Path) -> TableSource:
    return TableSource(case.unpack(root))


def _rabbitmq(name: str, root: Path) -> TableSource:
    # What expires is judged by the time of the read, which must be the same for two reads.
    moment = {"asOf": "2026-01-01T00:00:00"}
    return TableSource(rabbitmq_directories.unpacked(name, root), moment)


def _made(generation: Generation, snapshot_after: int | None, root: Path) -> TableSource:
    return TableSource(build(root / "node", generation, snapshot_after=snapshot_after))


def _spool(root: Path) -> TableSource:
    return TableSource(write_spool(root / "spool", {0: VECTORS["v2_cbor"]}))


MAKERS: Final[dict[str, Callable[[Path], TableSource]]] = {
    **{
        f"taskflux {case.name}": lambda root, case=case: _taskflux(case, root)  # type: ignore[misc]
        for case in taskflux_golden.CASES
    },
    **{
        f"rabbitmq {name}": lambda root, name=name: _rabbitmq(name, root)  # type: ignore[misc]
        for name in rabbitmq_directories.NAMES
    },
    **{
        f"beats {name}": lambda root, name=name: _beats(name, root)  # type: ignore[misc]
        for name in beats_golden.CASES
    },
    **{
        f"made {generation.name} {after}": lambda root, g=generation, a=after: _made(g, a, root)  # type: ignore[misc]
        for generation, after in (
            (Generation.ONE, None),
            (Generation.TWO, None),
            (Generation.TWO, 3),
            (Generation.THREE, None),
            (Generation.THREE, 2),
        )
    },
    "made spool": _spool,
}
"""What puts each source into an empty directory."""
