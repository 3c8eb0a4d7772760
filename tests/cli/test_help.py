"""Every ``--help`` ends with examples, and every example runs as it is typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from penstock.cli.main import app
from penstock.formats.taskflux.generation import Generation
from support.beats_spools import PLAIN, VECTORS
from support.beats_spools import spool as write_spool
from support.command import penstock
from support.damage import flipped
from support.dev_cluster import DevCluster
from support.directories import EXPECTED, build
from support.group_processes import free_ports, group_processes
from support.node_files import write_files
from support.node_process import start
from support.rabbitmq_directories import unpacked
from support.samples import THREE
from support.shell import shell

AT_REST = ["inspect", "dump", "tasks", "verify", "repair", "convert", "sql", "export"]
OVER_A_NODE = [
    "enqueue", "dequeue", "peek", "stat", "node", "queue create", "queue list", "queue stat",
    "queue purge", "queue delete",
]  # fmt: skip
WITH_SPARK = [f"pipeline {name}" for name in ("run", "tasks", "snapshot", "audit", "migrate")]
OVER_A_SPOOL = [f"spool {name}" for name in ("put", "stat", "tail", "drain")]
OVER_A_GROUP = [f"cluster {name}" for name in ("status", "add", "transfer", "remove")]
COMMANDS = [
    "serve", "dev-cluster", *OVER_A_NODE, *OVER_A_GROUP, *OVER_A_SPOOL, *WITH_SPARK, *AT_REST,
]  # fmt: skip


def examples(command: str) -> list[str]:
    """Return the examples at the end of a command's help."""
    outcome = penstock(*command.split(), "--help")
    assert (outcome.code, outcome.err) == (0, "")
    _, _, last = outcome.out.partition("Examples:\n")
    return [line.strip() for line in last.splitlines() if line.strip()]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with what the examples speak of."""
    build(tmp_path / "node", Generation.THREE, snapshot_after=2)
    build(tmp_path / "old", Generation.TWO)
    files = THREE.files()
    name = next(name for name in files if name.endswith(".log"))
    unpacked("c1_small_embedded_live", tmp_path / "rabbit")
    write_spool(tmp_path / "diskqueue", {0: PLAIN})
    write_files(tmp_path / "damaged", files | {name: flipped(files[name], 8 * 40)})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_these_are_the_commands() -> None:
    alone = {str(command.name) for command in app.registered_commands}
    groups = {}
    for group in app.registered_groups:
        assert group.typer_instance is not None
        name = str(group.typer_instance.info.name)
        groups[name] = {str(one.name) for one in group.typer_instance.registered_commands}
    below = {f"{group} {name}" for group, names in groups.items() for name in names}
    assert alone | below == set(COMMANDS)
    for words, names in (
        ((), alone | set(groups)),
        *(((group,), groups[group]) for group in groups),
    ):
        outcome = penstock(*words, "--help")
        assert outcome.code == 0
        for name in names:
            assert f"\n  {name} " in outcome.out


@pytest.mark.heavy  # a Java for each
@pytest.mark.spark
@pytest.mark.parametrize("command", WITH_SPARK)
def test_the_pipelines_examples_run_as_typed(workplace: Path, command: str) -> None:
    for number in (1, 2, 3):
        build(workplace / f"replica-{number}", Generation.THREE)
    for example in examples(command):
        if "serve" not in example and "localhost" not in example:
            outcome = shell(example)
            assert outcome.code == 0, f"{example}: {outcome.err}"


@pytest.mark.parametrize("command", AT_REST)
def test_the_help_of_each_command_over_files_ends_with_examples_that_run(
    workplace: Path, command: str
) -> None:
    lines = examples(command)
    assert lines
    for line in lines:
        words = shlex.split(line)
        assert words[:2] == ["penstock", command]
        outcome = penstock(*words[1:])
        assert outcome.code == (1 if "damaged" in words else 0), outcome.err
        assert "Traceback" not in outcome.err
        if "--table" not in words or command == "export":
            assert all(isinstance(row, dict) for row in outcome.rows)
        if "--out" in words:
            assert (workplace / words[words.index("--out") + 1]).is_dir()


@pytest.mark.parametrize("command", OVER_A_NODE)
def test_the_help_of_each_command_over_a_node_ends_with_examples_that_run(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    lines = examples(command)
    assert lines
    (workplace / "invoice.txt").write_text("an invoice")
    (workplace / "letter.txt").write_text("a letter")
    with start(workplace / "running") as node:
        monkeypatch.setenv("PENSTOCK_NODE", node.address)
        with node.client() as client:
            for name in (
                "orders",
                "archive",
                "done",
                *{row[0] for row in EXPECTED} - {"", "orders"},
            ):
                client.create_queue(name)
            client.enqueue_many("orders", [b"task"] * 3)
        for line in lines:
            assert f"penstock {command}" in line
            # The address that stands in an example is not the one of this node.
            outcome = shell(line.replace("127.0.0.1:2602", node.address), cwd=workplace)
            assert (outcome.code, "Traceback" in outcome.err) == (0, False), outcome.err
            if not {"--table", "--raw"} & set(shlex.split(line)):
                assert outcome.rows or "nothing to deliver" in outcome.err


def test_the_help_of_each_command_over_a_spool_ends_with_examples_that_run(
    workplace: Path,
) -> None:
    write_spool(workplace / "beats", {0: VECTORS["v2_cbor"]})
    with start(workplace / "running") as node:
        with node.client() as client:
            for name in ("orders", "events", *{row[0] for row in EXPECTED} - {"", "orders"}):
                client.create_queue(name)
        for command in OVER_A_SPOOL:
            lines = examples(command)
            assert lines
            for line in lines:
                assert f"penstock {command}" in line
                outcome = shell(line.replace("127.0.0.1:2602", node.address), cwd=workplace)
                assert (outcome.code, outcome.rows != []) == (0, True), f"{line}: {outcome.err}"


def test_the_examples_of_serve_start_a_node(workplace: Path) -> None:
    lines = examples("serve")
    assert lines
    (workplace / "node-1.toml").write_text('data = "configured"\nmax-queues = 10\n')
    for line in lines:
        words = shlex.split(line)
        assert words[:2] == ["penstock", "serve"]
        flags = words[2:]
        # Other ports than those of the examples: something else may have them on this machine.
        for flag, value in (
            ("--listen", "127.0.0.1:0"),
            ("--metrics", "127.0.0.1:0"),
            ("--peers", f"1=127.0.0.1:{free_ports(1)[0]}"),
        ):
            if flag in flags:
                flags[flags.index(flag) + 1] = value
        if "--peers" in flags:
            flags += ["--advertise", "127.0.0.1:2602"]
        if "--data" in flags:
            place = flags.index("--data")
            data = Path(flags[place + 1])
            del flags[place : place + 2]
        else:
            data = workplace / "from-the-command-line"
        with start(data, *flags) as node:
            assert node.stop() == 0


def test_the_help_of_each_command_over_a_group_ends_with_examples_that_run(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with group_processes(workplace) as group:
        monkeypatch.setenv("PENSTOCK_NODE", group.connect)
        places = {"127.0.0.1:2602": group.address(1)}
        for number, example in ((4, "127.0.0.1:2705"), (5, "127.0.0.1:2706")):
            group.start(number, is_joining=True).wait_listening()
            places[example] = group.peer_address(number)
        for command in OVER_A_GROUP:
            lines = examples(command)
            assert lines
            for line in lines:
                assert f"penstock {command}" in line
                for example, place in places.items():
                    line = line.replace(example, place)
                outcome = penstock(*shlex.split(line)[1:])
                assert outcome.code == 0, f"{line}: {outcome.err}"
                assert outcome.rows if "--table" not in line else outcome.out


@pytest.mark.heavy  # eight nodes
def test_the_examples_of_dev_cluster_start_one(workplace: Path) -> None:
    lines = examples("dev-cluster")
    assert lines
    for line in lines:
        words = shlex.split(line)
        assert words[:2] == ["penstock", "dev-cluster"]
        flags = words[2:]
        if "--base-port" in flags:
            place = flags.index("--base-port")
            del flags[place : place + 2]
        with DevCluster(*flags, "--base-port", "0", cwd=workplace) as cluster:
            assert cluster.wait_told()["leader"]
            assert cluster.stop() == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_both_ways_to_ask_for_help_say_the_same(command: str) -> None:
    words = command.split()
    assert penstock(*words, "-h") == penstock(*words, "--help")
