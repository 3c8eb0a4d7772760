"""``penstock spool``: filled, drained and looked at, also while somebody else is at work."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

import penstock as package
from penstock.storage.files import TEMPORARY_SUFFIX
from penstock.storage.spool import Spool, SpoolSettings
from support.beats_spools import BAD_PAYLOAD, VECTORS
from support.beats_spools import spool as write_spool
from support.command import COMMAND, fed, penstock, refused
from support.node_process import NodeProcess
from support.shell import payloads


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def stat(spool: Path, *words: str | Path) -> dict[str, Any]:
    outcome = penstock("spool", "stat", spool, *words)
    assert (outcome.code, outcome.err) == (0, "")
    (row,) = outcome.rows
    return row


def held(node: NodeProcess, queue: str) -> list[tuple[int, bytes]]:
    with node.client() as client:
        tasks = client.peek(queue, max(1, client.stat(queue).count))
        return [(task.key, task.payload) for task in tasks]


def test_tasks_go_from_the_shell_through_the_spool_to_the_node(
    spool: Path, node: NodeProcess, queue: str
) -> None:
    outcome = penstock("spool", "put", spool, "--queue", queue, "--key", "7", "a", "b c")
    assert (outcome.code, outcome.rows, outcome.err) == (0, [{"queue": queue, "count": 2}], "")
    outcome = fed(b"d\n\ne", "spool", "put", spool, "--queue", queue)
    assert (outcome.code, outcome.rows) == (0, [{"queue": queue, "count": 3}])
    row = stat(spool)
    assert (row["segments"], row["waiting"], row["refused"]) == (2, 5, 0)
    assert row["bytes"] == sum(path.stat().st_size for path in spool.glob("*.seg"))
    assert row["position"] == {"segment": 0, "offset": 0, "index": 0}
    assert row["sending"] is None
    assert row["oldest"] < row["newest"]
    outcome = penstock("spool", "drain", spool, "--to", node.address)
    assert (outcome.code, outcome.rows) == (0, [{"path": str(spool), "sent": 5, "refused": 0}])
    assert held(node, queue) == [(0, b"d"), (0, b""), (0, b"e"), (7, b"a"), (7, b"b c")]
    row = stat(spool)
    assert (row["waiting"], row["oldest"], row["newest"]) == (0, None, None)
    assert (row["position"]["segment"], row["position"]["index"]) == (1, 3)
    outcome = penstock("spool", "drain", spool, "--to", node.address)
    assert outcome.rows == [{"path": str(spool), "sent": 0, "refused": 0}]


def test_json_lines_go_in_as_tail_and_tasks_print_them(spool: Path, node: NodeProcess) -> None:
    rows = [
        {"queue": "one", "key": 5, "payload": "YQ=="},
        {"queue": "two", "key": -1, "payload": "Yg=="},
        {"queue": "one", "payload": ""},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    outcome = fed(lines, "spool", "put", spool, "--json")
    assert outcome.rows == [{"queue": "one", "count": 2}, {"queue": "two", "count": 1}]
    outcome = fed(lines + b"nonsense\n", "spool", "put", spool, "--json", "--queue", "all")
    assert (outcome.code, outcome.rows) == (1, [{"queue": "all", "count": 3}])
    assert "stdin, line 4" in outcome.err
    assert "the 3 tasks before it were taken" in outcome.err
    shown = penstock("spool", "tail", spool)
    assert [(row["queue"], row["key"]) for row in shown.rows] == [
        ("one", 5), ("two", -1), ("one", 0), ("all", 5), ("all", -1), ("all", 0),
    ]  # fmt: skip
    assert shown.rows == penstock("tasks", spool).rows
    event = shown.rows[0]["event"]
    assert event["meta"] == {"queue": "one", "key": 5}
    assert b64decode(event["fields"]["payload"]["base64"]) == b"a"


PROTOBUF = ["--serialization", "protobuf"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--compress"],
        ["--encrypt"],
        ["--compress", "--encrypt"],
        ["--serialization", "cbor"],
        PROTOBUF,
        [*PROTOBUF, "--compress", "--encrypt"],
    ],
    ids=" ".join,
)
def test_a_spool_is_written_as_it_is_asked_to(
    spool: Path, tmp_path: Path, node: NodeProcess, queue: str, flags: list[str]
) -> None:
    key = tmp_path / "key"
    key.write_bytes(os.urandom(16))
    keys = ["--key-file", str(key)] if "--encrypt" in flags else []
    outcome = penstock("spool", "put", spool, "--queue", queue, *flags, *keys, *["telling"] * 30)
    assert (outcome.code, outcome.err) == (0, "")
    data = (spool / "0.seg").read_bytes()
    is_readable = "--encrypt" not in flags and "protobuf" not in flags  # which has base64
    assert (b"telling" in data) == is_readable
    options = penstock("inspect", spool, *keys).rows[0]["options"]
    assert ("protobuf" in options) == ("protobuf" in flags)
    assert stat(spool, *keys)["waiting"] == 30
    assert len(penstock("spool", "tail", spool, *keys).rows) == 30
    outcome = penstock("spool", "drain", spool, "--to", node.address, *keys)
    assert (outcome.code, outcome.rows[0]["sent"]) == (0, 30)
    assert held(node, queue) == [(0, b"telling")] * 30


def test_a_key_that_is_named_encrypts_what_is_put(spool: Path, tmp_path: Path) -> None:
    """A named key without --encrypt was used to read only, and the tasks were written in the clear."""
    (tmp_path / "key").write_bytes(os.urandom(16))
    key = ["--key-file", str(tmp_path / "key")]
    assert penstock("spool", "put", spool, "--queue", "q", *key, "telling").code == 0
    assert b"telling" not in (spool / "0.seg").read_bytes()
    assert penstock("spool", "tail", spool, *key).rows[0]["queue"] == "q"


def test_what_the_node_refuses_is_kept_and_told(
    spool: Path, node: NodeProcess, tmp_path: Path
) -> None:
    with node.client() as client:
        client.create_queue("picky", keys=(0, 4))
    for key in ("1", "9", "2"):
        penstock("spool", "put", spool, "--queue", "picky", "--key", key, f"key {key}")
    outcome = penstock("spool", "drain", spool, "--to", node.address)
    assert (outcome.code, outcome.rows) == (1, [{"path": str(spool), "sent": 2, "refused": 1}])
    assert "1 tasks were refused and are kept in" in outcome.err
    assert "a key is outside the range of queue 'picky'" in outcome.err
    assert held(node, "picky") == [(1, b"key 1"), (2, b"key 2")]
    assert stat(spool)["refused"] == 1
    with node.client() as client:
        client.delete_queue("picky")
        client.create_queue("picky")
    outcome = penstock("spool", "drain", spool / "refused", "--to", node.address)
    assert (outcome.code, outcome.rows[0]["sent"]) == (0, 1)
    assert held(node, "picky") == [(9, b"key 9")]


def test_a_directory_of_beats_is_drained_to_the_queue_that_is_named(
    spool: Path, node: NodeProcess, queue: str
) -> None:
    names = ("v0_json", "v1_cbor", "v2_cbor_lz4_unclean")
    write_spool(spool, {number: VECTORS[name] for number, name in enumerate(names)})
    expected = payloads(penstock("spool", "tail", spool))
    assert len(expected) == 6
    outcome = penstock("spool", "drain", spool, "--to", node.address)
    assert (outcome.code, outcome.rows[0]["sent"]) == (1, 0)
    assert "0.seg, frame 0: is no task of ours; name the queue" in outcome.err
    outcome = penstock("spool", "drain", spool, "--to", node.address, "--queue", queue)
    assert (outcome.code, outcome.rows[0]["sent"]) == (0, 6), outcome.err
    assert [payload for _, payload in held(node, queue)] == expected


def test_a_spool_is_looked_at_while_its_producer_is_at_work(spool: Path) -> None:
    with package.connect("127.0.0.1:1", spool=spool) as client:
        client.enqueue_many("q", [b"a", b"b"])
        assert stat(spool)["waiting"] == 2
        assert len(penstock("spool", "tail", spool).rows) == 2
        client.enqueue("q", b"c")
        assert stat(spool)["waiting"] == 3
        # The producer may be about to put a new state, or its own file, in place.
        names = {path.name.removesuffix(TEMPORARY_SUFFIX) for path in spool.iterdir()}
        assert names == {"0.seg", "penstock.lock", "penstock.producer", "state.dat"}


def test_tail_follows_growth_new_segments_and_their_removal(spool: Path) -> None:
    settings = SpoolSettings(max_size=2**20, segment_size=4096)
    with Spool(spool, settings) as owner:
        owner.publish([_event(0)])
        with subprocess.Popen(
            [*COMMAND, "spool", "tail", str(spool), "--follow"], stdout=subprocess.PIPE
        ) as tail:
            assert tail.stdout is not None
            for number in range(1, 20):
                assert _payload(tail.stdout.readline()) == _bytes(number - 1)
                owner.publish([_event(number)])
                batch = owner.read(10, timeout=0)
                if batch is not None and number < 15:
                    owner.acknowledge(batch)
            assert _payload(tail.stdout.readline()) == _bytes(19)
            assert owner.stat().segments < 5
            tail.send_signal(signal.SIGINT)
        assert tail.returncode == 130


def _bytes(number: int) -> bytes:
    return b"%03d" % number + bytes(1200)


def _event(number: int) -> bytes:
    from penstock.formats.beats.task_event import encode_tasks

    return encode_tasks("q", [_bytes(number)], [0], timestamp=number)[0]


def _payload(line: bytes) -> bytes:
    return b64decode(json.loads(line)["event"]["fields"]["payload"]["base64"])


def test_a_drain_that_follows_sends_what_others_put_there(
    spool: Path, node: NodeProcess, queue: str
) -> None:
    penstock("spool", "put", spool, "--queue", queue, "first")
    command = [*COMMAND, "spool", "drain", str(spool), "--to", node.address, "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as drain:
        with node.client() as client:
            with client.dequeue(queue, wait=60) as delivery:
                assert delivery is not None
            for number in range(3):
                outcome = penstock("spool", "put", spool, "--queue", queue, f"{number}")
                assert outcome.code == 0, outcome.err
                with client.dequeue(queue, wait=60) as delivery:
                    assert delivery is not None
                    assert delivery.payload == b"%d" % number
        drain.send_signal(signal.SIGTERM)
        out, err = drain.communicate(timeout=60)
    assert (drain.returncode, err) == (0, b"")
    assert json.loads(out) == {"path": str(spool), "sent": 4, "refused": 0}


def test_a_drain_waits_for_a_queue_that_is_missing_and_says_so_once(
    spool: Path, node: NodeProcess
) -> None:
    penstock("spool", "put", spool, "--queue", "comes-later", "x")
    command = [*COMMAND, "spool", "drain", str(spool), "--to", node.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as drain:
        assert drain.stderr is not None
        said = drain.stderr.readline()
        assert b"cannot send now, retrying: there is no queue" in said
        with node.client() as client:
            client.create_queue("comes-later")
        out, err = drain.communicate(timeout=60)
    assert (drain.returncode, err) == (0, b"penstock: tasks are sent again\n")
    assert json.loads(out)["sent"] == 1


def test_a_drain_that_is_stopped_says_that_something_is_left(
    spool: Path, node: NodeProcess
) -> None:
    penstock("spool", "put", spool, "--queue", "never", "x")
    command = [*COMMAND, "spool", "drain", str(spool), "--to", node.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as drain:
        assert drain.stderr is not None
        drain.stderr.readline()
        drain.send_signal(signal.SIGTERM)
        out, err = drain.communicate(timeout=60)
    assert (drain.returncode, json.loads(out)["sent"]) == (1, 0)
    assert b"stopped before the end; the same command goes on" in err


# --- what is refused ---


def test_a_full_spool_is_said_and_what_went_in_is_counted(spool: Path) -> None:
    data = b"".join(b"%d" % n + bytes(1000) + b"\n" for n in range(100))
    outcome = fed(data, "spool", "put", spool, "--queue", "q", "--max-size", "40960")
    assert outcome.code == 1
    assert "has no room for" in outcome.err
    (row,) = outcome.rows
    assert 20 < row["count"] < 60
    assert stat(spool)["waiting"] == row["count"]
    flags = ["--max-size", "40960", "--when-full", "drop-oldest"]
    outcome = fed(data, "spool", "put", spool, "--queue", "q", *flags)
    assert (outcome.code, outcome.rows) == (0, [{"queue": "q", "count": 100}])
    assert stat(spool)["bytes"] <= 40_960


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["put", "d", "x"], "name the queue"),
        (["put", "d", "--json", "x"], "--json reads stdin"),
        (["put", "d", "--queue", "no name", "x"], "holds ' '"),
        (["put", "d", "--queue", "q", "--max-size", "5", "x"], "a segment holds 4096 to"),
        (["put", "d", "--queue", "q", "--when-full", "never", "x"], "when_full is one of block"),
        (["put", "d", "--queue", "q", "--encrypt", "x"], "encryption needs a key"),
        (["put", "d", "--queue", "q", "--delay", "-1", "x"], "delay of -1.0 s is not within"),
        (["drain", "d", "--to", "http://x/"], "is a URL"),
        (["drain", "nowhere", "--to", "localhost"], "no such directory"),
        (["stat", "nowhere"], "no such file or directory"),
        (["tail", "nowhere"], "no such file or directory"),
        (["drain", "d"], "Missing option '--to'"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    outcome = penstock("spool", *words)
    assert outcome.code == 2, outcome
    assert said in " ".join(outcome.err.split()), outcome.err
    assert "Traceback" not in outcome.err


def test_a_node_that_stays_away_ends_a_drain_in_the_end(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.spool.RETRY_SECONDS", 0.0)
    penstock("spool", "put", spool, "--queue", "q", "x")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    outcome = penstock("spool", "drain", spool, "--to", address)
    assert (outcome.code, outcome.rows[0]["sent"]) == (1, 0)
    assert "no node answers at" in outcome.err
    assert stat(spool)["waiting"] == 1
    size = (spool / "0.seg").stat().st_size
    assert stat(spool)["sending"] == {"segment": 0, "offset": size, "index": 1}


def test_a_spool_that_somebody_has_open_is_waited_for_and_then_refused(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.spool.LOCK_SECONDS", 0.0)
    with Spool(spool):
        line = refused("spool", "put", spool, "--queue", "q", "x")
    assert "another process" in line


def test_stat_and_tail_do_not_exit_0_when_they_report_damage(spool: Path) -> None:
    write_spool(spool, {0: BAD_PAYLOAD}, b"\x01\0\0")
    for command in ("stat", "tail"):
        outcome = penstock("spool", command, spool)
        assert outcome.code == 1
        assert len(outcome.rows) == 1  # what can be read is shown all the same
        assert "0.seg, offset 12" in outcome.err
        assert "state.dat" in outcome.err
