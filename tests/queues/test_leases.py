"""Leases: a token is given once, ends once, and ends nothing but its own task's lease."""

from __future__ import annotations

from random import Random

import pytest

from penstock.model import NO_OPTIONS, Policy, QueueName
from penstock.queues.leases import Ended, Leases, Owner
from penstock.queues.queue import Queue
from penstock.queues.tasks import Tasks


def queue(number: int = 1) -> Queue:
    return Queue(QueueName(f"q{number}"), number, Policy(), NO_OPTIONS, Tasks())


def ids_of(ended: list[Ended]) -> list[int]:
    return [task_id for one in ended for task_id in one.ids]


def test_tokens_are_never_used_again_in_this_term_or_another() -> None:
    seen: set[int] = set()
    for term in (1, 2, 3, 1000):
        leases = Leases(term)
        for count in (1, 5, 3):
            first = leases.grant(queue(), range(count), Owner(), None, deadline_ms=1)
            given = set(range(first, first + count))
            leases.settle(sorted(given))
            assert not seen & given
            seen |= given
    assert 0 not in seen
    assert max(seen) < 2**63


@pytest.mark.parametrize("seed", range(12))
def test_leases_are_what_a_dictionary_of_tokens_says(seed: int) -> None:
    random = Random(seed)
    leases, queues, owners = Leases(seed), [queue(1), queue(2)], [Owner() for _ in range(3)]
    model: dict[int, tuple[int, Queue, Owner, int]] = {}  # token -> (task, queue, owner, deadline)
    old = [5]
    now, next_id = 0, 1
    for _ in range(500):
        choice = random.random()
        if choice < 0.3:
            ids = list(range(next_id, next_id + random.choice([1, 2, 5])))
            next_id = ids[-1] + 1
            where, owner = random.choice(queues), random.choice(owners)
            deadline = now + random.randint(1, 30)
            first = leases.grant(where, ids, owner, None, deadline_ms=deadline)
            for token, task_id in enumerate(ids, first):
                model[token] = (task_id, where, owner, deadline)
                old.append(token)
        elif choice < 0.6:
            owner_ = random.choice([None, *owners])
            start = random.choice(old)
            tokens = random.choice(
                [
                    list(range(start, start + random.randint(1, 6))),
                    random.sample(old, min(len(old), 4)),
                    sorted(random.sample(old, min(len(old), 9))),
                ]
            )
            good = [t for t in tokens if t in model and owner_ in (None, model[t][2])]
            ended, lost = leases.settle(tokens, owner_)
            assert ids_of(ended) == [model[t][0] for t in good]
            assert lost == [t for t in tokens if t not in good]
            for one in ended:
                assert all(row[1] is one.queue for row in model.values() if row[0] in set(one.ids))
            for token in good:
                del model[token]
        elif choice < 0.7:
            tokens = random.sample(old, min(len(old), 3))
            deadline = now + random.randint(1, 60)
            lost = leases.extend(tokens, deadline_ms=deadline)
            assert lost == [t for t in tokens if t not in model]
            for token in set(tokens) & model.keys():
                model[token] = (*model[token][:3], deadline)
        elif choice < 0.9:
            now += random.randint(0, 12)
            due = {row[0] for row in model.values() if row[3] <= now}
            ended = leases.expire(now)
            assert set(ids_of(ended)) == due
            assert len(ids_of(ended)) == len(due)
            model = {t: row for t, row in model.items() if row[0] not in due}
        elif choice < 0.95:
            gone = random.choice(owners)
            mine = {row[0] for row in model.values() if row[2] is gone}
            assert set(ids_of(leases.end_all_of(gone))) == mine
            assert not gone.batches
            model = {t: row for t, row in model.items() if row[2] is not gone}
        elif choice < 0.97:
            dropped = random.choice(queues)
            there = {row[0] for row in model.values() if row[1] is dropped}
            assert set(ids_of(leases.drop_queue(dropped))) == there
            model = {t: row for t, row in model.items() if row[1] is not dropped}
        assert len(leases) == len(model)
        token = random.choice(old)
        batch = leases.find(token)
        assert (batch is not None) == (token in model)
        assert leases.find(token, Owner()) is None
        following = leases.next_deadline()
        assert (following is None) == (not model)
        if following is not None:
            # A batch is looked at when it was to end, though some of it was extended.
            assert following <= min(row[3] for row in model.values())
    for owner in owners:
        held = {t for t, row in model.items() if row[2] is owner}
        assert {t for batch in owner.batches.values() for t in batch.open_tokens()} == held


def test_an_extension_may_also_shorten_a_lease() -> None:
    leases, owner = Leases(1), Owner()
    first = leases.grant(queue(), [1, 2, 3], owner, None, deadline_ms=100)
    leases.extend([first], deadline_ms=10)
    leases.extend([first + 1], deadline_ms=500)
    assert ids_of(leases.expire(10)) == [1]
    assert ids_of(leases.expire(100)) == [3]
    assert leases.next_deadline() == 500
    assert ids_of(leases.expire(500)) == [2]
    assert leases.next_deadline() is None


def test_a_token_named_twice_counts_once() -> None:
    leases = Leases(1)
    first = leases.grant(queue(), [7, 8], Owner(), None, deadline_ms=100)
    ended, lost = leases.settle([first, first, first + 1])
    assert (ids_of(ended), lost) == ([7, 8], [first])


def test_many_short_leases_leave_nothing_behind() -> None:
    leases, owner = Leases(1), Owner()
    kept = leases.grant(queue(), [0], owner, None, deadline_ms=10**9)
    for task_id in range(1, 20_000):
        token = leases.grant(queue(), [task_id], owner, None, deadline_ms=100)
        leases.settle([token])
    assert len(leases._firsts) < 5000
    assert len(leases._deadlines._heap) < 500
    assert len(owner.batches) == 1
    assert leases.find(kept) is not None
