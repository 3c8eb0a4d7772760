"""Penstock without extras: what needs one says so in one line with the ``pip install`` command.

The packages of all extras are hidden from the processes here, as if only the base dependencies were installed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Final

import pytest

import penstock
from penstock.cli.main import app
from penstock.formats.taskflux.generation import Generation
from support.beats_spools import VECTORS
from support.beats_spools import spool as write_spool
from support.command import COMMAND, Outcome
from support.directories import build
from support.node_process import PATIENCE_SECONDS
from support.rabbitmq_directories import unpacked

HIDE: Final = """
import sys
from importlib.machinery import PathFinder
HIDDEN = frozenset({hidden!r})
class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        return super().find_spec(name, path, target)
sys.meta_path[:] = [Finder if each is PathFinder else each for each in sys.meta_path]
"""
"""A ``sitecustomize`` that hides packages."""

STORE = "rabbit"  # RabbitMQ's files with a message store
NEEDING: Final[dict[str, dict[str, str]]] = {
    "serve": {
        "--data new --listen 127.0.0.1:0 --metrics 127.0.0.1:0": "server",
        "--data paged --listen 127.0.0.1:0": "paged",
    },
    "queue create": {"large --implementation paged": "paged"},
    "enqueue": {f"--from {STORE}": "tables", "--from spool --queue q": "spool"},
    "sql": {"SELECT --from node": "sql"},
    "export": {"node --to tasks.parquet": "tables"},
    "pipeline run": {"--in node --out out": "spark", "--in node --out out --format delta": "delta"},
    "pipeline tasks": {"--in node": "spark"},
    "pipeline snapshot": {"--in node --out out": "spark"},
    "pipeline audit": {"node": "spark"},
    "pipeline migrate": {"--from node --to out": "spark"},
    "spool stat": {"spool": "spool"},
    "spool tail": {"spool": "spool"},
    "spool drain": {"spool --to 127.0.0.1:1": "spool"},
    "spool put": {
        "packed --queue q x --compress": "spool",
        "sealed --queue q x --encrypt --key-file key": "spool",
    },
    **{
        command: {f"spool {flags}": "spool", f"{STORE} {flags}": "tables"}
        for command, flags in (
            ("inspect", ""),
            ("dump", ""),
            ("tasks", ""),
            ("verify", ""),
            ("repair", "--out out"),
            ("convert", "--to taskflux-3 --out out"),
        )
    },
}
"""Words behind each command that needs an extra, and which one."""

WITHOUT: Final = {
    "dequeue": "q",
    "peek": "q",
    "stat": "",
    "node": "",
    "queue list": "",
    "queue stat": "q",
    "queue purge": "q",
    "queue delete": "unused",
    "cluster status": "",
}
"""Words behind each command that needs no extra, as it is run with one node."""

OVER_OUR_FILES: Final = ["inspect node", "dump node", "tasks node", "verify node"]
"""Commands that need an extra for the files of others, over our own."""

OF_A_GROUP: Final = {"cluster add", "cluster remove", "cluster transfer", "dev-cluster"}
"""Commands that need no extra and more than one node; they import what ``serve`` and ``cluster status`` do."""

RUN: Final = """
import json, os, sys, tempfile, traceback
from penstock.cli.main import main
found = {}
for line in json.loads(sys.argv[1]):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.argv = ["penstock", *line.split()]
            code = 0
            try:
                main()
            except SystemExit as ended:
                code = int(ended.code or 0)
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        found[line] = code, out.read().decode(), err.read().decode()
print(json.dumps(found))
"""
"""Runs each command line in a child of its own, which imports what it needs by itself."""

CALLS: Final = {
    "penstock.spark.register": "spark",
    "penstock.spark.session": "spark",
    "penstock.spark.with_event": "spark",
    "penstock.tables.read('node')": "tables",
    "penstock.tables.scan_polars('node')": "sql",
    "penstock.tables.duckdb_relation(None, 'node')": "sql",
    "penstock.connect('127.0.0.1:1', spool='out')": "spool",
    "asyncio.run(connect())": "spool",
    "penstock.open('paged')": "paged",
    "list(scan_entries(b'', LogLayout.THREE, start=8))": "tables",
    "list(scan_columns(b'', LogLayout.THREE, start=8))": "tables",
    "compiled(print)": "tables",
    "decode_event(b'x', PayloadFormat.CBOR)": "spool",
}
"""Calls that need an extra, and which one."""

CALL: Final = """
import asyncio, json, sys
import penstock, penstock.aio, penstock.spark, penstock.tables
from penstock.formats.beats.event import decode_event
from penstock.formats.beats.segment import PayloadFormat
from penstock.formats.kernel import compiled
from penstock.formats.taskflux.entries import scan_entries
from penstock.formats.taskflux.log import LogLayout
from penstock.formats.taskflux.log_scan import scan_columns
found = {}
async def connect():
    async with penstock.aio.connect("127.0.0.1:1", spool="out"): pass
for call in json.loads(sys.argv[1]):
    try:
        eval(call)
    except penstock.DependencyMissing as error:
        found[call] = error.extra if "pip install" in str(error) else None
print(json.dumps(found))
"""


def base_distributions() -> set[str]:
    """Return the names of what an installation without extras brings."""
    found: set[str] = set()
    waiting = ["penstock"]
    while waiting:
        name = _normal(waiting.pop())
        if name in found:
            continue
        found.add(name)
        try:
            lines = requires(name) or []
        except PackageNotFoundError:  # for another system or Python
            continue
        waiting += [re.split(r"[^\w.-]", line)[0] for line in lines if "extra ==" not in line]
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has only the base dependencies."""
    kept = base_distributions()
    hidden = sorted(
        package
        for package, names in packages_distributions().items()
        if not kept.intersection(map(_normal, names))
    )
    assert {"numpy", "numba", "pyspark", "pyarrow", "prometheus_client", "cbor2", "uvloop"} <= {
        *hidden
    }
    assert {"duckdb", "polars"} <= {*hidden}
    assert not {"typer", "rich", "fastcrc", "penstock"} & {*hidden}
    place = tmp_path_factory.mktemp("hiding")
    (place / "sitecustomize.py").write_text(HIDE.format(hidden=hidden))
    return {**os.environ, "PYTHONPATH": str(place)}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("base")
    build(place / "node", Generation.THREE, snapshot_after=2)
    write_spool(place / "spool", {0: VECTORS["v2_cbor"]})
    unpacked("c3_large_store_limit1m_kill9", place / STORE)
    (place / "key").write_bytes(bytes(16))
    with penstock.open(place / "paged") as client:
        client.create_queue("large", implementation="paged")
        client.enqueue("large", b"task")
    return place


@pytest.fixture(scope="module")
def base_node(base: dict[str, str], workplace: Path) -> Iterator[dict[str, str]]:
    """The environment of commands that talk to a node; neither they nor the node have any extra."""
    words = ["serve", "--data", "served", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*COMMAND, *words], cwd=workplace, env=base, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            address = json.loads(process.stderr.readline())["address"]
            with penstock.connect(address) as client:
                client.create_queue("q")
                client.create_queue("unused")
            yield {**base, "PENSTOCK_NODE": address}
        finally:
            process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0


@pytest.fixture(scope="module")
def outcomes(base_node: dict[str, str], workplace: Path) -> dict[str, Outcome]:
    """What became of every command line here."""
    lines = [f"{command} {words}" for command, each in NEEDING.items() for words in each]
    lines += [f"{command} {words}" for command, words in WITHOUT.items()]
    lines += OVER_OUR_FILES
    done = python(RUN, lines, base_node, workplace)
    assert done.stderr == ""
    return {line: Outcome(*each) for line, each in json.loads(done.stdout).items()}


def python(
    program: str, arguments: list[str], environment: dict[str, str], cwd: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, json.dumps(arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=2 * PATIENCE_SECONDS,
    )


def commands() -> set[str]:
    found = {str(command.name) for command in app.registered_commands}
    for group in app.registered_groups:
        assert group.typer_instance is not None
        for one in group.typer_instance.registered_commands:
            found.add(f"{group.typer_instance.info.name} {one.name}")
    return found


def test_every_command_is_listed_here() -> None:
    assert NEEDING.keys() | WITHOUT.keys() | OF_A_GROUP == commands()


@pytest.mark.parametrize("command", NEEDING)
def test_a_command_that_needs_an_extra_says_so_in_one_line(
    outcomes: dict[str, Outcome], workplace: Path, command: str
) -> None:
    for words, extra in NEEDING[command].items():
        outcome = outcomes[f"{command} {words}"]
        assert (outcome.code, len(outcome.words)) == (1, 1), (words, outcome.err)
        assert f"pip install 'penstock[{extra}]'" in outcome.err
    assert not (workplace / "new").exists()


def test_commands_that_need_no_extra_work_without(outcomes: dict[str, Outcome]) -> None:
    for line in [*(f"{command} {words}" for command, words in WITHOUT.items()), *OVER_OUR_FILES]:
        assert (outcomes[line].code, "Traceback" in outcomes[line].err) == (0, False), line


def test_a_call_that_needs_an_extra_raises_which_one(base: dict[str, str], workplace: Path) -> None:
    done = python(CALL, [*CALLS], base, workplace)
    assert done.stderr == ""
    assert json.loads(done.stdout) == CALLS
