"""A node that is killed under load, and the proof that the comparison would see what it got wrong.

``scripts/kill-node`` runs many more rounds of the same; docs/testing.md has its figures.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.errors import CorruptData
from rigs.account import Account, Held, compare
from rigs.kill_node import Rig
from support.report import report

SEED = Random().randrange(1_000_000)


@pytest.mark.parametrize(("generation", "rounds"), [(3, 3), (2, 2)])
def test_a_node_that_is_killed_loses_returns_doubles_and_reorders_nothing(
    tmp_path: Path, generation: int, rounds: int
) -> None:
    rig = Rig(tmp_path / "node", seed=SEED, generation=generation)
    assert rig.run(rounds) == [], f"seed {SEED}"
    assert rig.figures.verified > 0
    report(f"node killed: generation {generation}, seed {SEED}: {rig.figures}")


FORGETFUL = """
from penstock.formats.taskflux.deltas import encode_delta
from penstock.model import NOTHING
from penstock.storage.segmented_log import SegmentedLog
append, count = SegmentedLog.append, [0]
def forgetful(self, term, payloads):
    count[0] += 1
    if count[0] % 20 == 0:
        payloads = [*payloads[:-1], encode_delta(NOTHING)]
    append(self, term, payloads)
SegmentedLog.append = forgetful
"""


def test_a_node_that_now_and_then_writes_nothing_is_found_out(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "node", seed=SEED, before=FORGETFUL)
    assert any(is_found_out(rig) for _ in range(20)), f"seed {SEED}"


def is_found_out(rig: Rig) -> bool:
    """Run a round and tell if it found something: one that ends early, or behind a snapshot, need not."""
    try:
        return bool(rig.run(1))
    except (AssertionError, CorruptData):  # a start or the tools refuse what contradicts itself
        return True


# --- the comparison itself -----------------------------------------------------------------------

FOUND: dict[str, Held] = {"orders": [(-1, 3, b"c"), (5, 1, b"a"), (5, 2, b"b")], "mail": []}


def account() -> Account:
    """Return the account of three tasks that a node must have, one that is done, and open questions."""
    account = Account()
    for key, payload, task_id in ((5, b"a", 1), (5, b"b", 2), (-1, b"c", 3)):
        account.send("orders", key, payload)
        account.keep(payload, task_id)
    account.send("orders", 7, b"done")
    account.keep(b"done", 4)
    account.leave(b"done")
    account.forget(b"done")
    account.send("orders", 9, b"unanswered")
    account.send("mail", 9, b"again", is_retried=True)
    account.send("mail", 0, b"leaving")
    account.keep(b"leaving", 1)
    account.leave(b"leaving")
    return account


def test_what_agrees_is_no_problem() -> None:
    assert compare(account(), FOUND) == []


def test_what_was_not_answered_may_be_there_or_not() -> None:
    more: dict[str, Held] = {
        "orders": [*FOUND["orders"], (9, 5, b"unanswered")],
        "mail": [(0, 1, b"leaving"), (9, 2, b"again")],
    }
    assert compare(account(), more) == []


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ([(-1, 3, b"c"), (5, 1, b"a")], "lost: b"),
        ([(-1, 3, b"c"), (5, 1, b"a"), (5, 2, b"b"), (7, 4, b"done")], "returned: done"),
        ([(-1, 3, b"c"), (5, 2, b"b"), (5, 1, b"a")], "order: orders gave (5, 2) before (5, 1)"),
        ([(5, 1, b"a"), (5, 2, b"b"), (-1, 3, b"c")], "order: orders gave (5, 2) before (-1, 3)"),
        ([(-1, 3, b"c"), (5, 1, b"a"), (5, 2, b"b"), (5, 9, b"a")], "doubled: a"),
        ([(-1, 3, b"c"), (5, 1, b"a"), (5, 2, b"b"), (6, 7, b"x")], "invented: x"),
        ([(-1, 3, b"c"), (4, 1, b"a"), (5, 2, b"b")], "changed: a"),
        ([(-1, 3, b"c"), (5, 1, b"a"), (5, 8, b"b")], "changed: b"),
    ],
)
def test_a_wrong_node_is_found_out(wrong: Held, problem: str) -> None:
    problems = compare(account(), {**FOUND, "orders": wrong})
    assert any(found.startswith(problem) for found in problems), problems


def test_a_task_in_another_queue_is_found_out() -> None:
    (problem,) = compare(account(), {"orders": FOUND["orders"][:2], "mail": [(5, 2, b"b")]})
    assert problem.startswith("changed: b")


def test_what_was_settled_by_one_comparison_binds_the_next() -> None:
    there, gone = account(), account()
    more: dict[str, Held] = {**FOUND, "orders": [*FOUND["orders"], (9, 5, b"unanswered")]}
    assert compare(there, more) == compare(gone, FOUND) == []
    assert compare(there, FOUND)[0].startswith("lost: unanswered")
    assert compare(gone, more)[0].startswith("returned: unanswered")


def test_a_retry_that_was_taken_twice_is_found_out() -> None:
    account_ = account()
    assert compare(account_, {**FOUND, "mail": [(9, 2, b"again")]}) == []
    account_.keep(b"again", 7)
    problems = compare(account_, {**FOUND, "mail": [(9, 2, b"again")]})
    assert problems[0].startswith("doubled: again has ids 2 and 7")


def test_a_delivery_after_the_ack_is_found_out() -> None:
    account_ = account()
    account_.deliver(b"done", 4, 7)
    assert compare(account_, FOUND)[0].startswith("returned: done")
