"""Every course of a small group: nothing that must not happen does, in any of them."""

from __future__ import annotations

import pytest

from raft.search import Bounds, Search
from support.report import report


def walk(bounds: Bounds, *, places_max: int) -> None:
    search = Search(bounds)
    places, is_all = search.run(places_max=places_max)
    report(
        f"exhaustive search, {bounds}: {places} places of {len(search.ones)} states of a member,"
        f" {len(search.messages)} messages"
    )
    assert is_all


def test_one_term_two_entries_and_a_crash() -> None:
    walk(Bounds(terms=1, entries=2, crashes=1), places_max=1_000_000)


@pytest.mark.heavy
@pytest.mark.parametrize("crashes", [0, 1])
def test_two_terms_two_entries(crashes: int) -> None:
    """The entries are those that each leader begins its term with."""
    walk(Bounds(terms=2, entries=1, crashes=crashes), places_max=150_000_000)
