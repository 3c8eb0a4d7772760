"""The files of the operating system, as every family reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.errors import BadData
from penstock.storage.files import File, OsFiles

FILES: Final = OsFiles()


@contextmanager
def opened(path: Path) -> Iterator[File]:
    """Open a file to read it. A ``BadData`` raised inside the block gets the file's path."""
    file = FILES.open(path, write=False)
    try:
        yield file
    except BadData as error:
        raise error.located(str(path)) from None
    finally:
        file.close()
