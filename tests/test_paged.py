"""``penstock.paged.PagedStore``: order, delivery, flushes, recovery after a kill, refusals, and its directory at rest."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Thread

import pytest

import penstock
from penstock.errors import (
    CorruptData,
    DirectoryLocked,
    InvalidQueueName,
    InvalidValue,
    PathRefused,
    QueueMissing,
    StorageError,
    StorageFailed,
)
from penstock.formats.rabbitmq.checkpoint import SEQUENCE_END
from penstock.formats.rabbitmq.journal import Kind, scan
from penstock.formats.rabbitmq.names import vhost_directory
from penstock.paged import PagedMessage, PagedStore
from support.command import penstock as command
from support.rabbitmq_directories import unpacked

ROOT = Path(__file__).parent.parent
LARGE = b"p" * 5000
BROKER = "c3_large_store_limit1m_kill9"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def bodies(store: PagedStore, queue: str) -> list[bytes]:
    return [message.body for message in store.deliver(queue, 10**6)]


def test_messages_come_in_order_once_and_again_after_a_restart_until_acked(path: Path) -> None:
    with PagedStore(path) as store:
        assert store.publish("mail", [b"a", LARGE, b""]) == range(3)
        assert store.publish("mail", [b"d"]) == range(3, 4)
        assert store.publish("other", [b"x"]) == range(1)
        assert store.deliver("mail", 2) == [PagedMessage(0, b"a", False), PagedMessage(1, LARGE, False)]  # fmt: skip
        store.ack("mail", [0])
        assert store.deliver("mail", 9)[0] == PagedMessage(2, b"", False)
        assert store.deliver("mail", 9) == []
        assert store.queues == {"mail": 3, "other": 1}
    with PagedStore(path) as store:
        assert store.queues == {"mail": 3, "other": 1}
        again = store.deliver("mail", 9)
        assert [(m.number, m.is_redelivered) for m in again] == [(1, True), (2, True), (3, True)]
        assert [m.is_redelivered for m in store.deliver("other", 9)] == [False]
        store.ack("mail", [3, 1])
        assert store.publish("mail", [b"e"]) == range(4, 5)
        assert bodies(store, "mail") == [b"e"]
    with PagedStore(path) as store:
        assert bodies(store, "mail") == [b"", b"e"]


def test_random_lives_agree_with_a_list(path: Path) -> None:
    random = Random(5)
    expected: dict[int, bytes] = {}
    delivered: list[int] = []
    following = flushed = 0
    store = PagedStore(path, queue_index_max_journal_entries=50, msg_store_file_size_limit=20_000)
    for _ in range(300):
        choice = random.random()
        if choice < 0.4:
            some = [random.randbytes(random.choice([0, 10, 4096])) for _ in range(random.randint(0, 9))]  # fmt: skip
            numbers = store.publish("q", some, sync=random.random() < 0.3)
            assert numbers == range(following, following + len(some))
            expected |= dict(zip(numbers, some, strict=True))
            following += len(some)
        elif choice < 0.7:
            count = random.randint(0, 12)
            waiting = [n for n in sorted(expected) if n not in set(delivered)][:count]
            found = store.deliver("q", count) if following else []
            assert [(m.number, m.body) for m in found] == [(n, expected[n]) for n in waiting]
            delivered += waiting
        elif choice < 0.9 and delivered:
            chosen = [n for n in delivered if n in expected][: random.randint(0, 9)]
            store.ack("q", chosen, sync=False)
            for number in chosen:
                del expected[number]
        elif choice < 0.95:
            store.flush()
        else:
            flushed += store.flushes["count"]
            store.close()
            store = PagedStore(path, queue_index_max_journal_entries=50)
            delivered = []
    store.close()
    assert flushed > 1
    with PagedStore(path) as again:
        assert bodies(again, "q") == [expected[number] for number in sorted(expected)]


# --- flushes -------------------------------------------------------------------------------------


def journal_size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("journal.jif"))


def test_a_journal_begins_again_when_it_has_too_many_actions(path: Path) -> None:
    with PagedStore(path, queue_index_max_journal_entries=100) as store:
        store.publish("q", [b"x"] * 60)
        store.deliver("q", 40)
        assert (store.flushes["count"], journal_size(path) > 0) == (0, True)
        store.ack("q", [0])
        assert (store.flushes["count"], journal_size(path)) == (1, 0)
        assert len(list(path.rglob("*.idx"))) == 1


def test_little_memory_flushes_the_queue_with_the_most_actions(path: Path) -> None:
    with PagedStore(path, memory=2**16) as store:
        store.publish("large", [b"x"] * 100, sync=False)
        store.publish("small", [b"x"] * 10, sync=False)
        assert store.flushes["memory"] == 0
        while not store.flushes["memory"]:
            store.publish("small", [b"x"], sync=False)
        sizes = {one.parent.name: one.stat().st_size for one in path.rglob("*.idx")}
        assert len(sizes) == 1
        (segment,) = sizes.values()
        assert segment > 100 * 100


def test_an_explicit_flush_leaves_short_journals_and_frees_acked_files(path: Path) -> None:
    with PagedStore(path, msg_store_file_size_limit=50_000) as store:
        store.publish("q", [LARGE] * 40)
        assert len(list(path.rglob("*.rdq"))) > 1
        store.ack("q", range(40))
        store.flush()
        assert store.flushes == {"idle": 0, "count": 0, "memory": 0, "checkpoint": 1}
        assert journal_size(path) == 0
        assert len(list(path.rglob("*.rdq"))) <= 1
        assert list(path.rglob("*.idx")) == []


def test_an_idle_queue_is_flushed_by_the_next_call(path: Path) -> None:
    with PagedStore(path) as store:
        store.publish("idle", [b"x"])
        store._rules._clock_ms = lambda: 10**15  # a second has passed, and more
        store.publish("busy", [b"x"])
        assert store.flushes["idle"] == 1


# --- crashes -------------------------------------------------------------------------------------

PUBLISHER = """
import os, sys
from penstock.paged import PagedStore
store = PagedStore(sys.argv[1])
store.publish("q", [b"durable", b"x" * 5000])
store.deliver("q", 1)
store.publish("q", [b"synced later"], sync=False)
store.sync()
store.publish("q", [b"never synced"], sync=False)
os.kill(os.getpid(), 9)
"""


def test_a_killed_process_loses_nothing_that_was_synced(path: Path) -> None:
    code = subprocess.run([sys.executable, "-c", PUBLISHER, path], check=False).returncode
    assert code == -9
    with PagedStore(path) as store:
        found = store.deliver("q", 9)
        assert [m.body[:20] for m in found[:3]] == [b"durable", b"x" * 20, b"synced later"]
        assert [m.is_redelivered for m in found[:3]] == [True, False, False]


WORKER = """
import sys
from penstock.paged import PagedStore
store = PagedStore(sys.argv[1], queue_index_max_journal_entries=40, msg_store_file_size_limit=30_000)
for turn in range(10**6):
    numbers = store.publish("q", [b"small", b"large" * 1000, b""])
    print("published", *numbers, flush=True)
    some = [message.number for message in store.deliver("q", 2)]
    print("acking", *some, flush=True)
    store.ack("q", some)
    print("acked", *some, flush=True)
"""


def test_kills_at_any_moment_lose_no_promise_and_undo_no_ack(path: Path) -> None:
    told: dict[str, set[int]] = {"published": set(), "acking": set(), "acked": set()}
    for lines in (7, 40, 100, 230):
        command = [sys.executable, "-c", WORKER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            for number, line in enumerate(worker.stdout):
                kind, *numbers = line.split()
                told[kind] |= set(map(int, numbers))
                if number == lines:
                    worker.kill()
        with PagedStore(path) as store:
            found = {message.number for message in store.deliver("q", 10**6)}
        assert told["published"] - told["acking"] <= found
        assert not found & told["acked"]
    assert len(told["acked"]) > 100


def test_the_example_is_killed_and_recovers(path: Path) -> None:
    example = [sys.executable, str(ROOT / "examples" / "paged_store.py"), str(path)]
    done = subprocess.run(example, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "left after the acks: {'mail': 0}" in done.stdout


FULL = """
import resource, sys
from penstock.errors import StorageFailed
from penstock.paged import PagedStore
store = PagedStore(sys.argv[1])
store.publish("q", [b"durable"])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for call in (lambda: store.publish("q", [b"x" * 9000] * 10), lambda: store.publish("q", [b"y"]),
             store.sync, store.flush, lambda: store.ack("q", [0]), store.close):
    try:
        call()
    except StorageFailed:
        print("failed")
store.close()
"""


def test_a_failed_write_fails_every_call_after_it_and_loses_nothing_durable(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, path], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["failed"] * 6, "")
    with PagedStore(path) as store:
        assert store.deliver("q")[0].body == b"durable"


def test_a_damaged_message_is_reported_when_it_is_delivered(path: Path) -> None:
    with PagedStore(path) as store:
        store.publish("q", [LARGE])
        store.flush()
    (file,) = path.rglob("*.rdq")
    data = bytearray(file.read_bytes())
    data[data.index(LARGE) + 9] ^= 1
    file.write_bytes(data)
    with PagedStore(path) as store, pytest.raises(StorageFailed):
        store.deliver("q")
    file.unlink()
    with pytest.raises(CorruptData):
        PagedStore(path)


# --- refusals ------------------------------------------------------------------------------------


def test_a_directory_is_open_once(path: Path) -> None:
    with PagedStore(path), pytest.raises(DirectoryLocked):
        PagedStore(path)


def files(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}  # fmt: skip


def foreign_directories(tmp_path: Path) -> Iterator[Path]:
    """Yield directories that a store must not touch: a broker's, a node's pages, somebody's files."""
    for vhost in sorted(unpacked(BROKER, tmp_path / "broker").rglob(".vhost")):
        yield vhost.parent
    with penstock.open(tmp_path / "node") as client:
        client.create_queue("q", implementation="paged")
        client.enqueue("q", b"x")
    yield tmp_path / "node" / "data" / "paged"
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    yield tmp_path / "home"


def test_files_of_others_are_refused_and_stay_as_they_are(tmp_path: Path) -> None:
    found = list(foreign_directories(tmp_path))
    assert len(found) >= 3
    for path in found:
        before = files(path)
        assert before
        with pytest.raises(PathRefused):
            PagedStore(path)
        assert files(path) == before, path


@pytest.mark.parametrize("wrong", ["", "a\0b", 7, None])
def test_a_path_that_is_none_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidValue):
        PagedStore(wrong)  # type: ignore[arg-type]


def test_a_file_in_place_of_the_directory_is_refused(path: Path) -> None:
    path.write_text("x")
    with pytest.raises(PathRefused):
        PagedStore(path)


def test_calls_that_mean_nothing_are_refused_and_change_nothing(path: Path) -> None:
    with pytest.raises(InvalidValue):
        PagedStore(path, queue_index_max_journal_entries=0)
    assert not path.exists()
    store = PagedStore(path)
    store.publish("q", [b"a", b"b"])
    for name in ("", "with space", "ü", "x" * 256):
        with pytest.raises(InvalidQueueName):
            store.publish(name, [b"x"])
    with pytest.raises(QueueMissing):
        store.deliver("none")
    with pytest.raises(QueueMissing):
        store.ack("none", [0])
    with pytest.raises(InvalidValue):
        store.deliver("q", -1)
    for numbers in ([0, 0], [2], [-1], [0, 2**62], [10**30], [0, 99_999]):
        with pytest.raises(InvalidValue):
            store.ack("q", numbers)
    with pytest.raises(TypeError):
        store.publish("q", [b"c", "text"])  # type: ignore[list-item]
    store.ack("q", [])
    assert store.queues == {"q": 2}
    store.ack("q", [0])
    with pytest.raises(InvalidValue):
        store.ack("q", [0])
    store.close()
    store.close()
    for call in (store.sync, store.flush, lambda: store.publish("q", [b"x"])):
        with pytest.raises(StorageError):
            call()
    with PagedStore(path) as again:
        assert bodies(again, "q") == [b"b"]


def test_threads_share_a_store(path: Path) -> None:
    with PagedStore(path, queue_index_max_journal_entries=200) as store:

        def work(name: str) -> None:
            for number in range(60):
                store.publish(name, [b"%d" % number] * 3, sync=False)
                store.ack(name, [m.number for m in store.deliver(name, 2)], sync=False)

        threads = [Thread(target=work, args=(f"q{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.queues == {f"q{n}": 60 for n in range(4)}


def test_an_ack_has_a_deliver_before_it_or_no_broker_starts_on_the_journal(path: Path) -> None:
    with PagedStore(path) as store:
        store.publish("q", [b"x"] * 3)
        store.deliver("q", 1)
        store.ack("q", [0, 2])
    (journal,) = path.rglob("journal.jif")
    data = journal.read_bytes()
    actions = [
        (one.kind, one.sequence)
        for one in scan(data)
        if one.kind in (Kind.DELIVER, Kind.ACK) and one.sequence < SEQUENCE_END
    ]
    assert actions == [(Kind.DELIVER, 0), (Kind.DELIVER, 2), (Kind.ACK, 0), (Kind.ACK, 2)]


# --- at rest -------------------------------------------------------------------------------------


def test_the_commands_over_files_read_its_directory(path: Path) -> None:
    with PagedStore(path) as store:
        store.publish("mail", [b"first", LARGE])
        store.flush()
        store.publish("mail", [b"third"])
        store.publish("other", [b"x"])
        store.ack("mail", [0])
    outcome = command("tasks", path)
    assert outcome.code == 0
    found = [(row["queue"], row["seq"], base64.b64decode(row["payload"])) for row in outcome.rows]
    assert found == [("mail", 1, LARGE), ("mail", 2, b"third"), ("other", 0, b"x")]
    verified = command("verify", path)
    assert (verified.code, verified.rows) == (0, [])  # the seals of five syncs are no damage


def test_the_page_shows_a_program_that_runs_and_the_directory_of_a_broker(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "formats" / "paged.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["0 b'first' False", "1 b'second' False"]
    assert f"msg_stores/vhosts/{vhost_directory(b'penstock')}`" in page
