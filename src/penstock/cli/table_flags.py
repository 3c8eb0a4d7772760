"""What ``penstock sql`` and ``penstock export`` share: flags, and what is reported of the files before they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from penstock.cli.output import Exit, say
from penstock.families.option import Operation, Values
from penstock.families.registry import options_of

AtOption = Annotated[
    int | None,
    typer.Option(
        "--at", metavar="INDEX", min=-1, help="The tasks after this entry; entries count from 0."
    ),
]
LeftOutOption = Annotated[
    bool,
    typer.Option(
        "--classic-only", help="RabbitMQ: accept that queues of other kinds are left out."
    ),
]


def table_options(values: Values, table: str) -> dict[str, str]:
    """Return the flags of families as options of a table; those that are for the tasks are not for other tables."""
    return {
        option.table_name: option.text(values[option.name])
        for _, option in options_of(Operation.TABLES)
        if option.name in values and (table == "tasks" or not option.only_tasks)
    }


def report_sources(paths: Sequence[str], values: Values, *, classic_only: bool) -> Exit:
    """Report queues that are not read, and return the exit code of that. Raises ``PenstockError``."""
    from penstock.families.description import left_out_words
    from penstock.spark.pipeline.inputs import find_sources

    is_complete = True
    for source in find_sources(paths, values=values):
        if source.notice is not None:
            say(source.notice)
        if source.left_out:
            say(f"{source.name}: {left_out_words(source.left_out)}")
            is_complete = False
    return Exit.OK if is_complete or classic_only else Exit.DAMAGE
