"""Callers that ask for much and take little: what they cost the node is bounded, and others go on.

Memory is that of the process, as the system counts it. Bounds are far above what is needed and far below
what each of these callers cost before the node held it to a limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from struct import pack
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.client.blocking import Client
from penstock.errors import LimitReached
from penstock.model import NO_LIMITS, QueueName
from penstock.protocol import version1 as v1
from penstock.protocol import version2 as v2
from penstock.protocol.frames import HEADER
from penstock.protocol.version2 import Failure
from penstock.server.connection import Connection
from penstock.server.listener import Listener
from penstock.server.settings import Limits
from support.bystander import Bystander
from support.node_process import NodeProcess, attacked, descriptor_limit, start
from support.report import report
from support.wire import Wire2

MEGA = 2**20
NAME = QueueName("q")
CONNECTION_MAX = 4 * MEGA
TOTAL_MAX = 48 * MEGA
SYSTEM_HOLDS = 10 * MEGA  # of what was sent, in the buffers of both sockets


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    flags = (
        "--stall-timeout", 20, "--max-connection-bytes", CONNECTION_MAX,
        "--max-total-bytes", TOTAL_MAX,
    )  # fmt: skip
    with attacked(tmp_path_factory.mktemp("limits") / "node", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(node: NodeProcess) -> Iterator[Client]:
    with node.client() as client:
        yield client


@pytest.fixture
def queue(client: Client) -> Iterator[str]:
    client.create_queue(NAME)
    yield NAME
    client.delete_queue(NAME)


class Growth:
    """How much memory a node takes while something happens to it."""

    def __init__(self, node: NodeProcess, what: str, *, size_max: int) -> None:
        self._node, self._what, self._size_max = node, what, size_max

    def __enter__(self) -> None:
        self._node.forget_peak()
        self._before = self._node.memory_size()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            grown = self._node.memory_size("VmHWM") - self._before
            report(f"node: {self._what}: {grown // MEGA} MiB more at most")
            assert grown <= self._size_max, f"{self._what} cost {grown // MEGA} MiB"


def requests(request: v2.Request, count: int) -> bytes:
    return b"".join(v2.encode_request(request, number) for number in range(1, count + 1))


# --- short questions, long answers ---------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [v2.Peek(NAME, 100), v2.Dequeue(NAME, 100), v2.Read(0)],
    ids=["peek", "dequeue", "read"],
)
def test_a_page_of_short_requests_does_not_become_gigabytes_of_answers(
    node: NodeProcess, client: Client, queue: str, request_: v2.Request
) -> None:
    """1000 peeks of a megabyte, 16 bytes each and never read, took 2 GiB."""
    client.enqueue_many(NAME, [bytes(10_000)] * 4000)
    what = f"1000 requests such as {type(request_).__name__} for a megabyte each, never read"
    with Bystander(node) as bystander, Growth(node, what, size_max=64 * MEGA), node.wire2() as wire:
        wire.send(requests(request_, 1000))
        bystander.wait_rounds(5)


def test_a_page_of_stats_does_not_become_gigabytes_of_answers(
    node: NodeProcess, client: Client
) -> None:
    names = [f"stat.{number}.".ljust(250, "x") for number in range(50)]
    for name in names:
        client.create_queue(name)
    what = "6000 stats and 30,000 lists of 50 queues, never read"
    with (
        Bystander(node) as bystander,
        Growth(node, what, size_max=64 * MEGA),
        node.wire2() as wire,
        node.wire1() as old,
    ):
        wire.send_while_possible(requests(v2.Stat(), 6000))
        old.send_while_possible(b"CL" * 30_000)
        bystander.wait_rounds(5)
    for name in names:
        client.delete_queue(name)


def test_answers_that_waited_for_their_reader_all_come(
    node: NodeProcess, client: Client, queue: str
) -> None:
    """A caller that reads late gets everything it asked for, in both versions."""
    client.enqueue_many(NAME, [bytes(50_000)] * 20)
    with node.wire2() as wire:
        wire.send(requests(v2.Peek(NAME, 100), 100) + v2.encode_request(v2.Ping(), 999))
        client.ping()
        numbers = [wire.answer()[0] for _ in range(101)]
        assert numbers == [*range(1, 101), 999]
    with node.wire1() as old:
        listed = v1.encode_response(
            v1.Listed(
                queues=tuple(
                    v1.QueueInfo(name=stat.name, count=stat.count, policies=())
                    for stat in client.queues()
                )
            )
        )
        old.send(b"CL" * 30_000 + b"CC\x01q")
        client.ping()
        assert old.receive(len(listed) * 30_000) == listed * 30_000
        old.expect(b"cc" + pack(">i", 20))


def test_a_subscriber_that_never_reads_is_given_little_and_then_cut_off(tmp_path: Path) -> None:
    """The whole queue was made into one answer, in one go."""
    with start(tmp_path / "node", "--stall-timeout", 1) as node, node.client() as client:
        for _ in range(10):
            client.enqueue_many("", [bytes(100_000)] * 100)
        with (
            Growth(node, "a window without end on 100 MB, never read", size_max=32 * MEGA),
            node.wire2() as wire,
            Bystander(node),
        ):
            wire.request(v2.Subscribe(QueueName(""), 2**32 - 1), 1)
            assert client.stat("").leased < 200
            # Cut off after the stall time; its tasks go back and come to somebody else.
            ids: set[int] = set()
            with client.subscribe("", prefetch=1000) as others:
                while len(ids) < 1000:
                    delivery = next(others)
                    ids.add(delivery.id)
                    client.ack(delivery)
        assert client.stat("").count == 0


def test_a_window_without_end_is_filled_as_fast_as_it_is_read(
    client: Client, queue: str, wire: Wire2
) -> None:
    client.enqueue_many(NAME, [bytes(10_000)] * 1000)
    wire.request(v2.Subscribe(NAME, 2**32 - 1), 1)
    assert wire.answer() == (1, v2.Ok())
    ids: list[int] = []
    while len(ids) < 1000:
        ids += wire.expect_delivered(1).ids
    assert ids == list(range(1, 1001))


@pytest.fixture
def wire(node: NodeProcess) -> Iterator[Wire2]:
    with node.wire2() as wire:
        yield wire


# --- floods --------------------------------------------------------------------------------------


def test_a_flood_of_enqueues_is_held_back_and_goes_on_when_its_answers_are_read(
    node: NodeProcess, client: Client, queue: str
) -> None:
    numbers = count(1)
    size = 200_000
    total = 300
    with node.wire2() as wire:

        def flood() -> None:
            for _ in range(total):
                request = v2.Enqueue(NAME, (0,), (bytes(size),))
                wire.send(v2.encode_request(request, next(numbers)))

        # The tasks themselves are kept, and their entries for a moment.
        with Bystander(node), Growth(node, "60 MB of enqueues", size_max=total * size + 64 * MEGA):
            sending = Thread(target=flood, daemon=True)
            sending.start()
            sending.join()
            answers = [wire.answer() for _ in range(total)]
        assert [number for number, _ in answers] == list(range(1, total + 1))
    assert client.stat(NAME).count == total


def test_a_flood_without_reading_is_not_read_further_until_its_answers_are(
    node: NodeProcess, client: Client, queue: str
) -> None:
    total = 40_000
    add, look = v2.Enqueue(NAME, (0,), (b"x",)), v2.Stat(NAME)
    page = b"".join(
        v2.encode_request(add, number) + v2.encode_request(look, number + 1)
        for number in range(1, 2 * total, 2)
    )
    answers: tuple[v2.Answer, ...] = (
        v2.Enqueued((v2.Run(0, 1, 1),)), v2.Stats((client.stat(NAME),))
    )  # fmt: skip
    answer_size = sum(len(v2.encode_answer(answer, 1)) for answer in answers)
    with Bystander(node) as bystander, Wire2(node.port, receive_size=4096) as wire:
        wire.greet(2)
        with Growth(node, "40,000 enqueues and stats, never read", size_max=150 * MEGA):
            sending = Thread(target=wire.send, args=(page,), daemon=True)
            sending.start()
            bystander.wait_rounds(30)
            held = client.stat(NAME).count
            bystander.wait_rounds(30)
            assert client.stat(NAME).count < total
        wire.receive(answer_size * total)
        sending.join()
        assert client.stat(NAME).count == total
    report(f"node: held a flood of 40,000 enqueues back at {held}")


def test_packets_of_version_1_that_come_too_early_are_held_back_and_all_answered(
    node: NodeProcess, queue: str
) -> None:
    """Three times as much as a connection may have under way, behind a dequeue that waits in vain."""
    wait = b"CD\x01q" + pack(">I", 700)
    taken_back = b"CE\x01q" + pack(">qi", 0, 100_000) + bytes(100_000) + b"N"
    count = 3 * CONNECTION_MAX // 100_000
    with Bystander(node), node.wire1() as wire:
        with Growth(node, "12 MB of early packets of version 1", size_max=32 * MEGA):
            sending = Thread(target=wire.send, args=(wait + taken_back * count,), daemon=True)
            sending.start()
            wire.expect(b"cd\x00" + b"kk" * count)
        sending.join()


@pytest.mark.parametrize(
    "request_",
    [v2.Dequeue(NAME, 1, 0, 2**32 - 1), v2.Read(2**40, 0, 2**32 - 1)],
    ids=["dequeue", "read"],
)
def test_requests_that_wait_are_counted_and_are_gone_with_their_caller(
    node: NodeProcess, client: Client, queue: str, request_: v2.Request
) -> None:
    """Each of a few bytes cost a kilobyte; reads that waited outlived their connection."""
    page = requests(request_, 20_000)
    what = f"5 times 20,000 {type(request_).__name__} requests that wait for ever"
    with Bystander(node) as bystander, Growth(node, what, size_max=64 * MEGA):
        for _ in range(5):
            with node.wire2() as wire:
                wire.send_while_possible(page)
                bystander.wait_rounds(1)


def test_a_caller_that_leaves_thousands_of_places_in_a_line_holds_nobody_up(tmp_path: Path) -> None:
    """Each place was looked for from the front: 20,000 behind 20,000 others took 8 seconds."""
    page = requests(v2.Dequeue(NAME, 1, 0, 2**32 - 1), 20_000)
    with start(tmp_path / "node") as node, node.client() as client:
        client.create_queue(NAME)
        with node.wire2() as first, node.wire2() as second:
            for wire in (first, second):
                wire.send(page)
                wire.request(v2.Ping(), 50_000)
                assert wire.answer() == (50_000, v2.Ok())
            before = processor_seconds(node)
            second.reset()
            with node.wire2() as later:
                later.ask(v2.Ping(), v2.Ok)
            client.enqueue(NAME, b"task")
            assert first.expect_delivered(1).payloads == [b"task"]
            assert processor_seconds(node) - before < 2


def test_thousands_of_queues_with_delayed_tasks_do_not_slow_down_everybody_else(
    node: NodeProcess,
) -> None:
    """All of them were asked for their times at every packet."""
    names = [QueueName(f"timed.{number}") for number in range(1000)]
    with node.wire2() as wire:
        made = [wire.request(v2.Create(name, NO_LIMITS)) for name in names]
        made += [wire.request(v2.Enqueue(name, (0,), (b"x",), 3_600_000)) for name in names]
        assert {wire.answer()[0] for _ in made} == set(made)
        pings = requests(v2.Ping(), 1)
        before = processor_seconds(node)
        for _ in range(1000):
            wire.exchange(pings, v2.encode_answer(v2.Ok(), 1))
        assert processor_seconds(node) - before < 0.5
        gone = [wire.request(v2.Delete(name)) for name in names]
        assert {wire.answer()[0] for _ in gone} == set(gone)


def processor_seconds(node: NodeProcess) -> float:
    """Return how long a node has been working, which does not depend on how busy the machine is."""
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_subscriptions_of_one_connection_are_limited(queue: str, wire: Wire2) -> None:
    wire.send(requests(v2.Subscribe(NAME, 1), 1025))
    answers = [wire.answer()[1] for _ in range(1025)]
    assert answers[:1024] == [v2.Ok()] * 1024
    refused = answers[1024]
    assert isinstance(refused, v2.Failed)
    assert refused.code == Failure.LIMIT
    wire.request(v2.Unsubscribe(1), 3000)
    assert wire.answer() == (3000, v2.Ok())
    wire.request(v2.Subscribe(NAME, 1), 2000)
    assert wire.answer() == (2000, v2.Ok())


# --- frames that never end -----------------------------------------------------------------------


def test_frames_that_never_end_are_bounded_together_and_the_largest_goes_first(
    node: NodeProcess, client: Client, queue: str
) -> None:
    """Whoever asked next was cut off, and not those who filled the room."""
    part = HEADER.pack(20 * MEGA, ord("E"), 1) + bytes(19 * MEGA)
    small = v2.encode_request(v2.Enqueue(NAME, (0,), (bytes(MEGA),)), 1)
    with Bystander(node) as bystander, node.wire2() as modest:
        modest.send(small[: len(small) // 2])
        with Growth(node, "10 frames of 20 MB that never end", size_max=2 * TOTAL_MAX + 32 * MEGA):
            wires = [node.wire2() for _ in range(10)]
            sent = []
            for wire in wires:
                sent.append(wire.send_while_possible(part))
                bystander.wait_rounds(1)
        modest.send(small[len(small) // 2 :])
        assert isinstance(modest.answer()[1], v2.Enqueued)
        left = [size for wire, size in zip(wires, sent, strict=True) if not is_closed(wire)]
        for wire in wires:
            wire.close()
        assert left
        assert sum(max(0, size - SYSTEM_HOLDS) for size in left) <= TOTAL_MAX


def is_closed(wire: Wire2) -> bool:
    wire.socket.setblocking(False)
    try:
        return wire.socket.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def connection_at(clock: list[float]) -> tuple[Connection, Any]:
    """Return a connection whose time is ``clock[0]``, and a session for it."""
    listener = SimpleNamespace(now=lambda: clock[0])
    connection = Connection(cast("Listener", listener))
    session: Any = SimpleNamespace(held_size=0, is_waiting=False, is_draining=False)
    connection.session = session
    connection.pending_since = None
    return connection, session


def test_a_large_frame_may_take_its_time_and_a_small_one_may_not() -> None:
    clock = [1000.0]
    connection, session = connection_at(clock)
    connection.pending_since = 1000.0
    for held, seconds in ((10, 30), (MEGA, 30 + 16), (16 * MEGA, 30 + 256)):
        session.held_size = held
        connection.heard = 1000.0 + seconds  # bytes still come
        for late, is_overdue in ((-1, False), (1, True)):
            now = 1000.0 + seconds + late
            assert connection.is_overdue(now, idle_seconds=60, stall_seconds=30) is is_overdue


def test_what_is_above_a_limit_is_dropped_for_ten_seconds_and_no_longer() -> None:
    connection, session = connection_at([1000.0])
    connection.pending_since = 1000.0
    session.is_draining = True
    for now, is_overdue in ((1009.0, False), (1011.0, True)):
        connection.heard = now  # bytes still come
        assert connection.is_overdue(now, idle_seconds=60, stall_seconds=60) is is_overdue


@pytest.mark.parametrize("is_greeted", [False, True], ids=["before the greeting", "half a packet"])
def test_silence_before_the_greeting_and_half_a_packet_last_a_minute(is_greeted: bool) -> None:
    """As with TaskFlux; it was half of that."""
    connection, session = connection_at([1000.0])
    connection.session = session if is_greeted else None
    connection.pending_since = 1000.0
    session.held_size = 5
    times = {"idle_seconds": Limits().idle_seconds, "stall_seconds": Limits().stall_seconds}
    assert not connection.is_overdue(1059.0, **times)
    assert connection.is_overdue(1061.0, **times)


def test_a_connection_that_only_has_to_be_read_to_its_end_is_not_kept_for_ever() -> None:
    clock = [1000.0]
    connection, session = connection_at(clock)
    session.is_waiting = True  # it has a subscription
    connection._transport = cast("Any", SimpleNamespace(close=lambda: None))
    connection.close()
    assert not connection.is_overdue(1029, idle_seconds=60, stall_seconds=30)
    assert connection.is_overdue(1031, idle_seconds=60, stall_seconds=30)


# --- the system's own limits ---------------------------------------------------------------------


def test_a_node_takes_as_many_open_files_as_its_connections_need(tmp_path: Path) -> None:
    """Connections that used up the files would leave none for the log."""
    prepare = descriptor_limit(64, hard=1024)
    with start(tmp_path / "node", "--max-connections", 400, prepare=prepare) as node:
        wires = [node.wire() for _ in range(300)]
        with node.client() as client:
            client.enqueue("", b"task")
        for wire in wires:
            wire.close()
    with NodeProcess(tmp_path / "node", prepare=descriptor_limit(200)) as node:
        assert node.wait() == 1
        (words,) = node.words
        assert words == (
            "penstock: 1152 files may have to be open, and the system allows 200:"
            " lower --max-connections, or raise the limit (ulimit -n)"
        )


def test_a_disk_that_is_nearly_full_takes_nothing_in_and_gives_out(tmp_path: Path) -> None:
    data = tmp_path / "node"
    with start(data) as node, node.client() as client:
        client.create_queue(NAME)
        client.enqueue(NAME, b"kept")
    with start(data, "--min-free", 2**60) as node, node.client() as client:
        refused = None
        for _ in range(10_000):  # the disk is looked at once a second
            try:
                client.enqueue(NAME, b"one more")
            except LimitReached as error:
                refused = error
                break
        assert "nearly full" in str(refused)
        with client.dequeue(NAME) as task:
            assert task is not None
            assert task.payload == b"kept"
        assert node.said("failed") == []
