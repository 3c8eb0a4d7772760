"""Directories that commands make: typer turns an empty path into the current directory before a command sees it."""

from __future__ import annotations

from pathlib import Path

import typer

from penstock.errors import InvalidValue
from penstock.storage.files import checked_directory


def new_directory(text: str) -> Path:
    """Return the path of a directory that a command may make. Raises ``typer.BadParameter`` for an empty one."""
    try:
        return checked_directory(text, "the directory")
    except InvalidValue as error:
        raise typer.BadParameter(str(error)) from None
