"""A directory of generation 4 that is kept as bytes: writers make it so, and readers read it, for good."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.families.options import LogTime
from support.record_directories import TIME_MS, sample, write_directory
from support.record_listing import dumped, listed, verified

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "penstock"


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def rows(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (GOLDEN / name).read_text().splitlines()]


def test_the_same_changes_give_the_same_bytes(tmp_path: Path) -> None:
    root = write_directory(
        tmp_path / "node", sample().entries, segment_size=1000, snapshots=(6, 10), zeros=512
    )
    assert files(root) == files(GOLDEN / "node")


def test_the_tools_read_it_as_they_did(tmp_path: Path) -> None:
    root = GOLDEN / "node"
    assert verified(root) == []
    assert listed(root) == rows("tasks.jsonl")
    assert listed(root, at=LogTime(TIME_MS + 4500)) == rows("tasks-at-5.jsonl")
    shown = [row | {"path": str(Path(row["path"]).relative_to(root))} for row in dumped(root)]
    assert json.loads(json.dumps(shown)) == rows("dump.jsonl")
