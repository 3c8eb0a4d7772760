"""docs/api.md shows what the source declares, and ``scripts/api --check`` fails if it does not."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import errors

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "api.md").read_text()


def run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "scripts" / "api.py"), *words],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the project's part that the page is made from."""
    for name in ("scripts", "docs"):
        (tmp_path / name).mkdir()
    for name in ("scripts/api.py", "scripts/options_page.py", "docs/api.md", "docs/options.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_page_is_up_to_date() -> None:
    done = run(ROOT, "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "scripts/api --check" in (ROOT / "scripts" / "check").read_text()


def test_the_check_fails_on_a_changed_signature_until_the_page_is_written(copy: Path) -> None:
    assert run(copy, "--check").returncode == 0
    source = copy / "src" / "penstock" / "client" / "worker.py"
    source.write_text(source.read_text().replace("concurrency: int = 1", "concurrency: int = 2"))
    stale = run(copy, "--check")
    assert stale.returncode == 1
    assert "+    concurrency: int = 2," in stale.stderr
    assert "Traceback" not in stale.stderr
    assert run(copy).returncode == 0
    assert run(copy, "--check").returncode == 0
    assert "concurrency: int = 2" in (copy / "docs" / "api.md").read_text()


def test_the_check_fails_on_an_option_that_the_page_has_otherwise(copy: Path) -> None:
    page = copy / "docs" / "options.md"
    page.write_text(page.read_text().replace("--include-transient", "--include-everything"))
    stale = run(copy, "--check")
    assert stale.returncode == 1
    assert "+| `--include-transient`" in stale.stderr


def test_the_check_fails_on_a_name_that_nothing_defines(copy: Path) -> None:
    source = copy / "src" / "penstock" / "aio.py"
    source.write_text(source.read_text().replace('"AsyncClient",', '"AsyncClient", "Missing",'))
    done = run(copy, "--check")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "penstock.aio.Missing" in done.stderr


def test_every_public_name_and_method_is_on_the_page() -> None:
    for name in set(penstock.__all__) - {"aio", "paged", "spark", "tables"}:
        value = getattr(penstock, name)
        if inspect.isclass(value) and issubclass(value, errors.PenstockError):
            assert f"| `{name}` |" in TEXT
        else:
            assert f"### `penstock.{name}`" in TEXT
    for name in ("Client", "Subscription", "SpoolClient"):
        for face in (name, f"Async{name}"):
            assert f"#### `{face}.close`" in TEXT
    assert "#### `Client.run`" not in TEXT  # its docstring says "Internal"


def test_the_tree_of_exceptions_is_that_of_the_classes() -> None:
    tree = TEXT.partition("```\nPenstockError\n")[2].partition("```")[0]
    above = ["PenstockError"]
    for line in tree.splitlines():
        found = re.fullmatch(r"((?:│   |    )*)[├└]── (\w+)", line)
        assert found is not None, line
        depth = len(found[1]) // 4 + 1
        del above[depth:]
        assert getattr(penstock, found[2]).__base__.__name__ == above[-1]
        above.append(found[2])
    assert len(tree.splitlines()) + 1 == TEXT.count("\n| `")
