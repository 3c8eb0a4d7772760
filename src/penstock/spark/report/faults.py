"""What is wrong: damage within files, gaps between them, and replicas that differ. The first thing on the page."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, assert_never

import numpy as np
from numpy.typing import NDArray

from penstock.families.tables import OK
from penstock.spark.report import units
from penstock.spark.report.facts import Facts
from penstock.spark.report.inputs import Inputs, Rows
from penstock.spark.report.markup import Markup, name_of, tag
from penstock.spark.report.tables import Column, table

FAULTS_MAX: Final = 50
"""Rows of each table of faults: whoever has more of them goes to the table itself."""

EXPECTED: Final = frozenset({"torn", "leftover"})
"""What a crash leaves behind in a log, and recovery cuts off: worth a look, and no loss by itself."""


class Level(StrEnum):
    """How bad something is. Values are classes of the style sheet."""

    GOOD = "good"
    UNKNOWN = "unknown"
    NOTICE = "notice"
    BAD = "bad"


_SIGNS: Final = {Level.GOOD: "✓", Level.UNKNOWN: "?", Level.NOTICE: "!", Level.BAD: "✕"}
_ORDER: Final = list(Level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check."""

    name: str
    level: Level
    words: str  # short, for the verdict
    detail: str
    table: Markup


def find_faults(inputs: Inputs, facts: Facts) -> list[Finding]:
    """Return the outcome of each check, found or not."""
    return [_damage(inputs), _gaps(inputs), _divergence(inputs, facts)]


def verdict(findings: list[Finding], facts: Facts) -> Markup:
    """Return the sentence that everything else only explains, and one sign for each check."""
    level = max((finding.level for finding in findings), key=_ORDER.index)
    read = sum(source.entries for source in facts.sources)
    found = [finding.words for finding in findings if finding.level in (Level.NOTICE, Level.BAD)]
    head = _headline(level, found)
    if not read and not found:
        level, head = Level.UNKNOWN, "No entries were read"
    sizes = sum(source.size for source in facts.sources)
    said = f"{units.plural(read, 'entry', 'entries')}, {units.size(sizes)}, {units.plural(len(facts.sources), 'source')}"
    took = f", read in {units.span(facts.seconds)}" if facts.seconds is not None else ""
    checks = [_check(finding) for finding in findings]
    return tag(
        "section", tag("div", sign(level), tag("div", tag("h2", head), tag("p", f"{said}{took}."))),
        tag("ul", *checks, class_="checks"), class_=f"verdict {level}", id="verdict",
    )  # fmt: skip


def _headline(level: Level, found: list[str]) -> str:
    match level:
        case Level.BAD:
            return f"Something is wrong: {', '.join(found)}"
        case Level.NOTICE:
            return f"No loss found, but have a look: {', '.join(found)}"
        case Level.UNKNOWN:
            return "Nothing wrong found, but not everything was looked at"
        case Level.GOOD:
            return "Nothing is wrong"
        case _:
            assert_never(level)


def faults_section(findings: list[Finding]) -> Markup:
    """Return the tables of what is wrong; nothing if there is nothing."""
    parts = [
        tag("div", tag("h3", sign(f.level), f" {f.name}"), tag("p", f.detail), f.table, id=f.name.lower(), class_="card")
        for f in findings
        if f.table
    ]  # fmt: skip
    return tag("section", tag("h2", "What is wrong"), *parts, id="wrong") if parts else Markup("")


def sign(level: Level) -> Markup:
    """Return a coloured sign that does not depend on its colour."""
    return tag("span", _SIGNS[level], class_=f"sign {level}", role="img", aria_label=level.value)


def level_of(inputs: Inputs, source: str) -> tuple[Level, str]:
    """Return how a single source is, and why."""
    damage = inputs.of("damage", source)
    words = [word for word in damage.words("status") if word != OK]
    gaps = inputs.count("gaps", "source", source)
    differs = sum(
        inputs.count("divergence", column, source) for column in ("source", "other_source")
    )
    said = [
        units.plural(len(words), "damaged place") if words else "",
        units.plural(gaps, "gap") if gaps else "",
        f"differs {units.plural(differs, 'time')}" if differs else "",
    ]
    why = ", ".join(filter(None, said))
    if gaps or differs or any(word not in EXPECTED for word in words):
        return Level.BAD, why
    if words:
        return Level.NOTICE, f"{', '.join(sorted(set(words)))} tail"
    if {"damage", "gaps"} <= inputs.given:
        return Level.GOOD, "whole"
    return Level.UNKNOWN, "not checked"


def _check(finding: Finding) -> Markup:
    name = (
        tag("a", finding.name, href=f"#{finding.name.lower()}")
        if finding.table
        else tag("b", finding.name)
    )
    return tag("li", sign(finding.level), tag("span", name, " ", tag("small", finding.detail)))


def _damage(inputs: Inputs) -> Finding:
    rows = inputs.all("damage")
    rows = rows.where(_is_not(rows, "status", OK))
    if not len(rows):
        return _clean("Damage", "damage", inputs, "every checksum holds")
    statuses = rows.words("status")
    bad = sum(1 for status in statuses if status not in EXPECTED)
    left = len(rows) - bad
    tails = f"{units.plural(left, 'torn or leftover tail')}" if left else ""
    words = " and ".join(filter(None, [units.plural(bad, "damaged place") if bad else "", tails]))
    lost = units.size(float(rows.counts("size").sum()))
    kinds = sorted(set(statuses), key=lambda word: (-statuses.count(word), word))
    detail = f"{words}, {lost}: " + ", ".join(
        f"{statuses.count(k)} × {k or 'unknown'}" for k in kinds[:6]
    )
    return Finding(
        name="Damage", level=Level.BAD if bad else Level.NOTICE, words=words, detail=detail,
        table=table(
            [
                Column(name="Status"), Column(name="Index", is_number=True), Column(name="Source", class_="path"),
                Column(name="File", class_="path"), Column(name="Offset", is_number=True),
                Column(name="Size", is_number=True), Column(name="Family", is_wide=True),
                Column(name="Reason", class_="prose"),
            ],
            [_damage_row(row) for row in rows.head(FAULTS_MAX).dicts()],
            left_out=max(0, len(rows) - FAULTS_MAX), noun="place", class_="cards", label="Damage",
        ),
    )  # fmt: skip


def _damage_row(row: dict[str, Any]) -> list[str]:
    level = Level.NOTICE if row["status"] in EXPECTED else Level.BAD
    return [
        tag("span", row["status"] or "unknown", class_=f"badge {level}"),
        units.exact(row["log_index"]), name_of(row["source"], empty=units.NONE),
        name_of(row["path"] or "", empty=units.NONE), units.exact(row["offset"]), units.size(row["size"]),
        row["family"] or units.NONE, row["reason"] or units.NONE,
    ]  # fmt: skip


def _gaps(inputs: Inputs) -> Finding:
    rows = inputs.all("gaps")
    if not len(rows):
        return _clean("Gaps", "gaps", inputs, "every index follows the one before it")
    words = units.plural(len(rows), "gap")
    missing = rows.numbers("found") - rows.numbers("expected")
    lost = float(missing[missing > 0].sum())
    return Finding(
        name="Gaps", level=Level.BAD, words=words,
        detail=f"{words}, {units.plural(lost, 'entry', 'entries')} missing" if lost else words,
        table=table(
            [
                Column(name="Source", class_="path"), Column(name="File", class_="path"),
                Column(name="Expected", is_number=True), Column(name="Found", is_number=True),
                Column(name="Missing", is_number=True), Column(name="Reason", class_="prose"),
            ],
            [_gap_row(row) for row in rows.head(FAULTS_MAX).dicts()],
            left_out=max(0, len(rows) - FAULTS_MAX), noun="gap", class_="cards", label="Gaps",
        ),
    )  # fmt: skip


def _gap_row(row: dict[str, Any]) -> list[str]:
    is_known = row["expected"] is not None and row["found"] is not None
    missing = row["found"] - row["expected"] if is_known else None
    said = units.NONE if missing is None else units.count(missing) if missing > 0 else "goes back"
    return [
        name_of(row["source"], empty=units.NONE), name_of(row["path"] or "", empty=units.NONE),
        units.exact(row["expected"]), units.exact(row["found"]), said, row["reason"] or units.NONE,
    ]  # fmt: skip


def _divergence(inputs: Inputs, facts: Facts) -> Finding:
    rows = inputs.all("divergence")
    if not len(rows):
        if "divergence" in inputs.given and len(facts.sources) < 2:
            return Finding(
                name="Divergence", level=Level.GOOD, words="", table=Markup(""),
                detail="one source, so nothing to compare",
            )  # fmt: skip
        return _clean("Divergence", "divergence", inputs, "the sources agree wherever they overlap")
    index = [value for value in rows.numbers("log_index").tolist() if not units.is_missing(value)]
    words = f"sources differ at {units.plural(len(set(index)) or len(rows), 'index', 'indexes')}"
    first = f", first at {units.exact(min(index))}" if index else ""
    return Finding(
        name="Divergence", level=Level.BAD, words=words, detail=f"{words}{first}",
        table=table(
            [
                Column(name="Index", is_number=True), Column(name="Source", class_="path"),
                Column(name="Queue", class_="path"),
                Column(name="Term", is_number=True), Column(name="Checksum", is_number=True),
                Column(name="Other source", class_="path"), Column(name="Other term", is_number=True),
                Column(name="Other checksum", is_number=True), Column(name="Reason", class_="prose"),
            ],
            [_divergence_row(row) for row in rows.head(FAULTS_MAX).dicts()],
            left_out=max(0, len(rows) - FAULTS_MAX), noun="difference", class_="cards", label="Divergence",
        ),
    )  # fmt: skip


def _divergence_row(row: dict[str, Any]) -> list[str]:
    def compared(name: str, value: str) -> Markup:
        return tag("b" if row[name] != row[f"other_{name}"] else "span", value)

    return [
        units.exact(row["log_index"]),
        name_of(row["source"], empty=units.NONE),
        units.NONE if row["queue"] is None else name_of(row["queue"]),
        compared("term", units.exact(row["term"])),
        compared("checksum", _checksum(row["checksum"])),
        name_of(row["other_source"] or "", empty=units.NONE),
        compared("term", units.exact(row["other_term"])),
        compared("checksum", _checksum(row["other_checksum"])),
        row["reason"] or units.NONE,
    ]


def _clean(name: str, key: str, inputs: Inputs, words: str) -> Finding:
    is_given = key in inputs.given
    return Finding(
        name=name, level=Level.GOOD if is_given else Level.UNKNOWN, words="", table=Markup(""),
        detail=f"none: {words}" if is_given else "not looked for",
    )  # fmt: skip


def _checksum(value: int | None) -> str:
    return units.NONE if value is None else f"{value & (2**64 - 1):08x}"


def _is_not(rows: Rows, name: str, word: str) -> NDArray[np.bool_]:
    return np.array([found != word for found in rows.words(name)], dtype=np.bool_)
