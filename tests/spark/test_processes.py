"""In Spark's Python processes errors are one sentence, and what is loaded once is not walked through again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from traceback import extract_tb

import pytest

from penstock.errors import InvalidValue
from penstock.spark.source import in_a_sentence, settle
from support.samples import THREE
from support.spark_tables import read_rows, reader_of, tasks_of


@in_a_sentence
def divide(whole: int, *, by: int) -> int:
    """Return a share."""
    try:
        return _divide(whole, by)
    except ZeroDivisionError:
        raise InvalidValue("nobody is there to share with") from None


def _divide(whole: int, by: int) -> int:
    if by < 0:
        raise InvalidValue("fewer than nobody")
    return whole // by


def frames(error: BaseException) -> list[str]:
    """Return the functions on the way that an error came."""
    return [frame.name for frame in extract_tb(error.__traceback__)]


@pytest.mark.parametrize("by", [0, -1])
def test_an_error_of_ours_leaves_without_the_way_that_it_came(by: int) -> None:
    with pytest.raises(InvalidValue) as caught:
        divide(7, by=by)
    assert frames(caught.value)[1:] == ["call"]
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_another_error_keeps_its_way() -> None:
    with pytest.raises(TypeError) as caught:
        divide("7", by=2)  # type: ignore[arg-type]
    assert frames(caught.value)[-2:] == ["divide", "_divide"]


def test_a_method_keeps_its_name_its_words_and_its_answer() -> None:
    assert divide(7, by=2) == 3
    assert (divide.__name__, divide.__doc__) == ("divide", "Return a share.")


@pytest.fixture
def unsettled() -> Iterator[None]:
    """A process in which nothing was read yet."""
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("unsettled")
def test_a_process_settles_again_when_much_was_loaded_since() -> None:
    settle()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    few = [[number] for number in range(1000)]
    settle()
    # What was frozen may be let go; little joins it.
    assert gc.get_freeze_count() <= frozen
    many = [[number] for number in range(20_000)]
    settle()
    assert gc.get_freeze_count() > frozen + 10_000
    assert len(gc.get_objects()) < 1000 < len(few) + len(many)


@pytest.mark.usefixtures("unsettled")
def test_a_process_settles_behind_a_read_and_not_before(tmp_path: Path) -> None:
    reader = reader_of(THREE.write(tmp_path))
    (task,) = tasks_of(reader)
    batches = reader.read(task)
    assert next(batches).num_rows > 0
    assert gc.get_freeze_count() == 0
    assert sum(1 for _ in batches) > 0
    assert gc.get_freeze_count() > 1000
    assert read_rows(tmp_path)
