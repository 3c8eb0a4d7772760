"""One line of the table that ``bench/records`` prints."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure: the median, its spread, and the goal, if there is one."""

    what: str
    unit: str
    values: list[float]
    goal: str = ""
    is_met: bool | None = None

    def row(self) -> str:
        spread = (
            f"{min(self.values):,.1f} – {max(self.values):,.1f}" if len(self.values) > 1 else ""
        )
        word = {None: "", True: "met", False: "missed"}[self.is_met]
        return f"| {self.what} | {statistics.median(self.values):,.1f} {self.unit} | {spread} | {self.goal} | {word} |"
