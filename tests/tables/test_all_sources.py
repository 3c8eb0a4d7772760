"""Over every directory that the tests keep: the rows of ``penstock.tables`` are those of the Spark source."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.errors import PenstockError
from penstock.tables import read
from support.spark_tables import read_rows
from support.table_sources import MAKERS

TABLES: Final = ("tasks", "entries", "changes")
SIGNS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Row = dict[str, Any]
Condition = tuple[str, str, Any]


def outcome(rows: Callable[[], list[Row]]) -> list[Row] | str:
    """Return rows, or what refused to give them."""
    try:
        return rows()
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"


def conditions_of(row: Row) -> Iterator[Condition]:
    """Yield conditions that a planner can use, with values of a row."""
    for column in ("queue", "op", "path"):
        if row.get(column) is not None:
            yield column, "=", row[column]
    if row["log_index"] is not None:
        for sign in SIGNS:
            yield "log_index", sign, row["log_index"]


def meets(row: Row, condition: Condition) -> bool:
    column, sign, value = condition
    return row[column] is not None and SIGNS[sign](row[column], value)


@pytest.mark.parametrize("name", MAKERS)
def test_the_rows_are_those_of_the_spark_source_and_conditions_select_exactly(
    name: str, tmp_path: Path
) -> None:
    source = MAKERS[name](tmp_path)
    for table in TABLES:
        is_wanted = table == "tasks"
        options = {n: value for n, value in source.options.items() if is_wanted or n != "asOf"}

        def rows(
            where: list[Condition] | None,
            table: str = table,
            options: dict[str, str] = options,
        ) -> list[Row]:
            found: list[Row] = read(source.path, table, where=where, options=options)
            return found.read_all().to_pylist()  # type: ignore[attr-defined,no-any-return]

        ours = outcome(partial(rows, None))
        assert ours == outcome(partial(read_rows, source.path, table=table, **options)), table
        if ours and not isinstance(ours, str):
            for condition in conditions_of(ours[len(ours) // 2]):
                expected = [row for row in ours if meets(row, condition)]
                assert rows([condition]) == expected, (table, condition)
