"""A producer that spools and a node, both killed at random, and the proof that the comparison would see what is wrong.

``scripts/kill-spool`` runs the same for a minute and more.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from rigs.kill_spool import Account, Rig
from support.report import report

SEED = Random().randrange(1_000_000)


def test_a_killed_producer_and_a_killed_node_lose_double_and_reorder_nothing(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, seed=SEED)
    assert rig.run(6.0) == [], f"seed {SEED}"
    assert rig.figures.durable > 0
    report(f"spool: seed {SEED}: {rig.figures}")


@pytest.mark.heavy
@pytest.mark.parametrize("only", ["node", "producer", None])
def test_for_a_minute(tmp_path: Path, only: str | None) -> None:
    rig = Rig(tmp_path, seed=SEED, only=only)
    assert rig.run(60.0) == [], f"seed {SEED}"
    report(f"spool, {only or 'both'} killed: seed {SEED}: {rig.figures}")


def account() -> Account:
    account = Account()
    account.hear("begin 0 0 2 orders 1")
    account.hear("durable 0 2")
    account.hear("begin 0 2 1 orders 1")  # and then it was killed
    account.hear("begin 0 3 1 mail 0")
    account.hear("durable 0 4")
    return account


RIGHT = {"orders": [(1, b"0 0 x"), (1, b"0 1 x")], "mail": [(0, b"0 3 x")]}


def compared(tmp_path: Path, found: dict[str, list[tuple[int, bytes]]]) -> list[str]:
    rig = Rig(tmp_path, seed=1)
    rig.account = account()
    return rig.compare(found)


def test_what_agrees_is_no_problem_whether_the_unpromised_came_or_not(tmp_path: Path) -> None:
    assert compared(tmp_path, RIGHT) == []
    assert compared(tmp_path, {**RIGHT, "orders": [*RIGHT["orders"], (1, b"0 2 x")]}) == []


@pytest.mark.parametrize(
    ("orders", "problem"),
    [
        ([(1, b"0 0 x")], "lost: 0 1"),
        ([(1, b"0 0 x"), (1, b"0 1 x"), (1, b"0 1 x")], "doubled: 0 1"),
        ([(1, b"0 1 x"), (1, b"0 0 x")], "order: 0 0 after 1"),
        ([(1, b"0 0 x"), (2, b"0 1 x")], "invented or changed: 0 1 in orders, key 2"),
        ([(1, b"0 0 x"), (1, b"0 1 x"), (1, b"5 9 x")], "invented or changed: 5 9 in orders"),
    ],
)
def test_what_is_wrong_is_found_out(
    tmp_path: Path, orders: list[tuple[int, bytes]], problem: str
) -> None:
    problems = compared(tmp_path, {**RIGHT, "orders": orders})
    assert any(found.startswith(problem) for found in problems), problems
