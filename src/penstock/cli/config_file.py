"""Flags from a file: TOML with the names of the flags, with ``-`` or ``_``. The command line takes precedence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

import typer

CONFIG_SIZE_MAX: Final = 2**20
"""Far more than all flags take: a larger file is another one by mistake."""


def take_flags(context: typer.Context, path: Path | None) -> Path | None:
    """Make what a file says the defaults of a command's flags. Raises ``typer.BadParameter``."""
    if path is None:
        return None
    flags = {
        option.removeprefix("--"): parameter.name
        for parameter in context.command.params
        for option in parameter.opts
        if option not in ("--config", "--help")
    }
    found: dict[str, Any] = {}
    for written, value in _read(path).items():
        name = written.replace("_", "-")
        if name not in flags:
            raise typer.BadParameter(
                f"{path}: {written!r} is not a flag; the flags are {', '.join(flags)}"
            )
        if flags[name] in found:
            raise typer.BadParameter(
                f"{path}: {name} is given twice, as {written!r} the second time"
            )
        found[str(flags[name])] = _plain(path, name, value)
    context.default_map = found
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_SIZE_MAX + 1)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror or error}") from None
    if len(data) > CONFIG_SIZE_MAX:
        raise typer.BadParameter(f"{path} has more than {CONFIG_SIZE_MAX} bytes")
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # not UTF-8, or not TOML
        raise typer.BadParameter(f"{path} is not valid TOML: {error}") from None


def _plain(path: Path, name: str, value: object) -> str | bool:
    """Return a value as it would be typed; a table is a list of ``KEY=VALUE``."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
        return ",".join(f"{key}={each}" for key, each in value.items())
    raise typer.BadParameter(f"{path}: {name} is a value, or a table of texts")
