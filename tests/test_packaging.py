"""The metadata of the package, as an index shows it, and the lock files that belong to it."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tomllib
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OF_DEVELOPERS = {"test", "dev"}
IMPORTED_AS = {"prometheus-client": "prometheus_client", "protobuf": "google.protobuf"}


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Message:
    """The metadata file of the wheel, made by the build backend."""
    place = tmp_path_factory.mktemp("metadata")
    code = (
        "import sys, hatchling.build as b; print(b.prepare_metadata_for_build_wheel(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(place)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return email.message_from_string((place / done.stdout.strip() / "METADATA").read_text())


def test_the_metadata_names_authors_keywords_and_license(metadata: Message) -> None:
    assert metadata["Author"] == "The Penstock developers"
    assert metadata["Author-email"] is None
    assert metadata["License-Expression"] == "Apache-2.0"
    assert len(metadata["Keywords"].split(",")) >= 8
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_metadata_invents_no_address(metadata: Message) -> None:
    assert metadata.get_all("Project-URL") is None
    assert metadata["Home-page"] is None


def test_the_classifiers_exist_and_say_who_it_is_for(metadata: Message) -> None:
    from trove_classifiers import classifiers, deprecated_classifiers

    given = metadata.get_all("Classifier") or []
    assert set(given) <= classifiers
    assert not set(given) & set(deprecated_classifiers)
    assert given == sorted(set(given))
    kinds = {each.split(" :: ")[0] for each in given}
    assert kinds >= {
        "Development Status",
        "Framework",
        "Intended Audience",
        "Operating System",
        "Programming Language",
        "Topic",
        "Typing",
    }
    versions = {each for each in given if re.search(r":: 3\.\d+$", each)}
    assert {each[-4:] for each in versions} == {"3.11", "3.12", "3.13"}


def requirement_name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return found[0].lower()


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - OF_DEVELOPERS))
def test_every_extra_installs_a_package_that_the_code_imports(extra: str) -> None:
    packages = [requirement_name(each) for each in EXTRAS[extra]]
    modules = "|".join(re.escape(IMPORTED_AS.get(name, name)) for name in packages)
    pattern = re.compile(rf"^\s*(?:import|from) (?:{modules})\b", re.MULTILINE)
    assert any(pattern.search(path.read_text()) for path in (ROOT / "src").rglob("*.py"))


def test_the_extras_of_the_metadata_are_those_of_the_project(metadata: Message) -> None:
    assert set(metadata.get_all("Provides-Extra") or []) == set(EXTRAS)
    assert "web" not in EXTRAS


@pytest.mark.parametrize("lock", ["dev", "all"])
def test_the_lock_files_pin_what_the_project_requires_and_nothing_else(lock: str) -> None:
    blocks = re.split(r"(?m)^(?=[a-z0-9])", (ROOT / "requirements" / f"{lock}.lock").read_text())
    pinned = {block.partition("==")[0]: block.partition("# via")[2] for block in blocks if block}
    direct = {name for name, via in pinned.items() if "penstock (pyproject.toml)" in via}
    lines = [*PROJECT["dependencies"], *(each for some in EXTRAS.values() for each in some)]
    assert direct == {requirement_name(each) for each in lines} - {"penstock"}
    for name, via in pinned.items():
        needed_by = set(re.findall(r"[\w.-]+", via.replace("(pyproject.toml)", ""))) - {"#"}
        assert needed_by & ({*pinned, "penstock"} - {name}), f"nothing needs {name}"
