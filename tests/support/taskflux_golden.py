"""Data directories that programs of TaskFlux left behind, and what those programs hold.

``tests/golden/taskflux/`` has a directory for each case: the data directory as an archive, the tasks in TaskFlux's order of
delivery, and ``case.json`` with what is expected of a reader. They were written in 2026 by nine commits of TaskFlux, from
2023-08-22 (variant 1a) to 2024-05-12 (generation 3): by its hosts, some of them killed, and by its own storage classes.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.archives import extract

GOLDEN = Path(__file__).parent.parent / "golden" / "taskflux"

Tasks = dict[str, list[tuple[int, str]]]
"""Key and payload (base64) of the tasks of each queue that has some, in their order."""


@dataclass(frozen=True, slots=True)
class Case:
    """One directory."""

    name: str

    @property
    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((GOLDEN / self.name / "case.json").read_text())
        return facts

    @property
    def truth(self) -> Tasks | None:
        """The tasks in TaskFlux's order of delivery; ``None`` if no program of that date opens the directory."""
        if self.facts["truth"] == "none":
            return None
        lines = gzip.decompress((GOLDEN / self.name / "truth.jsonl.gz").read_bytes()).splitlines()
        return by_queue([json.loads(line) for line in lines])

    def unpack(self, root: Path) -> Path:
        """Put the files into ``root`` and return where a command finds them."""
        extract(GOLDEN / self.name / "queue.tar.gz", root)
        below = [path for path in root.iterdir() if path.is_dir()]
        is_inside = len(below) == 1 and below[0].name not in ("data", "consensus")
        return below[0] if is_inside else root


CASES = [Case(path.parent.name) for path in sorted(GOLDEN.glob("*/case.json"))]


def by_queue(rows: list[dict[str, Any]]) -> Tasks:
    """Return the tasks of each queue in the order of the rows."""
    queues: Tasks = {}
    for row in rows:
        queues.setdefault(row["queue"], []).append((row["key"], row["payload"]))
    return queues
