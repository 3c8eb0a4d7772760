"""What the commands that read tables share: ``sql``, ``export`` and ``pipeline``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from penstock.cli.files import open_path
from penstock.cli.output import Exit, say
from penstock.families.options import At, Operation, Values, parse_at
from penstock.families.plan import expand
from penstock.families.registry import options_of
from penstock.families.sources import find_sources, index_at, left_out_words


def _parse_at(text: str) -> At:
    try:
        return parse_at(text)
    except ValueError as expected:
        raise typer.BadParameter(f"{text!r} is not {expected}") from None


AtOption = Annotated[
    Any,  # At | None, which typer does not take
    typer.Option(
        "--at",
        metavar="INDEX|TIME|AGE",
        parser=_parse_at,
        help="The state after this entry, or at this time (2026-01-31T12:00:00Z, or -2h); the last one.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What is known of the files before they are read."""

    size: int
    is_complete: bool  # False if queues are left out, and the caller did not accept that

    @property
    def exit_code(self) -> Exit:
        return Exit.OK if self.is_complete else Exit.DAMAGE


def chosen_paths(paths: Sequence[str], values: Values) -> list[str]:
    """Return paths that open the files which the options choose, without options. Raises ``PenstockError``."""
    own = {name: value for name, value in values.items() if name in _of_pipeline()}
    if not own:
        return list(paths)
    return [str(open_path(path, Operation.PIPELINE, own).root) for path in expand(paths)]


def report_input(paths: Sequence[str], values: Values, *, at: At | None = None) -> Input:
    """Report what people must know of the files at chosen paths, and queues that are not read.

    Raises ``PathRefused`` for a path that holds nothing known, and ``OutOfRange`` for an entry beyond the log.
    """
    sources = find_sources(paths, values=of_tables(values))
    for source in sources:
        if source.notice is not None:
            say(source.notice)
        index_at(source, at)
        if source.left_out:
            say(f"{source.name}: {left_out_words(source.left_out)}")
    is_accepted = "classic_only" in values
    return Input(
        size=sum(source.size for source in sources),
        is_complete=is_accepted or not any(source.left_out for source in sources),
    )


def of_tables(values: Values) -> Values:
    """Return the options that a read of tables has."""
    return {name: value for name, value in values.items() if name not in _of_pipeline()}


def table_options(values: Values, table: str) -> dict[str, str]:
    """Return the flags of families as options of a table; those that are for the tasks are not for other tables."""
    return {
        option.table_name: option.text(values[option.name])
        for _, option in options_of(Operation.TABLES)
        if option.name in values and (table == "tasks" or not option.only_tasks)
    }


def _of_pipeline() -> set[str]:
    return {option.name for _, option in options_of(Operation.PIPELINE)}
