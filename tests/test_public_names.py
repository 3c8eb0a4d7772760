"""The public names: ``__all__`` and ``dir()`` list them, importing the package stays light, every option is declared."""

from __future__ import annotations

import asyncio
import builtins
import collections.abc
import contextlib
import importlib
import inspect
import os
import re
import subprocess
import sys
import threading
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, assert_type

import pytest

import penstock
from penstock import errors

TESTING = "penstock.testing"
MODULES = (
    "penstock",
    "penstock.aio",
    "penstock.paged",
    "penstock.spark",
    "penstock.tables",
    TESTING,
)
"""The public modules; one without ``__all__`` declares nothing yet."""

EXTRAS = {
    "numpy",
    "numba",
    "pyarrow",
    "pyspark",
    "pandas",
    "duckdb",
    "polars",
    "cbor2",
    "lz4",
    "cryptography",
    "uvloop",
}


def fresh(code: str) -> str:
    """Run a program in a new process and return what it printed."""
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def declared(module: str) -> list[str]:
    names: list[str] = getattr(importlib.import_module(module), "__all__", [])
    return names


def values() -> Iterator[tuple[str, Any]]:
    """Yield every public name with its value, modules not included."""
    for module in MODULES:
        for name in declared(module):
            value = getattr(importlib.import_module(module), name)
            if not inspect.ismodule(value):
                yield f"{module}.{name}", value


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every public function and method, and the overloads of each."""
    for name, value in values():
        members = {name: value}
        if inspect.isclass(value):
            members = {
                f"{name}.{each}": member
                for each, member in vars(value).items()
                if not each.startswith("_") and inspect.isfunction(member)
            }
        for path, member in members.items():
            is_internal = (member.__doc__ or "").startswith("Internal")
            if inspect.isfunction(member) and not is_internal:
                yield path, member
                for overload in typing.get_overloads(member):
                    yield f"overload of {path}", overload


def test_dir_and_all_list_the_public_names_before_any_is_used() -> None:
    names = fresh("import penstock; print(*dir(penstock))").split()
    shown = {name for name in names if not name.startswith("__")}
    assert shown == set(penstock.__all__)
    assert {"connect", "open", "worker", "Client", "QueueStat", "QueueMissing", "aio"} <= shown
    for module in ("penstock.aio", "penstock.spark"):
        code = f"import {module}; print(*dir({module}))"
        assert set(declared(module)) <= set(fresh(code).split())


@pytest.mark.parametrize("module", MODULES)
def test_every_declared_name_exists_once_and_others_do_not(module: str) -> None:
    names = declared(module)
    assert len(names) == len(set(names))
    for name in names:
        getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError):
        importlib.import_module(module).no_such_name  # noqa: B018


def test_every_exception_is_public() -> None:
    own = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.PenstockError)
    }
    assert len(own) > 30
    assert own <= set(penstock.__all__)


def test_importing_the_package_loads_only_the_exceptions() -> None:
    code = "import sys, penstock; print(*(m for m in sys.modules if m.startswith('penstock')))"
    assert set(fresh(code).split()) == {"penstock", "penstock.errors"}


def test_aio_and_spark_need_no_import_of_their_own() -> None:
    code = "import penstock; print(penstock.aio.connect.__module__, penstock.spark.__name__)"
    assert fresh(code).split() == ["penstock.spooling.connecting", "penstock.spark"]


def test_a_star_import_brings_every_name_and_needs_no_extra() -> None:
    code = """
import sys
from penstock import *
from penstock.aio import AsyncSpoolClient
import penstock
assert all(globals()[name] is getattr(penstock, name) for name in penstock.__all__)
print(*{name.partition(".")[0] for name in sys.modules})
"""
    assert not EXTRAS & set(fresh(code).split())


def test_no_public_signature_hides_its_options() -> None:
    found = dict(callables())
    assert {"penstock.open", "penstock.connect", "penstock.aio.connect", "penstock.worker"} < set(
        found
    )
    assert "penstock.SpoolClient.enqueue" in found
    for path, member in found.items():
        for each in inspect.signature(member).parameters.values():
            if each.kind is inspect.Parameter.VAR_KEYWORD:
                # Only an overload may gather options, by name and type.
                assert path.startswith("overload of "), path
                assert str(each.annotation).startswith("Unpack["), path


def test_python_itself_rejects_a_misspelled_option(tmp_path: Path) -> None:
    calls: list[tuple[Callable[..., Any], str]] = [
        (penstock.open, str(tmp_path / "node")),
        (penstock.connect, "localhost:1"),
        (penstock.aio.connect, "localhost:1"),
        (penstock.worker, "queue"),
        (penstock.spark.session, "local"),
    ]
    for function, argument in calls:
        with pytest.raises(TypeError, match="unexpected keyword argument 'generatoin'") as caught:
            function(argument, generatoin=2)
        assert caught.traceback[-1].path == Path(__file__)  # no frame of ours: the call itself
    assert list(tmp_path.iterdir()) == []


def test_type_checkers_know_the_names_and_the_options(tmp_path: Path) -> None:
    # ``scripts/check`` runs mypy over this file: a wrong type or an unused "type: ignore" fails there.
    with penstock.open(tmp_path / "node", generation=3) as client:
        assert_type(client, penstock.Client)
        assert_type(client.stat(""), penstock.QueueStat)
        assert_type(client.stat("").policy, penstock.Policy)
        assert_type(client.node(), penstock.NodeInfo)
        assert_type(client.entries_page(), penstock.Entries)
        client.enqueue("", b"x")
        with client.dequeue("") as delivery:
            assert_type(delivery, penstock.Delivery | None)
            assert delivery is not None
    with pytest.raises(TypeError):
        penstock.open(tmp_path / "other", generatoin=3)  # type: ignore[call-arg]
    with pytest.raises(penstock.InvalidValue):
        penstock.connect("localhost:1", spool_size=5)  # type: ignore[call-overload]
    waiting = penstock.aio.connect("localhost:1")
    assert_type(waiting, penstock.aio.Connecting[penstock.aio.AsyncClient])


OUTSIDE = {
    *vars(builtins),
    *vars(typing),
    *vars(collections.abc),
    *vars(contextlib),
    *vars(os),
    *vars(threading),
    *vars(asyncio),
    *("os", "threading", "asyncio", "Path", "SparkSession", "DataFrame", "Unpack", "datetime"),
    *("Expression", "RecordBatchReader", "LazyFrame", "DuckDBPyConnection", "DuckDBPyRelation"),
}
"""Names in annotations that are not ours."""

INTERNAL = {"SpoolOptions"}
"""The TypedDict in the overloads of ``connect``; callers write its keys as keywords."""


def test_every_type_in_a_public_signature_is_public() -> None:
    known = {name for module in MODULES for name in declared(module)} | OUTSIDE | INTERNAL
    for path, member in callables():
        if path.startswith(TESTING):  # a fake of the files has the methods of the real ones
            continue
        signature = inspect.signature(member)
        annotations = [each.annotation for each in signature.parameters.values()]
        for annotation in (*annotations, signature.return_annotation):
            text = annotation if isinstance(annotation, str) else ""
            assert set(re.findall(r"[A-Za-z_]\w*", text)) <= known, f"{path}: {text}"


def test_every_public_name_and_method_has_a_docstring() -> None:
    methods = [(p, m) for p, m in callables() if not p.startswith(("overload of ", TESTING))]
    for path, value in (*values(), *methods):
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, path
