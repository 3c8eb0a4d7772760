"""Enqueue time, principal and entry of tasks, as lines for stretches of neighbours."""

from __future__ import annotations

from array import array
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.queues.columnar.sources import Sources, condensed

ROWS = st.lists(
    st.tuples(st.integers(-2, 0), st.integers(0, 1), st.integers(1, 2)), min_size=1, max_size=30
)
Row = tuple[int, int, int]


def columns(rows: list[Row]) -> tuple[array[int], array[int], array[int]]:
    return (
        array("q", [row[0] for row in rows]),
        array("I", [row[1] for row in rows]),
        array("Q", [row[2] for row in rows]),
    )


def rows_of(sources: Sources, count: int) -> list[Row]:
    spread = (sources.enqueued, sources.principals, sources.entries)
    return list(zip(*[sources.spread(column, count) for column in spread], strict=True))


@given(ROWS)
def test_lines_say_the_same_as_columns(rows: list[Row]) -> None:
    sources = condensed(*columns(rows))
    assert rows_of(sources, len(rows)) == rows
    changes = sum(before != after for before, after in pairwise(rows))
    assert len(sources.starts) == 1 + changes


@given(ROWS, st.data())
def test_copied_lines_are_those_of_the_places(rows: list[Row], data: st.DataObject) -> None:
    sources = condensed(*columns(rows))
    chosen = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    target = Sources()
    target.append(0, 9, 9, 9)
    sources.copy_to(target, 1, chosen)
    assert rows_of(target, len(chosen) + 1) == [(9, 9, 9), *[rows[place] for place in chosen]]
    span = Sources()
    sources.copy_to(span, 0, range(chosen[0], chosen[-1] + 1))
    assert rows_of(span, chosen[-1] + 1 - chosen[0]) == rows[chosen[0] : chosen[-1] + 1]
