"""``penstock sql``: a query over the tables of files, run by DuckDB in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.files import with_family_flags
from penstock.cli.output import Exit, cell, say
from penstock.cli.table_flags import AtOption, chosen_paths, report_input, table_options
from penstock.errors import needing
from penstock.families.options import At, Operation, Values

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from penstock.tables.dataset import ScanDataset

TABLES: Final = ("tasks", "entries", "changes")
"""The views that a query can name."""

ROWS: Final = 16_384
"""Rows that are printed at a time."""

TABLE_ROWS: Final = 1000
"""Rows of one table for people: its columns are as wide as its rows need. More rows begin another table."""

_CONFIG: Final[dict[str, Any]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",  # a query that needs more than the memory fails instead of writing files
}

_LOCKED: Final = "SET enable_external_access = false; SET lock_configuration = true"
"""Statements after which SQL reads no file and no address, and cannot undo that."""


@with_family_flags(Operation.TABLES, Operation.PIPELINE)
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A query in DuckDB's SQL.")],
    sources: Annotated[
        list[str],
        typer.Option(
            "--from", metavar="PATH", help="A directory, a file or a pattern; may be repeated."
        ),
    ],
    values: Values,
    at: AtOption = None,
    table: Annotated[bool, typer.Option("--table", help="A table for people.")] = False,
) -> None:
    """Query files with SQL: the tables tasks, entries and changes are those of every --from PATH. Needs no Java.

    Rows are printed as JSON lines, bytes in base64. DuckDB runs in memory: it writes no file and reads none but PATH.

    \b
    Examples:
      penstock sql "SELECT queue, count(*) FROM tasks GROUP BY 1" --from node
      penstock sql "SELECT op, count(*) AS entries FROM entries GROUP BY 1 ORDER BY 2 DESC" --from node --table
      penstock sql "SELECT source, queue, count(*) FROM tasks GROUP BY ALL" --from node --from old
    """
    if not query.strip(" ;\n"):
        raise typer.BadParameter("there is no query", param_hint="QUERY")
    with needing("sql", "penstock sql"):
        import duckdb
    sources = chosen_paths(sources, values)
    given = report_input(sources, values, at=at)
    connection = duckdb.connect(config=_CONFIG)
    try:
        views = _add_views(connection, sources, at, values)
        connection.execute(_LOCKED)
        try:
            _show(connection, query, for_people=table)
        except duckdb.Error as error:
            raise _cause(error, views) from None
    finally:
        connection.close()
    raise typer.Exit(given.exit_code)


def _add_views(
    connection: duckdb.DuckDBPyConnection, sources: list[str], at: At | None, values: Values
) -> list[ScanDataset]:
    """Make the views, and return what they read."""
    with needing("sql", "penstock sql"):
        from penstock.tables.dataset import ScanDataset
    from penstock.tables.scan import make_scan

    views: list[ScanDataset] = []
    for name in TABLES:
        moment = at if name == "tasks" else None
        scan = make_scan(sources, name, at=moment, options=table_options(values, name))
        views.append(ScanDataset(scan))
        connection.register(name, views[-1])
    return views


def _cause(error: duckdb.Error, views: list[ScanDataset]) -> Exception:
    """Return what to raise for an error of DuckDB: what reading raised, or an exit code after the error in a line.

    A wrong query is wrong usage; anything else is a refusal.
    """
    import duckdb

    for view in views:
        if view.error is not None:
            return view.error
    # Behind an empty line DuckDB shows the place in the query.
    _, _, words = str(error).partition("\n\n")[0].partition(": ")
    sentence = " ".join(words.split()) or str(error)
    wrong = (duckdb.ParserException, duckdb.CatalogException, duckdb.BinderException)
    say(f"the query failed: {sentence}")
    return typer.Exit(Exit.USAGE if isinstance(error, wrong) else Exit.DAMAGE)


def _show(connection: duckdb.DuckDBPyConnection, query: str, *, for_people: bool) -> None:
    """Run a query and print its rows. A statement without rows prints nothing."""
    from penstock.tables.text import json_lines

    relation = connection.sql(query)
    if relation is None:
        return
    twice = sorted({name for name in relation.columns if relation.columns.count(name) > 1})
    if twice:
        say(f"two columns of the result are named {twice[0]}; name them with AS")
        raise typer.Exit(Exit.USAGE)
    reader = relation.to_arrow_reader(TABLE_ROWS if for_people else ROWS)
    for batch in reader:
        if for_people:
            _print(batch)
        else:
            sys.stdout.write(json_lines(batch))


def _print(batch: pa.RecordBatch) -> None:
    shown = Table()
    for name in batch.schema.names:
        shown.add_column(cell(name), overflow="fold")
    for row in _cells(batch):
        shown.add_row(*map(cell, row))
    Console(file=sys.stdout).print(shown)


def _cells(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    """Yield the rows for people: bytes as text if they are UTF-8, else as base64, marked as such."""
    from penstock.tables.text import values_of

    columns = [
        [
            _readable(value, text)
            for value, text in zip(column.to_pylist(), values_of(column), strict=True)
        ]
        for column in batch.columns
    ]
    return zip(*columns, strict=True)


def _readable(value: object, text: object) -> object:
    if not isinstance(value, bytes):
        return text
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"base64:{text}"
