"""Plots, the numbers behind them, and what their tooltips say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.spark.report import units
from penstock.spark.report.along_log import depth_chart, throughput_charts
from penstock.spark.report.axes import positions
from penstock.spark.report.charts import Mark, bar_chart, group_columns, line_chart
from penstock.spark.report.distributions import key_charts, size_charts
from penstock.spark.report.frame import POINTS_MAX, Series, Unit
from penstock.spark.report.inputs import Inputs, Rows
from penstock.spark.report.measures import Depth, Throughput, queue_totals
from penstock.spark.report.tables import peaks, span_bar, sparkline
from spark.report.html_check import Page
from spark.report.report_samples import NODE, rows_table

TASKS = Unit(name="tasks", ticks=units.short, values=units.count)


def rows_of(name: str, rows: list[dict[str, Any]]) -> Rows:
    return Inputs({name: rows_table(name, [{"source": NODE} | row for row in rows])}).of(name, NODE)


def depth_row(queue: str, bucket: int, depth: int, *, added: int = 0, removed: int = 0, time: int | None = None) -> dict[str, Any]:  # fmt: skip
    return {"queue": queue, "bucket": bucket, "log_index": bucket * 10 + 9, "event_time": time, "added": added,
            "removed": removed, "depth": depth}  # fmt: skip


def test_a_queue_keeps_its_depth_where_it_has_no_row() -> None:
    depth = Depth(
        rows_of(
            "depth",
            [
                depth_row("b", 2, 7, added=2),
                depth_row("a", 0, 3, added=3),
                depth_row("a", 3, 1, removed=2),
                depth_row("c", 1, 0),
            ],
        )
    )
    assert depth.series(["a"]).tolist() == [3, 3, 3, 1]
    # Before its first row, b held the five tasks that a snapshot gave it.
    assert depth.series(["b"]).tolist() == [5, 5, 7, 7]
    assert depth.series(["a", "b", "c"]).tolist() == [8, 8, 10, 8]
    assert dict(zip(depth.queues, depth.peak.tolist(), strict=True)) == {"a": 3, "b": 7, "c": 0}


def test_a_clock_that_was_set_back_does_not_turn_the_plot() -> None:
    rows = [
        depth_row("a", 0, 1, time=50),
        depth_row("a", 1, 1, time=20),
        depth_row("a", 2, 1, time=90),
    ]
    assert Depth(rows_of("depth", rows)).time is not None
    assert np.asarray(Depth(rows_of("depth", rows)).time).tolist() == [50, 50, 90]


def test_a_bucket_without_a_time_stands_between_its_neighbours() -> None:
    depth = Depth(
        rows_of("depth", [depth_row("a", b, 1, time=t) for b, t in ((0, 100), (1, None), (2, 300))])
    )
    assert np.asarray(depth.time).tolist() == [100, 200, 300]
    page = depth_chart(depth, {"a": "c0"}, [], key="k")
    assert "1 bucket without a time, placed between the others." in Page(page).texts


def test_the_last_point_of_a_long_log_is_what_waits_now() -> None:
    rows = [depth_row("a", b, 1_000 if b == 9_998 else 5) for b in range(10_000)]
    page = Page(depth_chart(Depth(rows_of("depth", rows)), {"a": "c0"}, [], key="k"))
    assert "5 now, 1,000 at most" in page.texts
    assert "Each point is the deepest of 42 buckets." in page.text
    assert sum("a: 1,000" in title for title in page.titles) == 1


def test_rates_leave_out_what_has_no_length() -> None:
    rows = [
        {"queue": "a", "bucket": b, "first_index": b * 10, "last_index": b * 10 + 9, "adds": 10, "removes": 4,
         "bytes_added": 1024, "seconds": seconds}
        for b, seconds in enumerate([2.0, None, 5.0, 2.0])
    ]  # fmt: skip
    flow, size = map(Page, throughput_charts(Throughput(rows_of("throughput", rows)), Depth(rows_of("depth", [])), key="k"))  # fmt: skip
    assert flow.titles == ["index 0\nin: 5\nout: 2", "index 10\nin: 0\nout: 0", "index 20\nin: 2\nout: 0.8", "index 30\nin: 5\nout: 2"]  # fmt: skip
    assert "1 bucket of unknown length left out." in flow.texts
    assert "tasks per second" in flow.texts
    assert "40 in all" in flow.texts
    assert "4 KiB in all" in size.texts


def test_without_lengths_throughput_is_by_bucket() -> None:
    rows = [{"queue": q, "bucket": b, "first_index": b * 100, "last_index": b * 100 + 99, "adds": 30} for b in range(3) for q in "ab"]  # fmt: skip
    flow, _ = map(Page, throughput_charts(Throughput(rows_of("throughput", rows)), Depth(rows_of("depth", [])), key="k"))  # fmt: skip
    assert "tasks per 100 entries" in flow.texts
    assert flow.titles[0] == "index 0\nin: 60\nout: 0"


def test_columns_are_grouped_below_the_bound() -> None:
    for columns in (0, 1, POINTS_MAX, POINTS_MAX + 1, 100_000):
        groups = group_columns(columns)
        assert len(groups) <= POINTS_MAX
        assert sum(group.stop - group.start for group in groups) == columns


def test_a_line_breaks_where_there_is_no_value() -> None:
    series = [Series(name="a", values=np.array([1.0, np.nan, 3.0]), colour="c0")]
    made = line_chart(
        key="k", title="t", caption="", across=positions(0, 2), x=np.arange(3.0), series=series, unit=TASKS
    )  # fmt: skip
    assert made.count("<path") == 2 + 3  # grid, line, and a cross for each column
    [line] = [part for part in made.split("<path") if 'class="line c0"' in part]
    assert line.count("M") == 2
    assert "nan" not in made


def test_marks_are_drawn_with_their_words() -> None:
    series = [Series(name="a", values=np.ones(3), colour="c0")]
    made = line_chart(
        key="k", title="t", caption="", across=positions(0, 2), x=np.arange(3.0), series=series, unit=TASKS,
        marks=[Mark(at=1.0, words="Damage <here>")],
    )  # fmt: skip
    assert "Damage <here>" in Page(made).titles
    assert 'd="M500 0V400" class="mark"' in made


def test_the_reader_chooses_between_scales_without_a_script() -> None:
    series = [Series(name="a", values=np.ones(3), colour="c0")]
    made = line_chart(
        key="k", title="t", caption="", across=positions(0, 2), x=np.arange(3.0), series=series, unit=TASKS,
        scales=("log", "linear"),
    )  # fmt: skip
    assert made.index('id="k-log" class="pick log" checked') < made.index('id="k-linear"')


def test_an_uneven_depth_begins_with_the_log_axis() -> None:
    rows = [depth_row("deep", b, 100_000) for b in range(3)] + [
        depth_row("flat", b, 3) for b in range(3)
    ]
    made = depth_chart(Depth(rows_of("depth", rows)), {"deep": "c0", "flat": "c1"}, [], key="k")
    assert 'class="pick log" checked' in made


def test_stacked_bars_stand_on_each_other() -> None:
    made = bar_chart(
        key="k", title="t", caption="", labels=["x"], titles=["x"], unit=TASKS, across="",
        series=[Series(name=n, values=np.array([2.0]), colour=n) for n in ("c0", "c1")],
    )  # fmt: skip
    assert 'y="200" width="760" height="200" class="c0"' in made
    assert 'y="0" width="760" height="200" class="c1"' in made


def test_few_keys_have_a_bar_each_and_many_are_ranges() -> None:
    few = [{"queue": "q", "key": key, "adds": 10, "removes": 8, "waiting": 2} for key in (-5, 0, 7)]
    page = Page(key_charts(rows_of("keys", few), "k", [("q", "c0")]))
    assert page.titles == [f"key {key}\nadded: 10\nwaiting: 2" for key in (-5, 0, 7)]
    many = [{"queue": "q", "key": key, "adds": 1, "waiting": 0} for key in range(4_800)]
    page = Page(key_charts(rows_of("keys", many), "k", [("q", "c0")]))
    assert "4,800 keys in 24 ranges" in page.texts
    assert page.titles[0] == "keys 0 … 199\nadded: 200\nwaiting: 0"


def test_keys_that_lump_together_are_cut_by_their_number() -> None:
    keys = [*range(100), 2**63 - 1, -(2**63)]
    rows = [{"queue": "q", "key": key, "adds": 5, "waiting": 1} for key in keys]
    page = Page(key_charts(rows_of("keys", rows), "k", [("q", "c0")]))
    assert len(page.titles) == 24
    assert all("added: 0" not in title for title in page.titles)
    assert page.tables["Keys that most tasks wait under"][0][1:3] == [str(keys[0]), "1"]


def test_queues_without_a_plot_of_keys_are_said_to_be_left_out() -> None:
    rows = [{"queue": f"q{i}", "key": 1, "adds": 1, "waiting": 1} for i in range(20)]
    page = Page(key_charts(rows_of("keys", rows), "k", [(f"q{i}", f"c{i}") for i in range(7)]))
    assert "… and 14 more queues, not shown here." in page.texts


def test_sizes_have_a_class_for_each_power_of_two() -> None:
    rows = [
        {"queue": q, "size_low": low, "adds": 3, "bytes": 3 * low}
        for q in "ab"
        for low in (0, 8, 64)
    ]
    page = Page(size_charts(rows_of("sizes", rows), "k", {"a": "c0"}))
    assert [title.split("\n")[0] for title in page.titles[:7]] == [
        "empty", "1 byte", "2 to 3 B", "4 to 7 B", "8 to 15 B", "16 to 31 B", "32 to 63 B",
    ]  # fmt: skip
    assert page.titles[0] == "empty\nall: 6\na: 3\n1 other queue: 3"
    assert "1 other queue" in page.texts


def test_the_summary_of_tasks_wins_over_the_depth_of_the_log() -> None:
    depth = Depth(rows_of("depth", [depth_row("a", 0, 4), depth_row("b", 0, 9)]))
    summary = rows_of("tasks_summary", [{"queue": "a", "count": 6, "bytes": 60}])
    totals = queue_totals(depth, rows_of("throughput", []), summary)
    assert [(queue.name, queue.waiting, queue.peak) for queue in totals] == [
        ("b", 9, 9),
        ("a", 6, 4),
    ]


@pytest.mark.parametrize("values", [[0.0], [5.0], [0.0, 0.0], [1e19, 0.0], [float("nan"), 1.0]])
def test_any_values_make_a_sparkline(values: list[float]) -> None:
    made = sparkline(np.array(values), "c0", "<hint>")
    assert Page(made).titles == ["<hint>"]
    assert "nan" not in made


def test_a_sparkline_keeps_the_peak() -> None:
    values = np.zeros(10_000)
    values[1_234] = 7
    assert peaks(values).max() == 7
    assert len(peaks(values)) == 50


def test_a_stretch_that_is_too_short_to_see_is_seen() -> None:
    assert 'width="0.5"' in span_bar(0.3, 0.3, colour="c0", hint="")
    assert 'x="99.5"' in span_bar(2.0, 3.0, colour="c0", hint="")
