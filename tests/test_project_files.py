"""What a stranger looks for first: guides, templates, the workflow of the forge, the tour of the code."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def workflow(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    return read


def declared_pythons() -> list[str]:
    """Return the versions that the classifiers declare."""
    return re.findall(
        r"Python :: (3\.\d+)$", "\n".join(PROJECT["project"]["classifiers"]), re.MULTILINE
    )


@pytest.mark.parametrize("job", ["base", "full"])
def test_the_workflow_runs_every_declared_python_with_and_without_extras(job: str) -> None:
    assert workflow("ci.yml")["jobs"][job]["strategy"]["matrix"]["python"] == declared_pythons()


def test_every_script_of_the_workflows_and_hooks_is_there() -> None:
    steps = [
        step.get("run", "")
        for name in ("ci.yml", "release.yml")
        for job in workflow(name)["jobs"].values()
        for step in job["steps"]
    ]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    named = re.findall(
        r"(?:scripts|\.ci)/[\w-]+", "\n".join([*steps, *(h["entry"] for h in hooks)])
    )
    assert {"scripts/check", "scripts/test", "scripts/lines", ".ci/run"} <= set(named)
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_hooks_and_the_changelog_use_tools_of_the_locked_environment() -> None:
    locked = (ROOT / "requirements" / "dev.lock").read_text()
    for tool in ("ruff", "import-linter", "pre-commit", "towncrier"):
        assert re.search(rf"^{tool}==", locked, re.MULTILINE), tool


def test_the_hooks_are_valid() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-config", ".pre-commit-config.yaml"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_changelog_can_be_built_from_its_fragments() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9.9"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    fragments = list((ROOT / "changelog.d").glob("+*.md"))
    assert fragments
    for path in fragments:
        first = path.read_text().split()[:3]
        assert " ".join(first) in " ".join(done.stdout.split()), path.name


def test_every_word_of_the_style_guide_is_in_the_glossary() -> None:
    style = (ROOT / "docs" / "contributing" / "style.md").read_text()
    table = style[style.index("### Glossary") : style.index("## Structure")]
    words = [
        word.strip(" `*")
        for row in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)[1:]
        for word in row.split(",")
        if not row.startswith("---")
    ]
    assert len(words) > 50
    glossary = (
        (ROOT / "docs" / "glossary.md").read_text().lower().replace("request id", "request_id")
    )
    assert [word for word in words if word.lower() not in glossary] == []


def test_links_of_the_tour_point_to_what_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    lines = import_module("lines")
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(lines.LINK.findall(text)) >= 20
    assert lines.corrected(text, ROOT) == (text, [])


def test_a_link_to_a_wrong_line_is_corrected_and_a_missing_name_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    lines = import_module("lines")
    (tmp_path / "a.py").write_text("import os\n\n\nclass A:\n    def f(self) -> None: ...\n")
    text, wrong = lines.corrected("[`A.f`](a.py#L1) [`A.g`](a.py#L5) [`B`](b.py#L1)", tmp_path)
    assert text == "[`A.f`](a.py#L5) [`A.g`](a.py#L5) [`B`](b.py#L1)"
    assert [words.split()[0] for words in wrong] == ["A.f", "a.py", "b.py"]


def test_no_page_for_strangers_names_a_person_or_an_address() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.*"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        if page.is_file():
            found = re.findall(r"[\w.+-]+@[\w-]+\.[a-z]{2,}", page.read_text())
            assert found == [], page.name


def test_the_readme_on_a_package_index_has_no_image_or_link_that_leads_nowhere() -> None:
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    metadata = ProjectMetadata(str(ROOT), PluginManager())
    text = metadata.core.readme
    assert metadata.core.readme_content_type == "text/markdown"
    assert "## Why and when" in text
    assert "producer ──► node" in text, "the picture that needs no file"
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert targets
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
