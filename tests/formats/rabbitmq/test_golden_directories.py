"""The golden directories of RabbitMQ can be unpacked by every Python that the package supports."""

from __future__ import annotations

from pathlib import Path

from support.rabbitmq_directories import unpacked
from support.rabbitmq_golden import members


def test_a_stock_debian_12_unpacks_the_golden_directories(tmp_path: Path) -> None:
    """Python 3.11.2 has no ``filter`` in ``extractall``: 254 tests failed there and nowhere else."""
    name = "c1_small_embedded_live"
    directory = unpacked(name, tmp_path)
    found = {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
    assert found == {path.as_posix(): data for path, data in members(name)}
    assert found
