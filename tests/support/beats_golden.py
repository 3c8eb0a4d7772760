"""Directories that the disk queue of Elastic Beats wrote, and the events that wait in them.

``tests/golden/beats/`` has an archive for each of 34 cases: the directory ``queue``, the events in order (``truth.jsonl``)
and ``case.json`` with the version, the options and the key of an encrypted queue. They were written on 2026-11-17 by
libbeat's disk queue, built from the tags 7.13.0, 7.17.0, 8.4.0, 8.6.0, 8.14.0 and 8.17.0 and from commit 7c3b340eab51
("HEAD"), closed or killed with SIGKILL. The truth is what that version returned or, where a defect of its own made it
return less, what was published.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

GOLDEN: Final = Path(__file__).parent.parent / "golden" / "beats"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One directory, unpacked."""

    queue: Path
    facts: Row
    truth: list[str]  # an event each, as ``canonical`` writes it

    @property
    def key(self) -> bytes | None:
        text = self.facts.get("key")
        return None if text is None else bytes.fromhex(text)


CASES: Final = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))


def unpacked(name: str, root: Path) -> Case:
    """Put the files of a case into ``root``."""
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(root)
    # Not splitlines: text may hold U+0085 and U+2028.
    lines = (root / "truth.jsonl").read_text(encoding="utf-8").split("\n")
    truth = [canonical(parsed(line)) for line in lines if line]
    return Case(root / "queue", json.loads((root / "case.json").read_text()), truth)


def parsed(text: str) -> Any:
    """Return a JSON text's value. Raises ``ValueError`` for a key that occurs twice in a map."""
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> Row:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key occurs twice: {[key for key, _ in pairs]}")
    return found


def canonical(value: Any) -> str:
    """Return JSON that differs where values or their types do: 1 is not 1.0, -0.0 is not 0.0."""
    return json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False)


def shown(event: Row) -> str:
    """Return an event of a row of ``penstock tasks`` as the truth has it."""
    return canonical(
        {
            "ts": nanoseconds(event["timestamp"]),
            "flags": event["flags"],
            "meta": event["meta"],
            "fields": event["fields"],
        }
    )


def nanoseconds(text: str) -> int:
    """Return a time of RFC 3339, in UTC and with nine digits, as nanoseconds since 1970."""
    day, _, time = text.removesuffix("Z").partition("T")
    whole, _, fraction = time.partition(".")
    hours, minutes, seconds = map(int, whole.split(":"))
    days = date.fromisoformat(day).toordinal() - date(1970, 1, 1).toordinal()
    return (days * 86_400 + hours * 3_600 + minutes * 60 + seconds) * 10**9 + int(fraction)
