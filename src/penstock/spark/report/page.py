"""The page as a whole: its head, the verdict, the sources, and a part for each of them.

The page is made of the tables alone, refers to nothing outside itself, and shows no payload. Every list on it is
bounded by a constant, so its size does not grow with the log; what is left out is said where it would have been.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC
from functools import cache
from importlib.resources import files
from typing import Final

import pyarrow as pa

from penstock.spark.report import units
from penstock.spark.report.facts import Facts, SourceFacts
from penstock.spark.report.faults import faults_section, find_faults, level_of, sign, verdict
from penstock.spark.report.inputs import Inputs
from penstock.spark.report.markup import Markup, join, name_of, printable, tag
from penstock.spark.report.source_section import SourceSection
from penstock.spark.report.tables import Column, rest, table

SOURCES_MAX: Final = 5
"""Sources with a part of their own: the nodes of a large cluster."""

PARTS_SIZE_MAX: Final = 1_200_000
"""Bytes of these parts together. One has about 150 KB, but several times that if names are long and all escaped."""

SOURCES_LISTED_MAX: Final = 50
"""Sources in the table of sources."""

_POLICY: Final = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)


def make_report(tables: Mapping[str, pa.Table], facts: Facts) -> str:
    """Return the page as HTML. Tables that are missing count as not looked at; ``inputs.COLUMNS`` names them all."""
    inputs = Inputs(tables)
    sources = _sources(inputs, facts)
    findings = find_faults(inputs, facts)
    waiting, parts = _parts(inputs, sources)
    title = printable(facts.title)
    body = tag(
        "main",
        _header(facts, title),
        verdict(findings, facts),
        faults_section(findings),
        "" if len(sources) == 1 else _source_table(inputs, sources, waiting),
        *parts,
        rest(len(sources) - len(parts), "source"),
        _footer(facts),
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        # The browser itself is told to fetch nothing, and given an empty icon lest it asks for one.
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("link", rel="icon", href="data:,"),
        tag("style", _asset("page.css")),
    )
    script = tag("script", _asset("page.js"))
    tip = tag("div", id="tip", role="status", hidden="")
    page = tag("html", head, tag("body", body, tip, script), lang="en")
    return f"<!doctype html>\n{page}\n"


def _parts(inputs: Inputs, sources: list[SourceFacts]) -> tuple[list[float | None], list[Markup]]:
    """Return the parts of the first sources, and how many tasks wait in each of these."""
    waiting: list[float | None] = []
    parts: list[Markup] = []
    size = 0
    for i, source in enumerate(sources[:SOURCES_MAX]):
        section = SourceSection(inputs, source, key=f"s{i}")
        part = section.render()
        size += len(part.encode())
        if i and size > PARTS_SIZE_MAX:
            break
        waiting.append(section.waiting)
        parts.append(part)
    return waiting, parts


def _sources(inputs: Inputs, facts: Facts) -> list[SourceFacts]:
    """Return the sources as the facts have them, and behind them those that only a table names."""
    found = [_shown(source) for source in facts.sources]
    known = {source.source for source in found}
    unknown = [source for source in inputs.sources() if source not in known]
    return found + [SourceFacts(source=name) for name in unknown]


def _shown(source: SourceFacts) -> SourceFacts:
    """Return a source with its name as ``inputs`` shows it, by which the rows of the tables are found."""
    return replace(
        source,
        source=printable(source.source),
        family=printable(source.family),
        generation=printable(source.generation),
    )


def _header(facts: Facts, title: str) -> Markup:
    made = ""
    if facts.made_at is not None:
        made = f"{facts.made_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return tag("header", tag("h1", title), tag("p", made) if made else "")


def _footer(facts: Facts) -> Markup:
    words = f"Made by Penstock {printable(facts.version)} from its Spark tables. Payloads are not shown. Times are UTC."
    return tag("footer", tag("p", words))


def _source_table(
    inputs: Inputs, sources: list[SourceFacts], waiting: list[float | None]
) -> Markup:
    if not sources:
        return tag("p", "There is no source.", class_="empty")
    rows: list[list[str]] = []
    for i, source in enumerate(sources[:SOURCES_LISTED_MAX]):
        level, why = level_of(inputs, source.source)
        name = name_of(source.source, empty="(unnamed source)")
        rows.append(
            [
                tag("a", name, href=f"#s{i}") if i < len(waiting) else name,
                join(sign(level), f" {why}"),
                units.count(waiting[i] if i < len(waiting) else None),
                " ".join(filter(None, [source.family, source.generation])) or units.NONE,
                source.reach or units.NONE,
                units.count(source.entries),
                units.size(source.size),
            ]
        )
    columns = [
        Column(name="Source", class_="path"), Column(name="State"), Column(name="Waiting", is_number=True),
        Column(name="Format"), Column(name="Indexes", is_number=True), Column(name="Entries", is_number=True),
        Column(name="Bytes", is_number=True),
    ]  # fmt: skip
    made = table(
        columns, rows, left_out=max(0, len(sources) - SOURCES_LISTED_MAX), noun="source", class_="cards",
        label="Sources",
    )  # fmt: skip
    return tag("section", tag("h2", "Sources"), tag("div", made, class_="card"), id="sources")


@cache
def _asset(name: str) -> Markup:
    return Markup(files("penstock.spark.report").joinpath(name).read_text(encoding="utf-8"))
