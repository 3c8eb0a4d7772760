"""Snapshots that were cut or had a bit turned: what is noticed, and exactly what cannot be.

docs/formats/snapshot.md says which bytes a layout's checksum covers. Generation 1 has none.
"""

from __future__ import annotations

from random import Random
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.taskflux.snapshot import MARKER_1, MARKER_1A, SnapshotLayout
from penstock.model import DEFAULT_QUEUE
from support.damage import (
    all_of,
    bits,
    cuts,
    flipped,
    name_bits,
    number,
    turns_into,
    unnoticed,
)
from support.report import report
from support.snapshot_files import decoded, encoded, is_read
from support.taskflux_strategies import snapshots
from support.taskflux_vectors import SNAPSHOT_1, SNAPSHOT_1B, SNAPSHOT_2, SNAPSHOTS

FILES: dict[SnapshotLayout, bytes] = {
    **{vector.layout: vector.data for vector in SNAPSHOTS},
    SnapshotLayout.ONE_C: MARKER_1 + SNAPSHOT_2[4:-4],
    SnapshotLayout.ONE_A: MARKER_1A + pack("<ii", 2, 2) + SNAPSHOT_1B[12:],
    SnapshotLayout.ONE_A_COUNTED: MARKER_1A + pack("<ii", 2, 2) + SNAPSHOT_1[12:],
}
"""The golden state in every layout."""

each_layout = pytest.mark.parametrize("layout", SnapshotLayout, ids=lambda layout: layout.name)


def test_there_is_a_file_of_every_layout() -> None:
    assert set(FILES) == set(SnapshotLayout)
    for layout, data in FILES.items():
        assert decoded(data).layout is layout


# --- cuts ----------------------------------------------------------------------------------------

# A file without a checksum can be cut to one that is whole: right behind its first queue if it has
# no count. With a count, its bytes can be read as a default queue of the layout that has none.
READABLE_CUTS: dict[SnapshotLayout, dict[int, SnapshotLayout]] = {
    SnapshotLayout.ONE_B: {21: SnapshotLayout.ONE_B},
    SnapshotLayout.ONE_A: {21: SnapshotLayout.ONE_A},
    SnapshotLayout.ONE_COUNTED: {21: SnapshotLayout.ONE_B, 23: SnapshotLayout.ONE_D},
    SnapshotLayout.ONE_A_COUNTED: {21: SnapshotLayout.ONE_A},
    SnapshotLayout.ONE_C: {33: SnapshotLayout.ONE_B},
    SnapshotLayout.ONE_D: {21: SnapshotLayout.ONE_B, 23: SnapshotLayout.ONE_D},
}


@each_layout
def test_a_snapshot_cut_anywhere_is_refused_but_where_another_ends(layout: SnapshotLayout) -> None:
    data = FILES[layout]
    readable = {len(part): decoded(part).layout for part in cuts(data) if is_read(part)}
    assert readable == READABLE_CUTS.get(layout, {})
    for size in readable:
        assert [head.name for head, _ in decoded(data[:size]).queues] == [DEFAULT_QUEUE]


@each_layout
def test_a_cut_snapshot_is_refused_if_its_layout_is_known(layout: SnapshotLayout) -> None:
    """The count shows a file cut between two queues; only the layouts without one cannot."""
    whole_queues = set() if layout.is_counted else {23 if layout is SnapshotLayout.ONE_D else 21}
    readable = {len(part) for part in cuts(FILES[layout]) if is_read(part, layout)}
    assert readable == whole_queues


# --- flips ---------------------------------------------------------------------------------------


def point_bits(layout: SnapshotLayout) -> set[int]:
    """Return the bits of index and term that leave an index from 0 and a term from 1 on."""
    data, size = FILES[layout], layout.point.size // 2
    little = layout.marker == MARKER_1A

    def value(raw: bytes) -> int:
        return number(raw[::-1] if little else raw)

    index = turns_into(data, 4, 4 + size, lambda raw: value(raw) >= 0)
    return index | turns_into(data, 4 + size, 4 + 2 * size, lambda raw: value(raw) >= 1)


def limit_form_bits(layout: SnapshotLayout) -> set[int]:
    """Return what nothing covers in a queue with a bare limit: all but names' lengths and counts."""
    at = layout.state_offset + 4 * layout.is_counted
    data = FILES[layout]
    return all_of(
        (
            bits(at + 1, at + 5),  # the default queue's limit
            name_bits(data, at + 10, at + 16),
            bits(at + 16, at + 20),  # the limit of "orders"
            bits(at + 24, at + 32),  # key 5
            bits(at + 36, at + 46),  # "hi" and key -1
        )
    )


def policy_form_bits(layout: SnapshotLayout) -> set[int]:
    """Return the same of a queue with a policy, some of whose values cannot be."""
    data, at = FILES[layout], layout.state_offset + 4

    def is_range(bit: int) -> bool:
        raw = flipped(data, bit)[at + 38 : at + 54]
        return number(raw[:8]) <= number(raw[8:])

    def limit(first: int) -> set[int]:
        return turns_into(data, first, first + 4, lambda raw: number(raw) >= -1)

    return all_of(
        (
            limit(at + 5),
            limit(at + 9),
            name_bits(data, at + 19, at + 25),
            limit(at + 29),
            limit(at + 33),
            turns_into(data, at + 37, at + 38, lambda raw: raw != b"\x00"),
            set(filter(is_range, bits(at + 38, at + 54))),
            bits(at + 58, at + 66),  # key 5
            bits(at + 70, at + 80),  # "hi" and key -1
        )
    )


def optional_form_bits() -> set[int]:
    """Return the same of a queue with limits that may be absent."""
    data, at = FILES[SnapshotLayout.ONE_D], SnapshotLayout.ONE_D.state_offset

    def is_range(bit: int) -> bool:
        raw = flipped(data, bit)[at + 23 : at + 39]
        return number(raw[:8]) <= number(raw[8:])

    def limit(first: int) -> set[int]:
        return turns_into(data, first, first + 4, lambda raw: number(raw) >= -1)

    return all_of(
        (
            limit(at + 1),
            name_bits(data, at + 12, at + 18),
            limit(at + 18),
            turns_into(data, at + 22, at + 23, lambda raw: raw != b"\x00"),
            set(filter(is_range, bits(at + 23, at + 39))),
            bits(at + 44, at + 52),  # key 5
            bits(at + 56, at + 66),  # "hi" and key -1
        )
    )


def invisible(layout: SnapshotLayout) -> set[int]:
    match layout:
        case SnapshotLayout.TWO_SEED:
            return set()
        case SnapshotLayout.TWO_CODE | SnapshotLayout.THREE:
            return point_bits(layout)
        case SnapshotLayout.ONE_C:
            return point_bits(layout) | policy_form_bits(layout)
        case SnapshotLayout.ONE_D:
            return point_bits(layout) | optional_form_bits()
        case _:
            return point_bits(layout) | limit_form_bits(layout)


COUNTS = {
    SnapshotLayout.ONE_A: 310,
    SnapshotLayout.ONE_A_COUNTED: 310,
    SnapshotLayout.ONE_COUNTED: 310,
    SnapshotLayout.ONE_B: 310,
    SnapshotLayout.ONE_C: 413,
    SnapshotLayout.ONE_D: 411,
    SnapshotLayout.TWO_SEED: 0,
    SnapshotLayout.TWO_CODE: 61,
    SnapshotLayout.THREE: 125,
}


@each_layout
def test_every_flip_is_noticed_but_where_nothing_covers_it(layout: SnapshotLayout) -> None:
    data = FILES[layout]
    found = unnoticed(data, lambda changed: not is_read(changed))
    assert found == invisible(layout)
    assert len(found) == COUNTS[layout]
    report(f"snapshot {layout.name}: {len(found)} of {8 * len(data)} flips invisible")


@each_layout
def test_no_flip_makes_a_snapshot_of_another_layout(layout: SnapshotLayout) -> None:
    for bit in invisible(layout):
        assert decoded(flipped(FILES[layout], bit)).layout is layout


@pytest.mark.parametrize(
    "layout", [x for x in SnapshotLayout if x.is_checked], ids=lambda x: x.name
)
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_no_cut_and_no_flip_of_a_checked_state_is_read(
    layout: SnapshotLayout, data: st.DataObject, random: Random
) -> None:
    point, queues = data.draw(snapshots(layout))
    raw = encoded(point, queues, layout)
    for _ in range(8):
        cut = raw[: random.randrange(len(raw))]
        turned = flipped(raw, random.randrange(8 * layout.covered_offset, 8 * len(raw)))
        for damaged in (cut, turned):
            assert not is_read(damaged)
            assert not is_read(damaged, layout)
