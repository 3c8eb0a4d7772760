"""``penstock export``: a table of files as one file of another format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.files import with_family_flags
from penstock.cli.output import bar, emit
from penstock.cli.table_flags import AtOption, chosen_paths, report_input, table_options
from penstock.errors import InvalidValue
from penstock.families.options import Operation, Values
from penstock.families.tables import Table


@with_family_flags(Operation.TABLES, Operation.PIPELINE)
def export(
    path: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="A directory, a file or a pattern; one or more."),
    ],
    to: Annotated[
        Path,
        typer.Option(
            "--to",
            metavar="FILE",
            readable=False,
            help="Ends in .parquet, .csv, .jsonl or .arrow, which chooses the format.",
        ),
    ],
    values: Values,
    table: Annotated[Table, typer.Option("--table", help="The table.")] = Table.TASKS,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="NAME,NAME…", help="Only these columns, in this order."),
    ] = None,
    at: AtOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace FILE if it exists.")
    ] = False,
) -> None:
    """Write a table of PATH to one file: what the queues hold, or every entry. Needs no Java.

    FILE appears when it is whole; an existing file is refused without --overwrite. CSV and JSON lines have payloads in
    base64.

    \b
    Examples:
      penstock export node --to tasks.parquet
      penstock export node --to tasks.csv --columns queue,key,payload
      penstock export node --table entries --to entries.jsonl
      penstock export rabbit --to messages.arrow
    """
    from penstock.tables.export import check_target
    from penstock.tables.export import export as write
    from penstock.tables.scan import make_scan

    try:
        check_target(to, overwrite=overwrite)
    except InvalidValue as error:
        raise typer.BadParameter(str(error), param_hint="--to") from None
    paths = chosen_paths(path, values)
    given = report_input(paths, values, at=at)
    scan = make_scan(
        paths,
        table,
        columns=None if columns is None else columns.split(","),
        at=at,
        options=table_options(values, table),
    )
    size = sum(split.size for split in scan.splits())
    with bar(size, "exporting") as shown:
        count = write(scan, to, overwrite=overwrite, advance=shown.advance)
    emit({"path": str(to), "table": table, "rows": count, "size": to.stat().st_size})
    raise typer.Exit(given.exit_code)
