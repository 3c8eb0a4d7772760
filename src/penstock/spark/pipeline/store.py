"""Where the tables of a pipeline are kept: a directory a run, and a link to the one that counts.

``current`` is replaced by one rename, so a reader sees all tables of one run, and a run that is killed leaves those of
the last. What a run takes over unchanged it links to, file by file; nothing is written twice.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.errors import CorruptData, PathRefused

CURRENT: Final = "current"
RUNS: Final = "runs"
MANIFEST: Final = "manifest.json"
VERSION: Final = 1
_STAGING: Final = ".staging"


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its directory and what it says of itself."""

    home: Path
    manifest: dict[str, Any]

    def table(self, name: str) -> str:
        return str(self.home / name)


class Store:
    """The directory of a pipeline."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def current(self) -> Run | None:
        """Return the run that counts, or ``None`` before the first. Raises ``CorruptData``."""
        link = self.home / CURRENT
        if not link.is_symlink():
            return None
        path = link.resolve() / MANIFEST
        try:
            manifest = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise CorruptData(
                f"the tables' manifest cannot be read ({error}); run without --incremental",
                path=str(path),
            ) from None
        if manifest.get("version") != VERSION:
            raise CorruptData(
                "the tables are of another version; run without --incremental",
                path=str(path),
                expected=str(VERSION),
                found=str(manifest.get("version")),
            )
        return Run(link.resolve(), manifest)

    def begin(self) -> Staging:
        """Begin a run; what an earlier one left unfinished goes. Raises ``PathRefused``."""
        runs = self.home / RUNS
        if self.home.exists() and not runs.exists() and any(self.home.iterdir()):
            raise PathRefused(
                f"{self.home}: holds something else than our tables; name an empty directory, or a new one"
            )
        runs.mkdir(parents=True, exist_ok=True)
        for leftover in runs.glob(f"*{_STAGING}"):
            shutil.rmtree(leftover)
        numbers = [int(path.name) for path in runs.iterdir() if path.name.isdigit()]
        name = f"{max(numbers, default=0) + 1:06d}"
        home = runs / f"{name}{_STAGING}"
        home.mkdir()
        return Staging(self, home, runs / name)

    def clean(self, kept: Path) -> None:
        """Remove all runs but one."""
        for path in (self.home / RUNS).iterdir():
            if path != kept and path.is_dir():
                shutil.rmtree(path)


@dataclass(frozen=True, slots=True)
class Staging:
    """A run that is being written."""

    store: Store
    home: Path
    target: Path

    def table(self, name: str) -> str:
        return str(self.home / name)

    def take_over(self, run: Run, name: str, keep: Callable[[Path], bool]) -> None:
        """Take over the files of a table of an earlier run whose path under the table is to be kept."""
        source = run.home / name
        for path in sorted(source.rglob("*.parquet")):
            inner = path.relative_to(source)
            if not keep(inner):
                continue
            link = self.home / name / inner
            link.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, link)
            except OSError:  # a file system without links, or another one
                shutil.copyfile(path, link)

    def commit(self, manifest: dict[str, Any]) -> Run:
        """Make this run the one that counts."""
        manifest = {"version": VERSION} | manifest
        with open(self.home / MANIFEST, "w") as file:
            json.dump(manifest, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        self.home.rename(self.target)
        _sync_directory(self.target.parent)
        link = self.store.home / f"{CURRENT}{_STAGING}"
        link.unlink(missing_ok=True)
        link.symlink_to(Path(RUNS) / self.target.name)
        link.rename(self.store.home / CURRENT)
        _sync_directory(self.store.home)
        self.store.clean(self.target)
        return Run(self.target, manifest)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
