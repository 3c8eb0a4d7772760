"""Each seeded bug is noticed by the test that the list names for it, and that test passes without the bug.

All of them run in one process of its own, so that no wrong version is ever near the rest of the suite. What else
notices them, and which simulations, is looked up by ``scripts/seeded-bugs`` (docs/seeded-bugs.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seeded_bugs import run
from seeded_bugs.bugs import BUGS, BY_NAME, Bug

DOCS = Path(__file__).parents[2] / "docs" / "seeded-bugs.md"

NOT_A_FINDING = ("TypeError", "AttributeError", "NameError", "ImportError", "TimeoutError")
"""How a patch fails that does not fit the product any more."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return run.run_tests(BUGS, tmp_path_factory.mktemp("seeded"), only_named=True)


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_the_named_test_notices_the_bug(bug: Bug, found: dict[str, dict[str, Any]]) -> None:
    outcome = found[bug.name]
    assert outcome["broken"] is None, "the test fails without the bug as well"
    assert outcome["test"] is not None, f"{bug.test} does not notice it"
    assert not outcome["how"].startswith(NOT_A_FINDING), outcome["how"]


FOUND = {name: known for name, known in run.load_seeds().items() if known["seed"] is not None}


@pytest.mark.heavy
@pytest.mark.parametrize("name", sorted(FOUND))
def test_the_seed_that_found_the_bug_still_does(name: str) -> None:
    # Seeds change their course with the code: a bug that is not found any more needs a new search.
    known = FOUND[name]
    seed, scale, only = known["seed"], known["scale"], known["faults"] is not None
    bug = BY_NAME[name]
    outcome = run.run_seeds(bug, first=seed, seeds=1, tries=1, scale=scale, only_likely=only)
    assert outcome["seed"] == seed


def test_every_area_has_its_bugs_and_every_bug_a_name_of_its_own() -> None:
    areas = {"votes", "quorum", "log", "disk", "snapshots", "membership", "reads", "queue"}
    assert {bug.area for bug in BUGS} == areas
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 30


def test_the_table_in_the_docs_is_the_list() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert run.table(run.load_seeds()) in text
