"""The fast part of the suite covers what it says."""

from __future__ import annotations

from support.fast import NEED_EXTRAS, PACKAGES, TESTS, is_fast


def test_the_fast_part_leaves_out_only_files_that_exist() -> None:
    assert [name for name in sorted(NEED_EXTRAS) if not (TESTS / name).is_file()] == []
    assert [name for name in PACKAGES if not (TESTS / name).exists()] == []


def test_the_fast_part_has_no_file_of_the_node_or_of_spark() -> None:
    assert is_fast(TESTS / "formats" / "taskflux" / "test_log.py")
    assert not is_fast(TESTS / "formats" / "test_kernel.py")
    assert not is_fast(TESTS / "server")
    assert not is_fast(TESTS / "spark" / "test_source.py")
