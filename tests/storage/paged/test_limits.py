"""The limits that users set for paged queues, and the memory that the default budget is a share of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.errors import InvalidValue
from penstock.storage.paged.limits import (
    MEMORY_MIN,
    MEMORY_SHARE,
    PagedLimits,
    default_memory,
    usable_memory,
)

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
GIB = 2**30


def system(root: Path, groups: str, limits: dict[str, str]) -> Path:
    """Make the files of a kernel that name a process's cgroups and their limits."""
    for name, text in {"proc/self/cgroup": groups, **limits}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_documented_defaults_are_those_of_the_document() -> None:
    limits = PagedLimits()
    assert (limits.journal_entries_max, limits.store_file_size) == (65_536, 16 * 2**20)
    assert limits.memory == default_memory()
    assert MEMORY_MIN <= limits.memory <= MACHINE // MEMORY_SHARE


def test_without_a_cgroup_the_machines_memory_counts(tmp_path: Path) -> None:
    assert usable_memory(tmp_path) == MACHINE
    assert usable_memory(system(tmp_path, "0::/app\n", {})) == MACHINE


@pytest.mark.parametrize(
    ("groups", "limits"),
    [
        ("0::/app\n", {"sys/fs/cgroup/app/memory.max": "4096\n"}),
        ("0::/pod/app\n", {
            "sys/fs/cgroup/pod/memory.max": "4096\n", "sys/fs/cgroup/pod/app/memory.max": "max\n"}),
        ("0::/outside/path\n", {"sys/fs/cgroup/memory.max": "4096\n"}),
        ("0::/../../other\n", {"sys/fs/cgroup/memory.max": "4096\n", "sys/memory.max": "1\n"}),
        ("3:cpu:/x\n2:memory:/app\n", {
            "sys/fs/cgroup/memory/app/memory.limit_in_bytes": "4096\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu/x/memory.limit_in_bytes": "1\n"}),
    ],
    ids=["own", "parent", "namespace", "outside", "version 1"],
)  # fmt: skip
def test_a_cgroups_limit_counts_where_it_is_lower(
    tmp_path: Path, groups: str, limits: dict[str, str]
) -> None:
    assert usable_memory(system(tmp_path, groups, limits)) == 4096


def test_unreadable_files_of_the_kernel_are_no_limit(tmp_path: Path) -> None:
    root = system(tmp_path, "nonsense\n0::/a\n:::::\n", {"sys/fs/cgroup/a/memory.max": "\ud7ff x"})
    assert usable_memory(root) == MACHINE


@pytest.mark.parametrize(
    "wrong",
    [
        {"journal_entries_max": 0},
        {"journal_entries_max": 2**31},
        {"store_file_size": 0},
        {"store_file_size": 2**32},
        {"memory": MEMORY_MIN - 1},
        {"memory": -1},
    ],
)
def test_limits_that_the_engine_cannot_keep_are_rejected(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidValue):
        PagedLimits(**wrong)
