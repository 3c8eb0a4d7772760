"""The page as a whole: whole HTML, closed to the world, bounded, and true to its tables."""

from __future__ import annotations

import re
from datetime import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.report import Facts, make_report
from penstock.spark.report.inputs import COLUMNS
from spark.report.html_check import Page
from spark.report.report_samples import (
    NODE,
    bad_day,
    empty_tables,
    facts,
    realistic,
    rows_table,
    source_facts,
)

HOSTILE = [
    "</title></script><script>alert(1)</script>",
    "\"' onload=alert(1) x='",
    "<img src=http://evil.example/x.png>",
    "&lt;b&gt; &amp; ]]> <!-- -->",
    "\x00\x1b[31m\u202eevil\u2066\r\n",
    "q" * 255,
    "очередь 队列 🚰",
    "",
]


@pytest.fixture(scope="module")
def realistic_page() -> Page:
    return Page(make_report(*realistic(entries=6_000)))


@pytest.fixture(scope="module")
def bad_page() -> Page:
    return Page(make_report(*bad_day(entries=3_000)))


def _is_closed(page: str) -> None:
    parsed = Page(page)
    assert parsed.tags.count("script") == 1
    assert not parsed.handlers
    assert all(
        reference == "data:," or reference.startswith("#") for reference in parsed.references
    )
    assert {reference[1:] for reference in parsed.references if reference != "data:,"} <= set(
        parsed.ids
    )
    assert len(parsed.ids) == len(set(parsed.ids))


def test_the_page_refers_to_nothing_outside_itself() -> None:
    for tables, about in (
        realistic(entries=6_000),
        bad_day(entries=3_000),
        (empty_tables(), facts()),
    ):
        page = make_report(tables, about)
        _is_closed(page)
        assert "http://" not in page
        assert "https://" not in page
        assert "url(" not in page
        assert "@import" not in page


def test_the_same_tables_make_the_same_page() -> None:
    assert make_report(*realistic(entries=300)) == make_report(*realistic(entries=300))


def test_a_damaged_place_is_the_first_thing_said(realistic_page: Page) -> None:
    assert realistic_page.texts[2:4] == ["✕", "Something is wrong: 1 damaged place"]
    [row] = realistic_page.tables["Damage"]
    assert row[0] == "bad-checksum"
    [damage] = realistic(entries=6_000)[0]["damage"].to_pylist()
    assert row[4:6] == [str(damage["offset"]), "643 B"]


def test_a_whole_log_says_that_nothing_is_wrong() -> None:
    tables, about = realistic(entries=300)
    tables["damage"] = rows_table("damage", [])
    page = Page(make_report(tables, about))
    assert "Nothing is wrong" in page.texts
    assert "What is wrong" not in page.texts
    assert "one source, so nothing to compare" in page.text


def test_what_was_not_looked_at_is_not_called_whole() -> None:
    tables, about = realistic(entries=300)
    for name in ("damage", "gaps", "divergence"):
        del tables[name]
    page = Page(make_report(tables, about))
    assert "Nothing wrong found, but not everything was looked at" in page.texts
    assert page.texts.count("not looked for") == 3


def test_what_no_table_tells_is_not_called_zero() -> None:
    page = Page(make_report({}, facts(source_facts())))
    assert page.texts[page.texts.index("Waiting now") + 1] == "–"
    assert page.texts[page.texts.index("In") + 1] == "–"
    page = Page(make_report(empty_tables(), facts(source_facts())))
    assert page.texts[page.texts.index("Waiting now") + 1] == "0"


def test_one_slow_queue_does_not_hide_the_others() -> None:
    slow = [
        {"source": NODE, "queue": "slow", "task_id": i, "added_index": i, "waited": 900 - i}
        for i in range(30)
    ]
    rows = [
        *slow,
        {"source": NODE, "queue": "fair", "task_id": 77, "added_index": 890, "waited": 9},
    ]
    page = Page(make_report({"lifecycles": rows_table("lifecycles", rows)}, facts(source_facts())))
    assert [row[:2] for row in page.tables["Longest waiting now"]] == [
        *(["slow", str(i)] for i in range(5)),
        ["fair", "77"],
    ]


def test_a_torn_tail_is_a_notice_and_no_loss() -> None:
    tables, about = realistic(entries=300)
    tables["damage"] = rows_table("damage", [{"source": NODE, "status": "torn", "size": 12}])
    page = Page(make_report(tables, about))
    assert "No loss found, but have a look: 1 torn or leftover tail" in page.texts


def test_rows_that_are_ok_are_no_damage() -> None:
    tables, about = realistic(entries=300)
    tables["damage"] = rows_table("damage", [{"source": NODE, "status": "ok"}])
    assert "Nothing is wrong" in Page(make_report(tables, about)).texts


def test_everything_wrong_is_listed(bad_page: Page) -> None:
    assert (
        "Something is wrong: 6 damaged places and 3 torn or leftover tails, 2 gaps, sources differ at 4 indexes"
        in bad_page.texts
    )
    assert len(bad_page.tables["Damage"]) == 9
    assert bad_page.tables["Gaps"][0][2:5] == ["1931", "2048", "117"]
    assert bad_page.tables["Divergence"][0][:5] == [
        "1500",
        "/srv/node-a",
        "orders",
        "4",
        "1f00ba47",
    ]
    assert [row[1].split(" ", 2)[1] for row in bad_page.tables["Sources"]] == ["3", "3", "3"]


def test_sources_are_never_summed_up(bad_page: Page) -> None:
    tables, _ = bad_day(entries=3_000)
    summary = tables["tasks_summary"].to_pandas().groupby("source")["count"].sum()
    assert [int(row[2]) for row in bad_page.tables["Sources"]] == summary.tolist()


def test_the_queues_are_as_the_tables_have_them(realistic_page: Page) -> None:
    tables, _ = realistic(entries=6_000)
    waiting = {row["queue"]: row["count"] for row in tables["tasks_summary"].to_pylist()}
    adds = tables["throughput"].to_pandas().groupby("queue")["adds"].sum()
    found = {row[0]: row for row in realistic_page.tables["Queues"]}
    assert {name: int(row[2].replace(",", "")) for name, row in found.items()} == waiting
    assert {name: int(row[6].replace(",", "")) for name, row in found.items()} == adds.to_dict()


def test_without_times_the_log_index_is_the_axis(realistic_page: Page, bad_page: Page) -> None:
    assert "time, UTC" in realistic_page.texts
    assert "log index" not in realistic_page.texts
    assert "log index" in bad_page.texts
    assert "time, UTC" not in bad_page.texts
    assert any(title.startswith("2025-11-16 ") for title in realistic_page.titles)
    assert any(title.startswith("index ") for title in bad_page.titles)


@pytest.mark.parametrize("missing", [*COLUMNS, None])
def test_any_table_may_be_missing_or_empty(missing: str | None) -> None:
    tables, about = realistic(entries=60)
    if missing is None:
        tables = {}
    else:
        _is_closed(make_report(tables | {missing: rows_table(missing, [])}, about))
        del tables[missing]
    _is_closed(make_report(tables, about))


def test_nothing_at_all_makes_a_page_that_says_so() -> None:
    page = Page(make_report(empty_tables(), facts()))
    assert "No entries were read" in page.texts
    assert "There is no source." in page.texts


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_may_be_null(name: str) -> None:
    _is_closed(
        make_report(empty_tables() | {name: rows_table(name, [{}, {}])}, facts(source_facts()))
    )
    tables, about = realistic(entries=60)
    for column in COLUMNS[name]:
        part = tables[name]
        if not part.num_rows:
            continue
        place = part.schema.get_field_index(column)
        nulls = pa.nulls(part.num_rows, part.schema.field(column).type)
        page = make_report(tables | {name: part.set_column(place, column, nulls)}, about)
        _is_closed(page)
        # A column that is not there is null as well.
        assert make_report(tables | {name: part.drop_columns([column])}, about) == page


def test_one_point_is_a_plot() -> None:
    place = {"source": NODE, "queue": "one", "bucket": 0}
    tables = {
        "depth": rows_table("depth", [place | {"log_index": 0, "event_time": 5, "added": 1, "removed": 0, "depth": 1}]),
        "throughput": rows_table("throughput", [place | {"first_index": 0, "last_index": 0, "adds": 1, "seconds": 0.0}]),
        "keys": rows_table("keys", [{"source": NODE, "queue": "one", "key": 7, "adds": 1, "waiting": 1}]),
        "sizes": rows_table("sizes", [{"source": NODE, "queue": "one", "size_low": 0, "adds": 1, "bytes": 0}]),
    }  # fmt: skip
    page = make_report(tables, facts(source_facts(last=0)))
    _is_closed(page)
    assert "h0" in page
    assert "nan" not in re.sub(r"<style>.*</style>|<script>.*</script>", "", page, flags=re.DOTALL)


def test_numbers_at_the_end_of_64_bits_are_shown() -> None:
    low, high = -(2**63), 2**63 - 1
    tables = {
        name: rows_table(
            name,
            [
                {
                    column: (f"q{i}" if column in ("queue", "source") else value)
                    if kind in (pa.string(), pa.int64())
                    else (float(value) if kind == pa.float64() else value)
                    for column, kind in columns.items()
                    if kind != pa.string() or column in ("queue", "source")
                }
                for i, value in enumerate((high, high - 1, 0, low + 1, low))
            ],
        )
        for name, columns in COLUMNS.items()
    }
    page = make_report(tables, facts(source_facts("q0", first=low, last=high)))
    _is_closed(page)
    assert str(high) in page
    assert ">inf" not in page


def _hostile_tables(names: list[str]) -> dict[str, pa.Table]:
    made = {}
    for name, columns in COLUMNS.items():
        rows = [
            {column: word if kind == pa.string() else i for column, kind in columns.items() if kind != pa.float64()}
            for i, word in enumerate(names)
        ]  # fmt: skip
        made[name] = rows_table(name, rows)
    return made


def test_no_name_becomes_a_tag() -> None:
    about = facts(*(source_facts(name) for name in HOSTILE[:3]), title=HOSTILE[0])
    page = make_report(_hostile_tables(HOSTILE), about)
    _is_closed(page)
    parsed = Page(page)
    assert "img" not in parsed.tags
    assert HOSTILE[0] in parsed.texts
    assert "<img src=http://evil.example/x.png>" in parsed.text
    assert not set(page) & set("\x00\x1b\u202e\u2066\r")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=4))
def test_any_text_leaves_the_page_whole(names: list[str]) -> None:
    names = [name.encode("utf-8", "replace").decode() for name in names]
    _is_closed(make_report(_hostile_tables(names), facts(source_facts(names[0]), title=names[0])))


def test_a_name_that_is_no_utf_8_is_shown() -> None:
    tables = empty_tables()
    data = pa.array([b"\xff\xfe<b>"], pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 1, data.buffers())
    tables["gaps"] = pa.table({"source": [NODE], "path": broken})
    assert "��<b>" in Page(make_report(tables, facts(source_facts()))).text


def test_payloads_are_never_shown() -> None:
    tables, about = realistic(entries=60)
    rows = tables["lifecycles"]
    tables["lifecycles"] = rows.append_column(
        "payload", pa.array([b"secret-payload"] * rows.num_rows)
    )
    assert "secret-payload" not in make_report(tables, about)


def test_many_queues_are_summed_up_and_said_to_be() -> None:
    names = [f"queue-{i:04}" for i in range(400)]
    depth = [
        {"source": NODE, "queue": name, "bucket": b, "log_index": b * 10, "added": i, "removed": 0, "depth": i * (b + 1)}
        for i, name in enumerate(names) for b in range(3)
    ]  # fmt: skip
    page = Page(make_report({"depth": rows_table("depth", depth)}, facts(source_facts())))
    rows = page.tables["Queues"]
    assert len(rows) == 21
    assert rows[0][0] == "queue-0399"
    assert rows[-1][0] == "380 other queues"
    assert int(rows[-1][2].replace(",", "")) == sum(3 * i for i in range(380))
    assert "393 other queues" in page.texts
    assert "Queues (400)" in page.texts


def test_many_sources_are_listed_and_the_rest_is_said() -> None:
    sources = [source_facts(f"/srv/{i}") for i in range(130)]
    page = Page(make_report(empty_tables(), facts(*sources)))
    assert len(page.tables["Sources"]) == 50
    assert "… and 80 more sources, not shown here." in page.texts
    assert "… and 125 more sources, not shown here." in page.texts


def test_many_faults_are_cut_and_counted() -> None:
    damage = rows_table(
        "damage", [{"source": NODE, "status": "bad-checksum", "log_index": i} for i in range(150)]
    )
    page = Page(make_report(empty_tables() | {"damage": damage}, facts(source_facts())))
    assert len(page.tables["Damage"]) == 50
    assert "… and 100 more places, not shown here." in page.texts


@pytest.mark.parametrize("letter", ["w", "&"])
def test_the_page_stays_below_two_megabytes_whatever_it_is_made_of(letter: str) -> None:
    seed = 3
    random = np.random.default_rng(seed)
    sources = [f"/{letter * 400}/{i}" for i in range(8)]
    n = 10_000
    tables = {}
    for name, columns in COLUMNS.items():
        made = {}
        for column, kind in columns.items():
            if column in ("source", "other_source"):
                made[column] = pa.array(sources).take(pa.array(random.integers(0, 8, n)))
            elif kind == pa.string():
                words = pa.array([f"<&{letter * 240}{i}" for i in range(300)])
                made[column] = words.take(pa.array(random.integers(0, 300, n)))
            elif column == "size_low":
                made[column] = pa.array(2 ** random.integers(0, 62, n))
            elif column == "bucket":
                made[column] = pa.array(random.integers(0, 2_000, n))
            elif kind == pa.float64():
                made[column] = pa.array(random.random(n))
            else:
                made[column] = pa.array(random.integers(0, 2**53, n)).cast(kind)
        tables[name] = pa.table(made)
    page = make_report(tables, facts(*(source_facts(source) for source in sources)))
    _is_closed(page)
    assert len(page.encode()) < 2_000_000, seed


def test_facts_want_a_time_with_a_zone() -> None:
    with pytest.raises(AssertionError):
        Facts(title="", made_at=datetime(2025, 1, 1), sources=(), seconds=None, version="")  # noqa: DTZ001
