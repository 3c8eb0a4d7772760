"""Where the tables of a pipeline are kept: a directory a run, and a link to the one that counts.

``current`` is replaced by one rename, so a reader sees all tables of one run, and a run that is killed leaves those of
the last. What a run takes over unchanged it links to, file by file; nothing is written twice.

A run holds the directory's lock from its beginning to its end (``lock``), writes to a directory whose name no other run
has, and is published only if its tables have as many rows as its queries returned.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from penstock.errors import CorruptData, DirectoryLocked, PathRefused, needing
from penstock.spark.pipeline.lock import Lock, is_free, take

CURRENT: Final = "current"
RUNS: Final = "runs"
MANIFEST: Final = "manifest.json"
VERSION: Final = 3
LOCK: Final = "lock"
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
        """Begin a run, and remove what runs that have ended left unfinished.

        Raises ``DirectoryLocked`` if another run is under way, and ``PathRefused``.
        """
        runs = self.home / RUNS
        try:
            names = os.listdir(self.home) if self.home.exists() else []
            if names and RUNS not in names:
                raise PathRefused(
                    f"{self.home}: holds files that are not tables of a pipeline; name a new or empty directory"
                )
            runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PathRefused(f"{self.home}: cannot be written to ({error.strerror})") from None
        lock = take(self.home / LOCK)
        try:
            for leftover in runs.glob(f"*{_STAGING}"):
                if is_free(leftover / LOCK):
                    # The Java of a killed run may write there for another moment; the next run removes the rest.
                    shutil.rmtree(leftover, ignore_errors=True)
            numbers = [int(path.name) for path in runs.iterdir() if path.name.isdigit()]
            name = f"{max(numbers, default=0) + 1:06d}"
            home = runs / f"{name}-{uuid.uuid4().hex}{_STAGING}"
            home.mkdir()
            return Staging(self, home, runs / name, lock, take(home / LOCK))
        except BaseException:
            lock.release()
            raise

    def clean(self, kept: Path) -> None:
        """Remove all finished runs but one."""
        for path in (self.home / RUNS).iterdir():
            if path != kept and path.name.isdigit():
                shutil.rmtree(path)


@dataclass(frozen=True, slots=True)
class Staging:
    """A run that is being written. As a context it ends the run: what was not committed is removed."""

    store: Store
    home: Path
    target: Path
    lock: Lock  # of the directory
    owner: Lock  # of this run's own directory

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        self.owner.release()
        self.lock.release()

    def table(self, name: str) -> str:
        return str(self.home / name)

    def take_over(self, run: Run, name: str, keep: Callable[[Path], bool]) -> int:
        """Take over the files of a table of an earlier run whose path under the table is to be kept.

        Return how many rows they have.
        """
        source = run.home / name
        rows = 0
        for path in sorted(source.rglob("*.parquet")):
            inner = path.relative_to(source)
            if not keep(inner):
                continue
            link = self.home / name / inner
            link.parent.mkdir(parents=True, exist_ok=True)
            rows += _count(path)
            try:
                os.link(path, link)
            except OSError:  # a file system without links, or another one
                shutil.copyfile(path, link)
        return rows

    def commit(self, manifest: dict[str, Any], rows: Mapping[str, int]) -> Run:
        """Make this run the one that counts, if its tables have as many ``rows`` as its queries returned.

        Raises ``CorruptData`` if they do not, and ``DirectoryLocked`` if the lock was deleted meanwhile.
        """
        for name, expected in rows.items():
            self._check(name, expected)
        manifest = {"version": VERSION, "rows": dict(rows)} | manifest
        with open(self.home / MANIFEST, "w") as file:
            json.dump(manifest, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        if not self.lock.is_held():
            raise DirectoryLocked(
                f"{self.lock.path}: was deleted while this run held it, so another run may have begun;"
                " nothing is published, run again"
            )
        (self.home / LOCK).unlink()
        self.home.rename(self.target)
        _sync_directory(self.target.parent)
        link = self.store.home / f"{CURRENT}{_STAGING}"
        link.unlink(missing_ok=True)
        link.symlink_to(Path(RUNS) / self.target.name)
        link.rename(self.store.home / CURRENT)
        _sync_directory(self.store.home)
        self.store.clean(self.target)
        return Run(self.target, manifest)

    def _check(self, name: str, expected: int) -> None:
        found = sum(_count(path) for path in (self.home / name).rglob("*.parquet"))
        if found != expected:
            raise CorruptData(
                "the files have not as many rows as were written to them: another process changed them;"
                " nothing is published, run again",
                path=self.table(name),
                expected=f"{expected:,} rows",
                found=f"{found:,}",
            )


def write_delta(staging: Staging) -> None:
    """Make every table of a run a Delta table as well: a log of its files beside them, and nothing is copied.

    Needs the extra ``delta``, and no jar: the library writes the log, Spark wrote the files. Raises ``DependencyMissing``.
    """
    with needing("delta", "a Delta table"):
        from deltalake import Schema, convert_to_deltalake
    import pyarrow as pa

    for table in sorted(path for path in staging.home.iterdir() if path.is_dir()):
        first = next(iter(sorted(table.rglob("*.parquet"))))
        names = [part.split("=")[0] for part in first.relative_to(table).parts[:-1]]
        schema = pa.schema([(name, pa.string()) for name in names]) if names else None
        convert_to_deltalake(
            str(table),
            partition_by=None if schema is None else Schema.from_arrow(schema),
            partition_strategy="hive" if names else None,
            mode="ignore",
        )


def _count(path: Path) -> int:
    """Return how many rows a Parquet file has, by its footer."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
