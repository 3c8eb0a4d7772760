"""Flags of commands, derived from the options that the families declare (``families.option``)."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from penstock.cli.output import say
from penstock.errors import InvalidOption
from penstock.families.family import Files
from penstock.families.option import Kind, Operation, Option, Values
from penstock.families.registry import NO_VALUES, open_files, options_of

VALUES: Final = "values"
"""The parameter of a command that receives the options which were given."""

PREFIX: Final = "family_"
"""Before the names of parameters that are flags of families: a command may have a parameter of that name itself."""


def with_family_flags(
    *operations: Operation,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each option of these operations; the command takes them as ``values``.

    The help of a flag names the families that have the option.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        options = _merged(operations)

        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            given = {name: arguments.pop(PREFIX + name) for name in options}
            values = {
                name: _parsed(options[name][0], value)
                for name, value in given.items()
                if value is not None and value is not False
            }
            with usage_errors():
                command(**arguments, values=values)

        hints = get_type_hints(command, include_extras=True)
        signature = inspect.signature(command)
        parameters = [
            each.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, each in signature.parameters.items()
            if name != VALUES
        ]
        parameters += [_parameter(option, help_) for option, help_ in options.values()]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


_TYPES: Final[dict[Kind, Any]] = {
    Kind.FLAG: bool,
    Kind.NUMBER: int | None,
    Kind.FILE: Path | None,
    Kind.TEXT: str | None,
    Kind.TIME: str | None,
}


def _flag(option: Option, help_: str) -> Any:
    """Return the annotation of a parameter that is an option's flag."""
    details: dict[str, Any] = {"help": help_}
    if option.metavar is not None:
        details["metavar"] = option.metavar
    if option.kind is Kind.NUMBER:
        details["min"] = option.lowest
    if option.kind is Kind.FILE:
        details["readable"] = False  # the family reports a file that cannot be read
    return Annotated[_TYPES[option.kind], typer.Option(option.flag, **details)]


def open_path(path: Path, operation: Operation, values: Values = NO_VALUES) -> Files:
    """Return the files at a path, and report what people must know of them. Raises ``PenstockError``."""
    files = open_files(path, operation, values)
    if files.notice is not None:
        say(files.notice)
    return files


@contextmanager
def usage_errors() -> Iterator[None]:
    """Report an option that does not apply as wrong usage."""
    try:
        yield
    except InvalidOption as error:
        flag = "--" + re.sub("_|(?=[A-Z])", "-", error.option).lower()
        raise typer.BadParameter(error.reason, param_hint=flag) from None


def _merged(operations: tuple[Operation, ...]) -> dict[str, tuple[Option, str]]:
    """Return the options of operations by name, each with a help that covers all families which have it."""
    helps: dict[str, dict[str, list[str]]] = {}
    options: dict[str, Option] = {}
    for family, option in options_of(*operations):
        options.setdefault(option.name, option)
        titles = helps.setdefault(option.name, {}).setdefault(option.help, [])
        titles.append(family.title)
    return {
        name: (
            option,
            " ".join(f"{', '.join(titles)}: {text}" for text, titles in helps[name].items()),
        )
        for name, option in options.items()
    }


def _parameter(option: Option, help_: str) -> inspect.Parameter:
    return inspect.Parameter(
        PREFIX + option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if option.kind is Kind.FLAG else None,
        annotation=_flag(option, help_),
    )


def _parsed(option: Option, value: Any) -> Any:
    """Return the value of a flag as the family takes it. Raises ``typer.BadParameter``."""
    if not isinstance(value, str):
        return value
    try:
        return option.parse(value)
    except ValueError as expected:
        raise typer.BadParameter(f"{value!r} is not {expected}", param_hint=option.flag) from None
