"""The wheel, as ``pip install`` would put it in place: what is in it, and that the page's tests run with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "testing-your-code.md"
FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the contents of the wheel that this tree builds."""
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    done = subprocess.run(
        [*command, "--directory", str(place)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    [path] = place.glob("*.whl")
    with ZipFile(path) as file:
        file.extractall(place / "site")
    return place / "site"


def test_the_wheel_has_what_users_test_with_and_no_simulator(wheel: Path) -> None:
    names = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*.py")}
    assert {name for name in names if name.startswith("penstock/testing/")} == {
        f"penstock/testing/{name}.py" for name in ("__init__", "clock", "disk", "node", "plugin")
    }
    assert "penstock/server/node.py" in names
    assert [name for name in names if "simulat" in name or "checking" in name] == []
    assert {Path(name).parts[0] for name in names} == {"penstock"}
    [entry_points] = wheel.glob("*.dist-info/entry_points.txt")
    assert "simulat" not in entry_points.read_text()


def test_the_tests_of_the_page_pass_with_the_wheel_and_pytest_alone(
    wheel: Path, tmp_path: Path
) -> None:
    files = FILE.findall(PAGE.read_text())
    assert len(files) == PAGE.read_text().count("```python")
    for name, text in files:
        (tmp_path / name).write_text(text)
    (tmp_path / "test_place.py").write_text(
        f"import penstock\n\n\ndef test_place():\n    assert {str(wheel)!r} in penstock.__file__\n"
    )
    words = ["-m", "pytest", "--quiet", "-W", "error", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(wheel), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    count = sum(text.count("def test_") for _, text in files) + 1
    assert f"{count} passed" in done.stdout
