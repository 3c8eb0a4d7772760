"""Axes and numbers as people read them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import INT64_MAX
from penstock.spark.report import units
from penstock.spark.report.axes import Axis, linear, logarithmic, positions, times

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
NEW_YEAR_US = 1_767_225_600_000_000  # 2026-01-01


def labels(axis: Axis) -> list[str]:
    return [tick.label for tick in axis.ticks]


def test_a_linear_axis_has_round_ticks_and_room_for_the_highest() -> None:
    assert labels(linear(7_866, units.short)) == ["0", "2k", "4k", "6k", "8k"]
    assert labels(linear(70 * 2**20, units.size, base=2)) == ["0 B", "32 MiB", "64 MiB", "96 MiB"]
    assert labels(linear(0.3, units.short)) == ["0", "0.1", "0.2", "0.3"]
    assert labels(linear(0, units.short)) == ["0"]


def test_half_a_task_gets_no_tick() -> None:
    assert labels(linear(1, units.short, is_whole=True)) == ["0", "1"]
    assert labels(linear(2, units.short, is_whole=True)) == ["0", "1", "2"]


def test_a_logarithmic_axis_has_a_zero() -> None:
    axis = logarithmic(5_000, units.short)
    assert labels(axis) == ["0", "10", "100", "1k"]
    assert float(axis.place(np.array([0.0]))[0]) == 0
    assert labels(logarithmic(9, units.short)) == ["0", "1"]


def test_an_axis_of_indexes_labels_what_can_be_told_apart() -> None:
    assert labels(positions(0, 216_048))[:3] == ["0", "50k", "100k"]
    assert labels(positions(10_000_000, 10_000_008))[:2] == ["10,000,000", "10,000,001"]
    assert labels(positions(0, 3_000_000))[:3] == ["0", "0.5M", "1.0M"]


def test_an_axis_of_time_names_the_day_at_midnight() -> None:
    assert labels(times(NEW_YEAR_US - 2 * HOUR_US, NEW_YEAR_US + 2 * HOUR_US)) == [
        "22:00", "22:30", "23:00", "23:30", "01-01", "00:30", "01:00", "01:30", "02:00",
    ]  # fmt: skip
    assert labels(times(NEW_YEAR_US, NEW_YEAR_US + 5 * DAY_US))[1] == "01-02"
    assert labels(times(NEW_YEAR_US, NEW_YEAR_US + 6_000_000))[1] == "00:00:01"
    assert labels(times(NEW_YEAR_US, NEW_YEAR_US + 4_000))[1] == "00:00.001"


@given(st.integers(-INT64_MAX, INT64_MAX), st.integers(-INT64_MAX, INT64_MAX))
def test_every_range_has_an_axis_with_few_ticks_inside(one: int, other: int) -> None:
    first, end = sorted((float(one), float(other)))
    for axis in (positions(first, end), times(first, end), linear(end, units.short), logarithmic(end, units.short)):  # fmt: skip
        assert len(axis.ticks) <= 12
        assert all(-1e-3 <= tick.at <= 1 + 1e-3 for tick in axis.ticks)
        assert np.isfinite(axis.place(np.array([first, end]))).all()


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (units.count(999_999), "999,999"),
        (units.count(1_234_567), "1.23\u202fM"),
        (units.count(999_999_999), "1\u202fG"),
        (units.count(2**63), "9.22\u202fE"),
        (units.count(None), units.NONE),
        (units.count(float("nan")), units.NONE),
        (units.count(-5), "-5"),
        (units.short(999.9), "1k"),
        (units.size(0), "0 B"),
        (units.size(1023), "1,023 B"),
        (units.size(1024), "1 KiB"),
        (units.size(2**20 - 1), "1 MiB"),
        (units.size(5_000_000), "4.77 MiB"),
        (units.rate(0.0123), "0.0123/s"),
        (units.rate(12_345.6), "12,346/s"),
        (units.span(0.0042), "4.2 ms"),
        (units.span(59.99), "1 min"),
        (units.span(61), "1 min 1 s"),
        (units.span(7_170), "1 h 59 min"),
        (units.span(90_000), "1 d 1 h"),
        (units.span(-1), "−1 s"),
        (units.span(None), units.NONE),
        (units.moment(NEW_YEAR_US), "2026-01-01 00:00:00"),
        (units.exact(12_345_678_901), "12345678901"),
        (units.exact(2**63 - 1), "9223372036854775807"),
        (units.plural(1, "entry", "entries"), "1 entry"),
        (units.plural(0, "gap"), "0 gaps"),
    ],
)
def test_numbers_read_well(said: str, meant: str) -> None:
    assert said == meant
