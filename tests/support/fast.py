"""The fast part of the suite: the pure packages, on the base and test dependencies alone.

``scripts/test --fast`` runs it in the usual environment, ``scripts/test --oldest`` in one that has nothing else. There a
test file that needs an extra and is not listed here fails to import, so the list cannot be forgotten.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent.parent

PACKAGES = ("formats", "protocol", "queues", "raft", "test_binary.py", "test_model.py")
"""What the fast part covers, below ``tests``."""

NEED_EXTRAS = frozenset(
    (
        "formats/beats/test_body.py",
        "formats/beats/test_event.py",
        "formats/beats/test_event_protobuf.py",
        "formats/beats/test_frame_scan.py",
        "formats/beats/test_task_event.py",
        "formats/beats/test_vectors.py",
        "formats/rabbitmq/test_journal.py",
        "formats/rabbitmq/test_merge_scan.py",
        "formats/rabbitmq/test_message_scan.py",
        "formats/rabbitmq/test_message_store.py",
        "formats/rabbitmq/test_places.py",
        "formats/rabbitmq/test_segment.py",
        "formats/rabbitmq/test_writing.py",
        "formats/records/test_arrow.py",
        "formats/records/test_scan.py",
        "formats/records/test_task_scan.py",
        "formats/taskflux/test_entries.py",
        "formats/taskflux/test_extension_columns.py",
        "formats/taskflux/test_hostile_input.py",
        "formats/taskflux/test_log_scan.py",
        "formats/taskflux/test_snapshot_columns.py",
        "formats/test_kernel.py",
        "formats/test_kernel_bytes.py",
        "raft/test_search.py",
    )
)
"""Test files of these packages that import numpy, numba or a library of the spool."""


def is_fast(path: Path) -> bool:
    """Return whether a file or directory below ``tests`` belongs to the fast part."""
    name = path.relative_to(TESTS).as_posix()
    return name == "." or (name.split("/")[0] in PACKAGES and name not in NEED_EXTRAS)
