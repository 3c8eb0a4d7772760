"""The commands over files at rest, given a spool of Beats or one file of it; and its events into a live node."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from base64 import b64decode
from pathlib import Path

import pytest

from penstock.formats.beats.event import Event, encode_event
from penstock.formats.beats.segment import Header, Options, PayloadFormat, encode_header
from penstock.formats.beats.task_event import encode_tasks
from penstock.formats.taskflux.generation import Generation
from support.beats_spools import (
    BAD_END,
    BAD_PAYLOAD,
    EMPTY,
    FUTURE_VERSION,
    KEY,
    PLAIN,
    TORN,
    UNKNOWN_OPTION,
    VECTORS,
    A,
    B,
    sealed,
    some_events,
    spool,
    stored,
)
from support.command import COMMAND, penstock, refused
from support.directories import build
from support.node_process import NodeProcess, start
from support.rabbitmq_directories import Directory, journaled, publish

Words = list[str | Path]

NAMES = ["family", "kind", "path", "offset", "size", "status"]
OVER_FILES = [["inspect"], ["inspect", "--table"], ["dump"], ["tasks"], ["verify"]]

MEMORY_MAX = 2**30
"""Bytes of address space for a command that meets a monster; the libraries alone map half of it."""


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A spool of all versions, one event of which is acknowledged."""
    names = ("v0_json", "v1_cbor", "v2_cbor", "v2_cbor_lz4")
    segments: dict[int | str, bytes] = {n: VECTORS[name] for n, name in enumerate(names)}
    return spool(tmp_path / "diskqueue", segments, VECTORS["state_v0"])


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A spool with a damaged frame, a frame that is no event, and a torn tail."""
    segments: dict[int | str, bytes] = {0: BAD_PAYLOAD, 1: sealed([b"no event"]), 2: TORN}
    return spool(tmp_path / "damaged", segments)


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))


# --- reading -------------------------------------------------------------------------------------


def test_inspect_says_what_a_spool_holds(made: Path) -> None:
    outcome = penstock("inspect", made)
    (row,) = outcome.rows
    assert (outcome.code, outcome.err) == (0, "")
    assert list(row) == [
        "family", "kind", "path", "version", "options", "format", "size", "segments", "frames",
        "state_version", "position", "sending", "acknowledged", "waiting", "harmless", "damage",
    ]  # fmt: skip
    assert (row["family"], row["kind"], row["version"]) == ("beats", "spool", [0, 1, 2])
    assert (row["options"], row["format"]) == (["compressed"], ["cbor", "json"])
    assert (row["frames"], row["acknowledged"], row["waiting"]) == (8, 1, 7)
    assert row["position"] == {"segment": 0, "offset": 116, "index": 0}
    assert [(s["count"], s["frames"]) for s in row["segments"]] == [(0, 2), (2, 2), (2, 2), (2, 2)]
    table = penstock("inspect", made, "--table")
    assert (table.code, "no damage" in table.out) == (0, True)


def test_inspect_takes_a_segment_or_a_position_alone(made: Path) -> None:
    (row,) = penstock("inspect", made / "3.seg").rows
    assert (row["kind"], row["frames"], row["position"]) == ("segment", 2, None)
    (row,) = penstock("inspect", made / "state.dat").rows
    assert (row["kind"], row["state_version"], row["segments"]) == ("state", 0, [])


def test_tasks_prints_what_waits(made: Path) -> None:
    outcome = penstock("tasks", made)
    assert (outcome.code, outcome.err) == (0, "")
    assert [row["event"] for row in outcome.rows] == [B, A, B, A, B, A, B]
    assert {row["queue"] for row in outcome.rows} == {"diskqueue"}
    assert penstock("tasks", made, "--queue", "diskqueue").out == outcome.out
    assert penstock("tasks", made, "--queue", "other").out == ""
    assert len(penstock("tasks", made / "0.seg").rows) == 2


def test_dump_prints_every_frame_and_what_is_none(damaged: Path) -> None:
    outcome = penstock("dump", damaged)
    assert outcome.code == 1
    assert all(list(row)[:6] == NAMES for row in outcome.rows)
    found = [(row["kind"], row["segment"], row["offset"], row["status"]) for row in outcome.rows]
    assert found == [
        ("segment", 0, 0, "ok"),
        ("damage", 0, 12, "bad-checksum"),
        ("frame", 0, 91, "ok"),
        ("segment", 1, 0, "ok"),
        ("frame", 1, 12, "bad-event"),
        ("segment", 2, 0, "ok"),
        ("frame", 2, 12, "ok"),
        ("damage", 2, 91, "torn"),
    ]
    assert b64decode(outcome.rows[1]["payload"]) == BAD_PAYLOAD[12:91]
    assert outcome.rows[2]["event"] == B
    assert (outcome.rows[4]["event"], outcome.rows[4]["payload"]) == (None, "bm8gZXZlbnQ=")


def test_a_whole_spool_dumps_with_its_position_and_exit_0(made: Path) -> None:
    outcome = penstock("dump", made)
    assert outcome.code == 0
    assert [row["kind"] for row in outcome.rows].count("frame") == 8
    assert (outcome.rows[0]["kind"], outcome.rows[0]["version"]) == ("state", 0)
    by_segment = {row["segment"]: row for row in outcome.rows if row["kind"] == "frame"}
    assert (by_segment[2]["file_offset"], by_segment[3]["file_offset"]) == (91, None)
    assert penstock("dump", made / "state.dat").rows == outcome.rows[:1]


def test_verify_prints_damage_and_says_what_is_none(damaged: Path, made: Path) -> None:
    outcome = penstock("verify", damaged)
    assert outcome.code == 1
    found = [(row["status"], row["severity"]) for row in outcome.rows]
    assert found == [("bad-checksum", "lost"), ("bad-event", "lost"), ("torn", "harmless")]
    counts = "damaged: 3 events in 3 segments, 3 waiting, 2 damaged places, 1 harmless ones"
    assert counts in outcome.err
    whole = penstock("verify", made)
    assert (whole.code, whole.out) == (0, "")
    assert "whole: 8 events in 4 segments, 7 waiting, 0 damaged places" in whole.err


def test_a_torn_tail_is_reported_and_exit_0(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: TORN})
    outcome = penstock("tasks", path)
    assert outcome.code == 0
    assert "0.seg, offset 91, 109 bytes" in outcome.err
    outcome = penstock("verify", path)
    (row,) = outcome.rows
    assert (outcome.code, row["offset"], row["size"]) == (0, 91, 109)
    assert (row["status"], row["severity"]) == ("torn", "harmless")
    assert penstock("inspect", path).code == 0


def test_a_wrong_length_at_the_end_of_a_frame_loses_nothing(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: BAD_END})
    listed = penstock("tasks", path)
    assert (listed.code, len(listed.rows), "'penstock verify'" in listed.err) == (0, 2, True)
    verified = penstock("verify", path)
    assert (verified.code, [row["status"] for row in verified.rows]) == (1, ["bad-end"])


@pytest.mark.parametrize(
    ("data", "words"),
    [(FUTURE_VERSION, "a version that we do not know: 3"), (UNKNOWN_OPTION, "options that we")],
)
def test_what_we_do_not_know_is_refused_and_kept(tmp_path: Path, data: bytes, words: str) -> None:
    path = spool(tmp_path / "queue", {0: data, 1: PLAIN})
    listed = penstock("tasks", path)
    assert (listed.code, len(listed.rows)) == (1, 2)
    assert words in listed.err
    assert (path / "0.seg").read_bytes() == data


@pytest.mark.parametrize(
    "flags",
    [
        ["--at", "0"],
        ["--uncommitted"],
        ["--vhost", "/"],
        ["--include-transient"],
        ["--include-expired"],
        ["--as-of", "2026-01-01"],
    ],
)
def test_flags_of_other_families_are_wrong_usage(made: Path, flags: list[str]) -> None:
    outcome = penstock("tasks", made, *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert flags[0] in outcome.err
    assert "Beats" in outcome.err


# --- keys ----------------------------------------------------------------------------------------


def test_a_key_comes_from_a_file_a_password_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = spool(tmp_path / "queue", {0: VECTORS["v2_cbor_aes"]})
    (tmp_path / "key").write_text(KEY.hex())
    assert [
        row["event"] for row in penstock("tasks", path, "--key-file", tmp_path / "key").rows
    ] == [A]
    monkeypatch.setenv("PENSTOCK_SPOOL_KEY", KEY.hex())
    for command in ("inspect", "dump", "tasks", "verify"):
        assert penstock(command, path).code == 0
    monkeypatch.delenv("PENSTOCK_SPOOL_KEY")
    (tmp_path / "password").write_text("secret\n")
    derived = bytes.fromhex("edaf02af5f91ce7400d744b88c84d52e")
    data = sealed([PLAIN[16:83]], options=Options.ENCRYPTED, key=derived)
    path = spool(tmp_path / "shipper", {0: data})
    for command in ("inspect", "dump", "tasks", "verify"):
        assert penstock(command, path, "--password-file", tmp_path / "password").code == 0


def test_without_the_right_key_the_answer_is_clear_and_the_file_stays(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: VECTORS["v2_cbor_aes"]})
    (tmp_path / "key").write_bytes(bytes(16))
    cases: list[tuple[Words, str]] = [
        ([], "--key-file"),
        (["--key-file", tmp_path / "key"], "wrong key or damaged"),
    ]
    for flags, words in cases:
        listed = penstock("tasks", path, *flags)
        assert (listed.code, listed.out) == (1, "")
        assert words in listed.err
        verified = penstock("verify", path, *flags)
        assert (verified.code, words in verified.rows[0]["reason"]) == (1, True)
        to: Words = ["--to", "taskflux-3", "--out", tmp_path / "out"]
        assert words in refused("convert", path, *to, *flags)
    assert (path / "0.seg").read_bytes() == VECTORS["v2_cbor_aes"]
    assert not (tmp_path / "out").exists()


def test_keys_are_refused_where_they_mean_nothing(made: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key")
    assert "holds no key" in refused("tasks", made, "--key-file", tmp_path / "key")
    build(tmp_path / "node", Generation.THREE)
    for flag in ("--key-file", "--password-file"):
        outcome = penstock("tasks", tmp_path / "node", flag, tmp_path / "key")
        assert (outcome.code, flag in outcome.err) == (2, True)
        outcome = penstock("enqueue", "orders", "task", flag, tmp_path / "key")
        assert (outcome.code, "--from" in outcome.err) == (2, True)


# --- repair and convert --------------------------------------------------------------------------


def test_repair_prints_what_it_left_and_the_result_is_whole(damaged: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = penstock("repair", damaged, "--out", out)
    assert (outcome.code, [row["status"] for row in outcome.rows]) == (
        1,
        ["bad-checksum", "bad-event"],
    )
    assert outcome.words[-1].endswith("2 events in 3 segments taken along; 2 places left behind")
    assert penstock("verify", out).code == 0
    assert [row["event"] for row in penstock("tasks", out).rows] == [B, A]
    again = penstock("repair", out, "--out", tmp_path / "again")
    assert (again.code, again.out) == (0, "")


def test_convert_makes_a_directory_that_a_node_serves(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = penstock("convert", made, "--to", "taskflux-3", "--out", out)
    (row,) = outcome.rows
    assert (outcome.code, outcome.err) == (0, "")
    assert (row["family"], row["tasks"], row["queues"], row["left_too_large"]) == (
        "taskflux",
        7,
        1,
        0,
    )
    with start(out) as node, node.client() as client:
        payloads = [delivery.payload for delivery in client.dequeue_many("diskqueue", 10)]
    assert payloads == [b64decode(row["payload"]) for row in penstock("tasks", made).rows]


def test_convert_makes_a_spool_that_beats_reads(made: Path, tmp_path: Path) -> None:
    for to, version in (("beats-1", 1), ("beats-2", 2)):
        out = tmp_path / to
        outcome = penstock("convert", made, "--to", to, "--out", out)
        (row,) = outcome.rows
        assert (outcome.code, "8.4" in outcome.err) == (0, version == 1)
        assert (row["family"], row["version"], row["frames"]) == ("beats", version, 8)
        (inspected,) = penstock("inspect", out).rows
        assert (inspected["version"], inspected["options"], inspected["format"]) == (
            [version],
            [],
            ["cbor"],
        )
        assert [row["event"] for row in penstock("tasks", out).rows] == [B, A, B, A, B, A, B]


def nested(levels: int) -> bytes:
    """Return an event with so many maps and lists within each other, itself and ``fields`` counted."""
    value: list[object] | int = 1
    for _ in range(150):  # the writer's own depth is not asked: the rest is joined as bytes
        value = [value]
    inner = encode_event(Event(7, 1, {}, {"a": value}), PayloadFormat.CBOR)
    mark = b"\x61a"
    return inner.replace(mark, mark + b"\x81" * (levels - 152))


def test_events_nested_150_or_512_levels_deep_are_read_and_written(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: sealed([nested(152), nested(512)])})
    outcome = penstock("tasks", path)
    assert (outcome.code, outcome.err) == (0, "")
    assert [json.dumps(row["event"]["fields"]).count("[") for row in outcome.rows] == [150, 510]
    for to, out in (("beats-1", tmp_path / "1"), ("beats-2", tmp_path / "2")):
        outcome = penstock("convert", path, "--to", to, "--out", out)
        assert (outcome.code, outcome.rows[0]["frames"]) == (0, 2)
        assert [row["event"] for row in penstock("tasks", out).rows] == [
            row["event"] for row in penstock("tasks", path).rows
        ]


def test_an_event_that_is_nested_too_deep_is_counted_by_name_and_not_as_damaged(
    tmp_path: Path,
) -> None:
    path = spool(tmp_path / "queue", {0: sealed([PLAIN[16:83], nested(513), nested(90_000)])})
    outcome = penstock("convert", path, "--to", "beats-2", "--out", tmp_path / "beats")
    row = outcome.rows[0]
    assert (outcome.code, row["frames"], row["left_too_deep"], row["left_unencodable"]) == (
        1, 1, 2, 0,
    )  # fmt: skip
    assert "damaged" not in outcome.err
    # A node takes the bytes of an event that is no task, so nothing is left out.
    outcome = penstock("convert", path, "--to", "taskflux-3", "--out", tmp_path / "node")
    assert (outcome.code, outcome.rows[0]["tasks"], outcome.rows[0]["too_deep"]) == (0, 3, 2)
    outcome = penstock("verify", path)
    found = [(row["status"], row["severity"]) for row in outcome.rows]
    assert (outcome.code, found) == (0, [("too-deep", "harmless")] * 2)
    assert penstock("inspect", path).rows[0]["damage"] == []
    outcome = penstock("repair", path, "--out", tmp_path / "repaired")
    assert (outcome.code, outcome.out) == (0, "")
    outcome = penstock("tasks", tmp_path / "repaired")
    assert outcome.code == 1  # two events are not shown
    assert [row["event"] for row in outcome.rows] == [A, None, None]
    assert b64decode(outcome.rows[1]["payload"]) == nested(513)


def test_what_cannot_be_converted_is_refused_in_one_line(made: Path, tmp_path: Path) -> None:
    to = ["--to", "beats-2", "--out"]
    assert "is inside" in refused("convert", made, *to, made / "out")
    assert "no events" in refused("convert", made / "state.dat", *to, tmp_path / "out")
    assert "taskflux-2 or taskflux-3" in refused(
        "convert", made, "--to", "taskflux-1", "--out", tmp_path / "out"
    )
    build(tmp_path / "node", Generation.THREE)
    assert "TaskFlux are not written as beats-2" in refused(
        "convert", tmp_path / "node", *to, tmp_path / "out"
    )
    broker = Directory(tmp_path / "broker")
    broker.journal(broker.queue(b"orders"), journaled(0, publish(0, b"message")))
    assert "RabbitMQ are not written as beats-2" in refused(
        "convert", broker.path, *to, tmp_path / "out"
    )
    outcome = penstock("convert", made, "--to", "beats-3", "--out", tmp_path / "out")
    names = ["taskflux-1", "taskflux-2", "taskflux-3", "beats-1", "beats-2"]
    assert (outcome.code, all(name in outcome.err for name in names)) == (2, True)
    outcome = penstock("convert", made, *to, tmp_path / "out", "--queue", "orders")
    assert (outcome.code, "--queue" in outcome.err) == (2, True)
    assert not (tmp_path / "out").exists()


# --- enqueue --from ------------------------------------------------------------------------------


def drained(node: NodeProcess, queue: str) -> list[tuple[int, bytes]]:
    """Take everything out of a queue."""
    found: list[tuple[int, bytes]] = []
    with node.client() as client:
        while deliveries := client.dequeue_many(queue, 500):
            found += [(delivery.key, delivery.payload) for delivery in deliveries]
            client.ack(deliveries)
    return found


def test_enqueue_puts_every_event_in_once_however_often_it_runs(
    tmp_path: Path, node: NodeProcess
) -> None:
    payloads: list[bytes] = []
    for number in range(2400):
        queue = ("spooled-1", "spooled-2")[number % 2]
        payloads += encode_tasks(queue, [b"%d" % number], [0], timestamp=number)
    path = spool(
        tmp_path / "spooled-3", {0: sealed(payloads[:1500]), 1: sealed(payloads[1500:]), 2: PLAIN}
    )
    for _ in range(3):
        outcome = penstock("enqueue", "--from", path)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.rows == [
            {"queue": "spooled-1", "count": 1200, "left_too_large": 0},
            {"queue": "spooled-2", "count": 1200, "left_too_large": 0},
            {"queue": "spooled-3", "count": 2, "left_too_large": 0},
        ]
    assert drained(node, "spooled-1") == [(0, b"%d" % n) for n in range(0, 2400, 2)]
    assert drained(node, "spooled-2") == [(0, b"%d" % n) for n in range(1, 2400, 2)]
    assert drained(node, "spooled-3") == [(0, PLAIN[16:83]), (0, PLAIN[95:212])]
    (path / "state.dat").write_bytes(stored(2, 91, 1))
    assert "an earlier run sent other messages" in refused("enqueue", "--from", path)


def test_an_import_that_is_longer_than_a_nodes_memory_can_be_repeated(
    tmp_path: Path, node: NodeProcess
) -> None:
    """A node remembers 1024 requests of a producer; here each queue of a range has one of its own."""
    payloads: list[bytes] = []
    for number in range(1300):
        payloads += encode_tasks(
            "alternating", [b"%d" % number], [0], timestamp=0, ttl_ms=10**9 + number
        )
    path = spool(tmp_path / "many", {0: sealed(payloads)})
    for _ in range(2):
        outcome = penstock("enqueue", "--from", path)
        assert (outcome.code, outcome.rows[0]["count"]) == (0, 1300)
    assert drained(node, "alternating") == [(0, b"%d" % n) for n in range(1300)]


def test_the_queue_of_events_that_name_none_can_be_chosen(
    tmp_path: Path, node: NodeProcess
) -> None:
    path = spool(tmp_path / "two words", {0: PLAIN})
    assert penstock("enqueue", "--from", path, "--queue", "chosen").rows[0]["queue"] == "chosen"
    assert len(drained(node, "chosen")) == 2
    assert (
        penstock("enqueue", "--from", path, "--producer", "again").rows[0]["queue"] == "two%20words"
    )
    assert len(drained(node, "two%20words")) == 2


def test_damage_in_a_spool_is_said_and_exit_1_but_the_rest_is_sent(
    damaged: Path, node: NodeProcess
) -> None:
    outcome = penstock("enqueue", "--from", damaged)
    assert (outcome.code, outcome.rows[0]["count"]) == (1, 3)
    assert "2 places are damaged" in outcome.err
    assert [payload for _, payload in drained(node, "damaged")] == [
        PLAIN[95:212], b"no event", PLAIN[16:83],
    ]  # fmt: skip


def test_what_cannot_be_sent_is_refused_before_a_node_is_asked(made: Path, tmp_path: Path) -> None:
    nobody = ["--node", "127.0.0.1:1"]
    locked = spool(tmp_path / "locked", {0: VECTORS["v2_cbor_aes"]})
    assert "--key-file" in refused("enqueue", "--from", locked, *nobody)
    assert "no events" in refused("enqueue", "--from", made / "state.dat", *nobody)
    outcome = penstock("enqueue", "--from", made, *nobody, "--vhost", "/")
    assert (outcome.code, "--vhost" in outcome.err) == (2, True)
    outcome = penstock("enqueue", "--from", made, *nobody, "--queue", "two words")
    assert (outcome.code, "--queue" in outcome.err) == (2, True)
    assert "no node answers" in refused("enqueue", "--from", made, *nobody)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("words", OVER_FILES, ids=" ".join)
def test_what_is_no_spool_is_refused_in_one_line(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "5.seg").mkdir()
    (tmp_path / "0.seg").write_bytes(b"")
    os.mkfifo(tmp_path / "6.seg")
    for name in ("5.seg", "0.seg", "6.seg"):
        assert name in refused(words[0], tmp_path / name, *words[1:])
    assert penstock(words[0], tmp_path / "7.seg", *words[1:]).code == 2


def test_other_directories_with_a_state_are_no_spools(tmp_path: Path) -> None:
    (tmp_path / "state.dat").write_bytes(b"a state of something else, longer than ours")
    assert str(tmp_path) in refused("inspect", tmp_path)
    (tmp_path / "state.dat").write_bytes(b"")
    assert penstock("inspect", tmp_path).code == 0


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
    )


def test_a_hole_of_20_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: PLAIN, 1: PLAIN})
    os.truncate(path / "0.seg", 20 * 2**30)
    with (path / "0.seg").open("r+b") as file:
        file.seek(10 * 2**30)
        file.write(PLAIN[91:])  # a frame between two holes
    listed = command("tasks", path)
    assert (listed.returncode, "Traceback" in listed.stderr) == (1, False)
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [row["event"] for row in rows] == [A, B, B, A, B]
    verified = command("verify", path)
    found = [json.loads(line) for line in verified.stdout.splitlines()]
    assert [(row["status"], row["offset"], row["size"]) for row in found] == [
        ("gap", 220, 10 * 2**30 - 220),
        ("torn", 10 * 2**30 + 129, 10 * 2**30 - 129),
    ]


@pytest.mark.heavy  # 300 MiB are looked at
def test_a_bomb_takes_no_memory(tmp_path: Path) -> None:
    """300 MiB of zeros that were a few hundred kilobytes, and then an event."""
    lz4 = pytest.importorskip("lz4.frame")
    packed = lz4.compress(
        bytes(300 * 2**20) + PLAIN[12:91], block_size=lz4.BLOCKSIZE_MAX4MB, block_linked=False
    )
    data = encode_header(Header(2, 0, Options.COMPRESSED)) + packed
    assert len(data) < 2 * 2**20
    path = spool(tmp_path / "queue", {0: data})
    listed = command("tasks", path)
    assert (listed.returncode, "Traceback" in listed.stderr) == (1, False)
    (line,) = listed.stdout.splitlines()
    assert json.loads(line)["event"] == A


def test_thousands_of_tiny_segments_are_read(tmp_path: Path) -> None:
    """As Beats leaves them without a segment size."""
    payloads = [encode_event(event, PayloadFormat.CBOR) for event in some_events(1500)]
    segments: dict[int | str, bytes] = {n: sealed([p]) for n, p in enumerate(payloads)}
    path = spool(tmp_path / "queue", segments, stored(700, 0, 0))
    outcome = penstock("tasks", path)
    assert [row["segment"] for row in outcome.rows] == list(range(700, 1500))
    (row,) = penstock("inspect", path).rows
    assert (row["acknowledged"], row["waiting"]) == (700, 800)


def test_a_length_that_fits_into_a_hole_takes_no_memory(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: EMPTY + b"\xff\xff\xff\x0f" + bytes(100)})
    os.truncate(path / "0.seg", 2**32)
    listed = command("tasks", path)
    assert (listed.returncode, listed.stdout, "Traceback" in listed.stderr) == (0, "", False)
    assert "0.seg, offset 12" in listed.stderr
