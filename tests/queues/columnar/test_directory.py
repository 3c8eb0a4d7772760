"""Finding chunks by id, against a list of all ids."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.queues.columnar.directory import PAGE_MAX, Directory
from penstock.queues.columnar.merge import split
from support.state_examples import chunk

SPANS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans()), min_size=1, max_size=40
)


def build(spans: list[tuple[int, int, bool]], repeat: int = 1) -> tuple[Directory, list[int]]:
    """Return a directory of chunks behind gaps, some with an id column, and all ids."""
    directory, ids, first = Directory(), [], 1
    for gap, count, is_scattered in spans * repeat:
        first += gap
        step = 2 if is_scattered else 1
        own = [first + step * number for number in range(count)]
        columns: dict[str, Any] = {"ids": array("Q", own)} if is_scattered else {}
        directory.append(chunk(first, count, **columns))
        ids += own
        first = own[-1] + 1
    return directory, ids


@given(SPANS, st.sampled_from((1, 20)), st.data())
def test_ids_are_found_where_they_are(
    spans: list[tuple[int, int, bool]], repeat: int, data: st.DataObject
) -> None:
    directory, ids = build(spans, repeat)
    for _ in range(data.draw(st.integers(0, 5))):
        victim = data.draw(st.sampled_from(ids))
        found = directory.find(victim)
        assert found is not None
        directory.remove(found)
        ids = [task_id for task_id in ids if not found.first <= task_id < found.end]
        if not ids:
            break
    last = ids[-1] + 3 if ids else 3
    asked = sorted(data.draw(st.sets(st.integers(1, last), min_size=1, max_size=30)))
    scattered = [chunk.id_at(place) for chunk, place in directory.locate(array("Q", asked))]
    assert scattered == [task_id for task_id in asked if task_id in set(ids)]
    span = range(asked[0], asked[-1] + 1)
    in_span = [i for chunk, places in directory.slices(span) for i in chunk.ids_at(places)]
    assert in_span == [task_id for task_id in ids if task_id in span]


@given(SPANS, st.integers(0, 200), st.integers(0, 300))
def test_cutting_takes_whole_pages_only(
    spans: list[tuple[int, int, bool]], first: int, count: int
) -> None:
    directory, ids = build(spans, 60)
    pages = directory.cut(first, first + count)
    cut = [i for page in pages for chunk in page.chunks for i in chunk.ids_at(range(chunk.count))]
    left = [i for chunk in directory for i in chunk.ids_at(range(chunk.count))]
    assert all(first <= task_id < first + count for task_id in cut)
    assert sorted(cut + left) == ids


def test_a_page_stays_small_when_chunks_are_cut_up() -> None:
    directory, ids = build([(0, 2, False)], 2 * PAGE_MAX)
    for first in ids[::2]:
        old = directory.find(first)
        assert old is not None
        directory.replace([old], list(split(old, 1)))
    assert max(len(page.chunks) for page in directory.pages) <= PAGE_MAX
    assert [chunk.first for chunk in directory] == ids
    assert all(directory.find(task_id) is not None for task_id in ids)


def test_a_frozen_view_keeps_the_chunk_that_a_change_copies() -> None:
    directory, _ = build([(0, 3, False)])
    (old,) = directory.freeze()
    new = directory.own(old)
    new.remove(range(2))
    assert (old.live, new.live) == (3, 1)
    assert directory.own(old) is new
    assert directory.own(new) is new
