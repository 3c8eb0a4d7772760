"""How moments are written: an index, a time, an age."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidOption
from penstock.families.options import At, Kind, LogTime, Operation, Option, entry_at, parse_at

NOW_MS = 1_795_000_000_123


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("0", 0),
        (" 12 ", 12),
        ("-1", -1),
        ("2026-11-17T02:00:00Z", LogTime(1_794_880_800_000)),
        ("2026-11-17T02:00:00", LogTime(1_794_880_800_000)),
        ("2026-11-17T03:00:00.0019+01:00", LogTime(1_794_880_800_001)),
        ("2026-11-17", LogTime(1_794_873_600_000)),
        ("-0s", LogTime(NOW_MS)),
        ("-90s", LogTime(NOW_MS - 90_000)),
        ("-15m", LogTime(NOW_MS - 900_000)),
        ("-2h", LogTime(NOW_MS - 7_200_000)),
        ("-7d", LogTime(NOW_MS - 604_800_000)),
    ],
)
def test_a_moment_is_an_index_a_time_or_an_age(text: str, at: At) -> None:
    assert parse_at(text, now_ms=lambda: NOW_MS) == at


@pytest.mark.parametrize("text", ["", "-2", "2h", "-2w", "-h", "1.5", "now", "-1000000000s", "9" * 20])  # fmt: skip
def test_another_text_is_refused_with_what_is_taken(text: str) -> None:
    with pytest.raises(ValueError, match="an index from -1 on, a time such as"):
        parse_at(text)


def test_a_time_becomes_text_that_is_the_same_time() -> None:
    at = LogTime(NOW_MS)
    assert parse_at(str(at)) == at


def test_an_option_of_this_kind_is_parsed_so() -> None:
    option = Option(name="at", kind=Kind.AT, help="", operations=frozenset({Operation.TASKS}))
    assert option.parse("7") == 7
    assert isinstance(option.parse("-1h"), LogTime)


def test_files_without_times_take_an_index_and_refuse_a_time() -> None:
    assert entry_at(7, "TaskFlux") == 7
    with pytest.raises(InvalidOption) as caught:
        entry_at(LogTime(NOW_MS), "TaskFlux")
    assert caught.value.option == "at"
