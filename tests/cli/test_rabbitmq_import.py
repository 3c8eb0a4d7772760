"""RabbitMQ's directories into nodes: converted, repaired, and sent to a live one, each message once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from base64 import b64decode
from pathlib import Path

import pytest

from penstock.families.rabbitmq.ingest import RANGE
from penstock.families.rabbitmq.location import target_name
from penstock.formats.rabbitmq.envelope import decode_envelope
from penstock.formats.taskflux.generation import Generation
from support.command import Outcome, penstock, refused
from support.directories import build
from support.forking import COMMAND_LINE
from support.node_process import PATIENCE_SECONDS, NodeProcess, start
from support.rabbitmq_directories import Directory, journaled, publish, stored, truth, unpacked

YEAR_2001_US = 1_000_000_000_000_000

Words = list[str | Path]
Messages = dict[str, list[tuple[int, bytes]]]
"""(key, body) of the tasks of each queue, in the order in which they are delivered."""


@pytest.fixture
def made(tmp_path: Path) -> Directory:
    """A directory with a lasting, a transient and an expired message, and a message in another vhost."""
    made = Directory(tmp_path / "broker")
    made.journal(
        made.queue(b"orders"),
        journaled(0, publish(0, b"lasting")),
        journaled(1, publish(1, b"transient", is_persistent=False)),
        journaled(2, publish(2, b"expired", expiry_us=YEAR_2001_US)),
    )
    other = Directory(tmp_path / "broker", b"shop")
    other.journal(other.queue(b"two words"), journaled(5, publish(5, b"other")))
    return made


def drained(node: NodeProcess, names: list[str], *, with_envelope: bool = True) -> Messages:
    """Take everything out of the queues."""
    found: Messages = {}
    with node.client() as client:
        for name in names:
            found[name] = []
            while deliveries := client.dequeue_many(name, 500):
                for delivery in deliveries:
                    body = delivery.payload
                    if with_envelope:
                        _, body = decode_envelope(body)
                    found[name].append((delivery.key, body))
                client.ack(deliveries)
    return found


# --- convert -------------------------------------------------------------------------------------


def test_convert_prints_what_it_wrote_and_a_node_serves_it(tmp_path: Path) -> None:
    source = unpacked("c1_small_embedded_live", tmp_path / "broker")
    out = tmp_path / "out"
    outcome = penstock("convert", source, "--to", "taskflux-3", "--out", out)
    expected = truth("c1_small_embedded_live")
    (row,) = outcome.rows
    assert (outcome.code, outcome.err) == (0, "")
    assert list(row) == [
        "family", "generation", "path", "entries", "snapshot_index", "queues", "tasks",
        "left_transient", "left_expired", "left_lost", "left_too_large",
        "left_out",
    ]  # fmt: skip
    assert (row["family"], row["generation"], row["tasks"]) == ("taskflux", 3, len(expected))
    names: list[str] = [target_name(r["vhost"].encode(), r["queue"].encode()) for r in expected]
    with start(out) as node:
        found = drained(node, list(dict.fromkeys(names)))
    assert sum(map(len, found.values())) == len(expected)
    assert {name: len(rows) for name, rows in found.items()} == {
        name: names.count(name) for name in found
    }


@pytest.mark.parametrize(
    ("flags", "bodies", "left"),
    [
        ([], [b"lasting"], (1, 1)),
        (["--include-transient"], [b"lasting", b"transient"], (0, 1)),
        (["--include-expired"], [b"lasting", b"expired"], (1, 0)),
        (["--as-of", "2001-09-09T01:46:39"], [b"lasting", b"expired"], (1, 0)),
        (["--vhost", "/", "--queue", "orders"], [b"lasting"], (1, 1)),
        (["--properties", "envelope"], [b"lasting"], (1, 1)),
    ],
)
def test_flags_choose_what_is_converted(
    made: Directory, tmp_path: Path, flags: list[str], bodies: list[bytes], left: tuple[int, int]
) -> None:
    out = tmp_path / "out"
    outcome = penstock("convert", made.path, "--to", "taskflux-2", "--out", out, *flags)
    (row,) = outcome.rows
    assert outcome.code == 0
    assert (row["left_transient"], row["left_expired"]) == left
    payloads = [
        b64decode(row["payload"]) for row in penstock("tasks", out, "--queue", "orders").rows
    ]
    assert [decode_envelope(payload)[1] for payload in payloads] == bodies


def test_damage_is_said_and_exit_1_but_the_rest_is_converted(tmp_path: Path) -> None:
    source = unpacked("c8_damage_store_marker_bad", tmp_path / "broker")
    outcome = penstock("convert", source, "--to", "taskflux-3", "--out", tmp_path / "out")
    (row,) = outcome.rows
    assert (outcome.code, row["tasks"], row["left_lost"]) == (1, 464, 1)
    assert "'penstock verify' lists them" in outcome.err
    assert len(penstock("tasks", tmp_path / "out").rows) == 464


def test_a_message_that_no_node_takes_is_left_out_and_exit_1(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    made.journal(
        made.queue(b"orders"), journaled(0, publish(0, bytes(2**24))), journaled(1, publish(1))
    )
    outcome = penstock("convert", made.path, "--to", "taskflux-3", "--out", tmp_path / "out")
    (row,) = outcome.rows
    assert (outcome.code, row["tasks"], row["left_too_large"]) == (1, 1, 1)
    assert "1 messages were left out" in outcome.err


@pytest.mark.parametrize(
    "flags",
    [["--uncommitted"], ["--properties", "both"], ["--as-of", "soon"], ["--to", "taskflux-9"]],
)
def test_flags_that_mean_nothing_to_a_conversion_are_wrong_usage(
    made: Directory, tmp_path: Path, flags: list[str]
) -> None:
    words: Words = ["--to", "taskflux-3", "--out", tmp_path / "out", *flags]
    outcome = penstock("convert", made.path, *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert flags[0] in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags", [["--queue", "orders"], ["--vhost", "/"], ["--properties", "drop"]]
)
def test_flags_of_rabbitmq_mean_nothing_to_a_conversion_of_other_files(
    tmp_path: Path, flags: list[str]
) -> None:
    build(tmp_path / "node", Generation.THREE)
    words: Words = ["--to", "taskflux-2", "--out", tmp_path / "out", *flags]
    outcome = penstock("convert", tmp_path / "node", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert flags[0] in outcome.err


def test_what_cannot_be_converted_is_refused_in_one_line(made: Directory, tmp_path: Path) -> None:
    to = ["--to", "taskflux-3", "--out"]
    assert "is inside" in refused("convert", made.path, *to, made.path / "out")
    assert "exists already" in refused("convert", made.path, *to, tmp_path)
    assert "no such queue" in refused("convert", made.path, *to, tmp_path / "o", "--queue", "x")
    words = refused("convert", made.path, "--to", "taskflux-1", "--out", tmp_path / "o")
    assert "taskflux-2 or taskflux-3" in words
    assert not (tmp_path / "o").exists()


# --- repair --------------------------------------------------------------------------------------


def test_repair_prints_what_it_left_and_the_result_is_whole(tmp_path: Path) -> None:
    source = unpacked("c8_damage_store_marker_bad", tmp_path / "broker")
    out = tmp_path / "out"
    outcome = penstock("repair", source, "--out", out)
    assert (outcome.code, [row["status"] for row in outcome.rows]) == (1, ["bad-marker", "missing"])
    assert outcome.words[-1].endswith("464 messages in 3 queues taken along; 2 places left behind")
    assert penstock("verify", out).code == 0
    assert penstock("tasks", out).out == penstock("tasks", source).out
    again = penstock("repair", out, "--out", tmp_path / "again")
    assert (again.code, again.out) == (0, "")


def test_repair_of_one_file_says_how_many_records_it_took(made: Directory, tmp_path: Path) -> None:
    path = made.store("3.rdq", stored(0, b"body"), stored(1, b"body"))
    outcome = penstock("repair", path, "--out", tmp_path / "out")
    assert (outcome.code, outcome.out) == (0, "")
    assert "2 records taken along; 0 places left behind" in outcome.err
    assert (tmp_path / "out" / "3.rdq").read_bytes() == path.read_bytes()
    assert "is inside" in refused("repair", made.path, "--out", made.path / "new")
    assert "exists already" in refused("repair", made.path, "--out", tmp_path)


# --- enqueue --from ------------------------------------------------------------------------------


def requests_directory(path: Path, count: int, *, messages: int = 3) -> Messages:
    """Make a directory that takes so many requests to be put in, some of large messages."""
    made = Directory(path)
    records, bodies, kept = [], [], []
    for number in range(count * messages):
        request, place = divmod(number, messages)
        body = b"%d" % number if number % 10 else b"%d " % number * 500
        record = publish(number, body, stored=number % 10 == 0)
        records.append(journaled(request * RANGE + place * 7, record))
        bodies.append((0, body))
        if number % 10 == 0:
            kept.append(stored(number, body))
    made.journal(made.queue(b"orders"), *records)
    made.store("0.rdq", *kept)
    return {"orders": bodies}


def test_messages_are_put_in_and_a_second_run_adds_nothing(
    made: Directory, node: NodeProcess
) -> None:
    for _ in range(2):
        outcome = penstock("enqueue", "--from", made.path)
        assert outcome.rows == [
            {
                "queue": "orders", "count": 1, "left_transient": 1, "left_expired": 1,
                "left_lost": 0, "left_too_large": 0,
            },
            {
                "queue": "shop~two%20words", "count": 1, "left_transient": 0, "left_expired": 0,
                "left_lost": 0, "left_too_large": 0,
            },
        ]  # fmt: skip
        assert (outcome.code, len(outcome.words)) == (0, 1)
        assert "1 messages were left out that had expired at" in outcome.err
    names = ["orders", "shop~two%20words"]
    assert drained(node, names) == {
        "orders": [(0, b"lasting")],
        "shop~two%20words": [(0, b"other")],
    }
    assert penstock("enqueue", "--from", made.path).code == 0
    assert drained(node, names) == {name: [] for name in names}  # also when they are done with
    _delete(node, names)


def _delete(node: NodeProcess, names: list[str]) -> None:
    with node.client() as client:
        for name in names:
            client.delete_queue(name)


def test_real_messages_arrive_in_their_order_by_priority(tmp_path: Path) -> None:
    name = "c4_props_ttl_priority_clean"
    source = unpacked(name, tmp_path / "broker")
    with start(tmp_path / "node") as node:
        flags = ["--node", node.address, "--include-expired", "--properties", "drop"]
        for _ in range(2):
            assert penstock("enqueue", "--from", source, *flags).code == 0
        names = [target_name(r["vhost"].encode(), r["queue"].encode()) for r in truth(name)]
        found = drained(node, list(dict.fromkeys(names)), with_envelope=False)
    for queue, rows in found.items():
        known = [row for row, its in zip(truth(name), names, strict=True) if its == queue]
        assert [key for key, _ in rows] == [-(row["bucket"] or 0) for row in known]
        assert [len(body) for _, body in rows] == [row["body_len"] for row in known]


def test_more_requests_than_a_node_remembers_are_put_in_once(tmp_path: Path) -> None:
    expected = requests_directory(tmp_path / "broker", 1100, messages=1)
    with start(tmp_path / "node") as node:
        for _ in range(2):
            outcome = penstock("enqueue", "--from", tmp_path / "broker", "--node", node.address)
            assert (outcome.code, outcome.rows[0]["count"]) == (0, 1100)
        assert drained(node, ["orders"]) == expected


# Python that ends the command's process as the system would, at its nth call of a method.
KILL = """
import os, signal
from penstock.client import link
calls = 0
def counted(method, is_after):
    def call(self, first, *others):
        global calls
        request = getattr(first, "request", first)
        calls += type(request).__name__ == "Enqueue" or method.__name__ == "collect"
        if calls == {number} and not is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(self, first, *others)
        if calls == {number} and is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call
link.Link.{method} = counted(link.Link.{method}, {is_after})
"""


def command(*words: str | Path, before: str = "") -> subprocess.Popen[bytes]:
    code = f"import sys; sys.argv[0] = 'penstock'\n{before}\n{COMMAND_LINE}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen[bytes]) -> Outcome:
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return Outcome(process.returncode, out.decode(), err.decode())


@pytest.mark.parametrize(
    ("method", "number", "is_after", "least", "most"),
    [
        ("send", 1, False, 0, 0),
        ("send", 1, True, 0, 1),
        ("send", 9, True, 1, 9),  # the first goes alone, eight behind it together
        ("send", 17, False, 8, 16),
        ("collect", 12, True, 11, 20),  # the first answer is that of the queue's creation
        ("collect", 30, True, 29, 30),
    ],
)
def test_a_command_that_is_killed_goes_on_where_it_ended(
    tmp_path: Path, method: str, number: int, is_after: bool, least: int, most: int
) -> None:
    expected = requests_directory(tmp_path / "broker", 30)
    before = KILL.format(method=method, number=number, is_after=is_after)
    with start(tmp_path / "node") as node:
        words: Words = ["enqueue", "--from", tmp_path / "broker", "--node", node.address]
        assert ended(command(*words, before=before)).code == -signal.SIGKILL
        with node.client() as client:
            assert least <= client.stat("orders").count / 3 <= most
        outcome = ended(command(*words))
        assert (outcome.code, outcome.rows[0]["count"]) == (0, 90)
        assert drained(node, ["orders"]) == expected


# Python that ends a node at its nth sync, before the disk has it or after.
CRASH = """
import os, signal
sync, calls = os.fdatasync, 0
def counted(descriptor):
    global calls
    calls += 1
    if {is_after}:
        sync(descriptor)
    if calls == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
    if not {is_after}:
        sync(descriptor)
os.fdatasync = counted
"""


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("number", [8, 14])
def test_a_node_that_dies_in_the_middle_and_comes_back_has_each_message_once(
    tmp_path: Path, number: int, is_after: bool
) -> None:
    expected = requests_directory(tmp_path / "broker", 60)
    data = tmp_path / "node"
    before = CRASH.format(number=number, is_after=is_after)
    with NodeProcess(data, before=before).wait_listening() as node:
        address = node.address
        sending = command("enqueue", "--from", tmp_path / "broker", "--node", address)
        assert node.wait() == -signal.SIGKILL
    with NodeProcess(data, listen=address).wait_listening() as node:
        outcome = ended(sending)  # which has tried again all the while
        assert (outcome.code, outcome.rows[0]["count"]) == (0, 180)
        again = penstock("enqueue", "--from", tmp_path / "broker", "--node", node.address)
        assert again.code == 0
        assert drained(node, ["orders"]) == expected


def test_a_copy_in_another_place_is_the_same_import(tmp_path: Path) -> None:
    expected = requests_directory(tmp_path / "broker", 3)
    with start(tmp_path / "node") as node:
        flags = ["--node", node.address]
        assert penstock("enqueue", "--from", tmp_path / "broker", *flags).code == 0
        (tmp_path / "broker").rename(tmp_path / "moved")
        assert penstock("enqueue", "--from", tmp_path / "moved", *flags).code == 0
        assert drained(node, ["orders"]) == expected
        flags += ["--producer", "once more"]
        assert penstock("enqueue", "--from", tmp_path / "moved", *flags).code == 0
        assert drained(node, ["orders"]) == expected


def test_another_broker_with_the_same_names_is_another_import(tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two")):
        made = Directory(tmp_path / name)
        made.journal(made.queue(b"orders"), journaled(0, publish(number, b"%d" % number)))
    with start(tmp_path / "node") as node:
        for name in ("one", "two", "one"):
            assert penstock("enqueue", "--from", tmp_path / name, "--node", node.address).code == 0
        assert drained(node, ["orders"]) == {"orders": [(0, b"0"), (0, b"1")]}


def test_messages_expire_as_of_the_last_write_and_other_choices_are_refused(
    tmp_path: Path,
) -> None:
    made = Directory(tmp_path / "broker")
    path = made.journal(
        made.queue(b"orders"),
        journaled(0, publish(0, b"never")),
        journaled(1, publish(1, b"before", expiry_us=YEAR_2001_US - 1)),
        journaled(2, publish(2, b"after", expiry_us=YEAR_2001_US + 1)),
        journaled(3, publish(3, b"transient", is_persistent=False)),
    )
    os.utime(path, ns=(YEAR_2001_US * 1000, YEAR_2001_US * 1000))
    with start(tmp_path / "node") as node:
        words: Words = ["enqueue", "--from", made.path, "--node", node.address]
        for flags in ([], [], ["--as-of", "2001-09-09T01:46:40"]):
            outcome = penstock(*words, *flags)
            assert (outcome.code, outcome.rows[0]["count"]) == (0, 2)
            assert "2001-09-09T01:46:40" in outcome.err
        for flag in (["--include-expired"], ["--include-transient"], ["--as-of", "2001-09-10"]):
            assert "an earlier run sent other messages" in refused(*words, *flag)
        assert drained(node, ["orders"]) == {"orders": [(0, b"never"), (0, b"after")]}


def test_a_queue_that_is_full_stops_an_import_and_the_next_run_ends_it(tmp_path: Path) -> None:
    expected = requests_directory(tmp_path / "broker", 4)
    with start(tmp_path / "node") as node:
        with node.client() as client:
            client.create_queue("orders", size_max=6)
        words: Words = ["enqueue", "--from", tmp_path / "broker", "--node", node.address]
        assert "is full; retry" in refused(*words)
        first = drained(node, ["orders"])["orders"]
        assert penstock(*words).code == 0
        assert first + drained(node, ["orders"])["orders"] == expected["orders"]


def test_damage_in_the_files_is_said_and_exit_1(tmp_path: Path, node: NodeProcess) -> None:
    made = Directory(tmp_path / "broker")
    made.journal(
        made.queue(b"damaged"), journaled(0, publish(0)), journaled(1, publish(1, stored=True))
    )
    outcome = penstock("enqueue", "--from", made.path)
    (row,) = outcome.rows
    assert (outcome.code, row["count"], row["left_lost"]) == (1, 1, 1)
    assert "'penstock verify' lists them" in outcome.err
    _delete(node, ["damaged"])


def test_quorum_queues_and_streams_were_left_behind_by_an_import_in_silence(
    tmp_path: Path, node: NodeProcess
) -> None:
    source = unpacked("c9_quorum_and_stream_kill9", tmp_path / "broker")
    outcome = penstock("enqueue", "--from", source)
    assert (outcome.code, [row["count"] for row in outcome.rows]) == (1, [10])
    assert "2 queues are not classic and left out: quorum 'qq'" in outcome.err
    assert penstock("enqueue", "--from", source, "--classic-only").code == 0
    (tmp_path / "rows").write_text(penstock("tasks", source).out)
    piped = penstock("enqueue", "--json", "--file", tmp_path / "rows")
    assert (piped.code, [row["count"] for row in piped.rows]) == (0, [10])
    assert "leaves out 2 queues" in piped.err
    _delete(node, ["cl"])


@pytest.mark.parametrize(
    "words",
    [
        ["orders"], ["orders", "payload"], ["--json"], ["--lines"], ["--file", "x"],
        ["--key", "1"], ["--delay", "1"], ["--ttl", "1"], ["--ids"], ["--properties", "none"],
        ["--as-of", "never"],
    ],
)  # fmt: skip
def test_what_does_not_go_with_from_is_wrong_usage(made: Directory, words: list[str]) -> None:
    outcome = penstock("enqueue", "--from", made.path, "--node", "127.0.0.1:1", *words)
    assert (outcome.code, outcome.out) == (2, "")


@pytest.mark.parametrize(
    "flags",
    [["--queue", "x"], ["--vhost", "/"], ["--include-transient"], ["--classic-only"]],
)
def test_flags_that_choose_messages_need_from(flags: list[str]) -> None:
    outcome = penstock("enqueue", "orders", "payload", "--node", "127.0.0.1:1", *flags)
    assert (outcome.code, "--from" in outcome.err) == (2, True)


def test_what_cannot_be_sent_is_refused_before_a_node_is_asked(
    made: Directory, tmp_path: Path
) -> None:
    nobody = ["--node", "127.0.0.1:1"]
    build(tmp_path / "taskflux", Generation.TWO)
    words = refused("enqueue", "--from", tmp_path / "taskflux", *nobody)
    assert "--from does not read files of TaskFlux" in words
    assert "no such queue" in refused("enqueue", "--from", made.path, *nobody, "--queue", "x")
    assert "no such queue" in refused("enqueue", "--from", made.path, *nobody, "--vhost", "x")
    assert penstock("enqueue", "--from", tmp_path / "gone", *nobody).code == 2
    words = refused("enqueue", "--from", made.path, *nobody)
    assert "no node answers" in words
