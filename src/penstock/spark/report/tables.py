"""Tables that people read: a bounded number of rows, and words for what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.spark.report import units
from penstock.spark.report.markup import Markup, join, tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column's head, and how its cells look."""

    name: str
    is_number: bool = False
    is_wide: bool = False  # left out where the screen is narrow
    class_: str = ""


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, left_out: int = 0, noun: str = "row",
    class_: str = "", label: str = "",
) -> Markup:  # fmt: skip
    """Return a table. With class ``cards``, each row is a card of its own where the screen is narrow."""
    classes = [
        " ".join(filter(None, ["number" * c.is_number, "wide" * c.is_wide, c.class_])) or None
        for c in columns
    ]
    head = tag(
        "tr", *(tag("th", c.name, scope="col", class_=k) for c, k in zip(columns, classes, strict=True))
    )  # fmt: skip
    body = [
        tag(
            "tr",
            *(
                tag("td", cell, class_=k, data_label=c.name)
                for c, k, cell in zip(columns, classes, row, strict=True)
            ),
        )
        for row in rows
    ]
    made = tag(
        "div",
        tag(
            "table",
            tag("thead", head),
            tag("tbody", *body),
            class_=class_ or None,
            aria_label=label or None,
        ),
        class_="scroll",
    )
    return join(made, rest(left_out, noun))


def meter(value: float | None, *, most: float) -> Markup:
    """Return a count with a bar beside it, full for ``most``."""
    share = (value or 0.0) / most * 100 if most > 0 else 0.0
    bar = tag("i", tag("i", style=f"width:{share:.3g}%"), class_="track")
    return tag("span", bar, units.count(value), class_="meter")


def rest(left_out: int, noun: str) -> Markup:
    """Return the words for rows that are not shown, if there are any."""
    if not left_out:
        return Markup("")
    return tag(
        "p", f"… and {units.plural(left_out, f'more {noun}')}, not shown here.", class_="rest"
    )
