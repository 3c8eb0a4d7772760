"""The conditions of a read: which rows are kept, which columns that needs, and which files can be skipped for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import InvalidValue
from penstock.families.tables import Filters, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.compute import Expression

_NAMES: Final = {"queue": "queues", "op": "ops", "path": "paths"}
"""Columns of names, and the field of ``Filters`` that selects some of them."""


def to_expression(where: Sequence[Any] | Expression, schema: pa.Schema) -> Expression:
    """Return a condition as an expression over the columns of a table. Raises ``InvalidValue``."""
    import pyarrow as pa
    from pyarrow.parquet import filters_to_expression

    try:
        expression = filters_to_expression(where)
        schema.empty_table().filter(expression)
    except (ValueError, TypeError, NotImplementedError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidValue(
            f"the condition {where!r} cannot be used ({reason}); write it as"
            f' [("queue", "=", "mail"), ("key", "<", 5)] over the columns {", ".join(schema.names)}'
        ) from None
    return expression


def columns_of(condition: Expression, schema: pa.Schema) -> list[str]:
    """Return the columns that a condition reads: those without which Arrow cannot bind it."""
    if "FieldPath(" in str(condition):
        return list(schema.names)  # it names columns by their position among all
    return [name for name in schema.names if not _binds(condition, schema, name)]


def _binds(condition: Expression, schema: pa.Schema, name: str) -> bool:
    """Return whether a condition needs no column of this name."""
    import pyarrow as pa

    try:
        schema.remove(schema.get_field_index(name)).empty_table().filter(condition)
    except pa.ArrowInvalid:
        return False
    return True


def pushed(filters: Filters, where: Sequence[Any] | Expression | None, table: Table) -> Filters:
    """Return filters that also leave out what conditions rule out, as far as a planner can use them.

    Filters may select too much, because the expression decides. They must not select too little.
    """
    for column, operator, value in _conjunction(where):
        if column in _NAMES and (column == "queue" or table is not Table.TASKS):
            names = _values(operator, value)
            if names is not None:
                field = _NAMES[column]
                before: frozenset[str] | None = getattr(filters, field)
                both: dict[str, Any] = {field: names if before is None else before & names}
                filters = replace(filters, **both)
        elif column == "log_index" and table is not Table.TASKS and type(value) is int:
            filters = _narrowed(filters, operator, value)
    return filters


def _narrowed(filters: Filters, operator: str, value: int) -> Filters:
    """Return filters for the entries whose index compares so with a value."""
    first, last = filters.first, filters.last
    if operator in ("=", "==", ">=", ">"):
        low = value + (operator == ">")
        first = low if first is None else max(first, low)
    if operator in ("=", "==", "<=", "<"):
        high = value - (operator == "<")
        last = high if last is None else min(last, high)
    return replace(filters, first=first, last=last)


def _conjunction(where: Sequence[Any] | Expression | None) -> list[tuple[str, str, Any]]:
    """Return conditions that all must hold; none if they are alternatives or an expression, which shows no parts."""
    if not isinstance(where, list | tuple) or not where:
        return []
    listed = where[0] if len(where) == 1 and isinstance(where[0], list) else where
    is_plain = all(isinstance(each, tuple) and len(each) == 3 for each in listed)
    return list(listed) if is_plain else []


def _values(operator: str, value: Any) -> frozenset[str] | None:
    """Return the names that a condition admits; ``None`` if it does not list them."""
    if operator in ("=", "==") and isinstance(value, str):
        return frozenset({value})
    if operator == "in" and isinstance(value, Collection) and not isinstance(value, str):
        # A null among the values matches rows without a name.
        return frozenset(value) if all(isinstance(each, str) for each in value) else None
    return None
