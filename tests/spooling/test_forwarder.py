"""From spool to a real node: once, in order within a key, whatever breaks in between."""

from __future__ import annotations

import time
from typing import Any

import pytest

from penstock.client.blocking import Client
from penstock.errors import ConnectionLost, InvalidValue, QueueFull, QueueMissing, Unreachable
from penstock.formats.beats.event import Event, encode_event
from penstock.formats.beats.segment import PayloadFormat
from penstock.formats.beats.task_event import encode_tasks
from penstock.model import QueueName
from penstock.protocol.version2 import Enqueue, Producer
from penstock.spooling.forwarder import READ_COUNT, Forwarder
from penstock.spooling.identity import Identity, IdentityFile
from penstock.spooling.rounds import GRAIN_NS, REQUESTS_MAX
from penstock.storage.spool import SpoolSettings
from penstock.testing.disk import MemoryFiles
from spooling.world import (
    ROOT,
    Crash,
    StepClient,
    Steps,
    World,
    check,
    publish,
    run_empty,
    some_tasks,
)


def test_tasks_arrive_once_and_in_order_and_segments_go(world: World) -> None:
    tasks = some_tasks()
    with world.open() as spool:
        forwarder = world.forwarder(spool)
        publish(spool, tasks)
        assert spool.stat().segments > 3
        assert run_empty(forwarder) == 0
        assert (forwarder.arrived, forwarder.refused) == (len(tasks), len(world.refused()))
        assert spool.stat().segments == 1
        check(world, tasks)
        forwarder.rest()
        assert spool.sending is None
    assert any("a key is outside the range of queue 'few'" in words for words in world.told)
    with world.open() as spool:
        assert run_empty(world.forwarder(spool)) == 0
    check(world, tasks)


def test_a_spool_that_is_left_goes_on_where_it_was(world: World) -> None:
    tasks = some_tasks()
    half = len(tasks) // 2
    with world.open() as spool:
        publish(spool, tasks[:half])
        world.forwarder(spool).forward()
    with world.open() as spool:
        forwarder = world.forwarder(spool)
        publish(spool, tasks[half:])
        assert run_empty(forwarder) == 0
        assert forwarder.arrived == len(tasks) - half
    check(world, tasks)


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_connection_that_is_cut_between_request_and_answer_doubles_nothing(
    world: World, cut: str
) -> None:
    tasks = some_tasks()
    # Of each five messages three: some break a request, some its repetition, some the greeting.
    world.cuts.at = {number: cut for number in range(2, 60) if number % 5 < 3}
    planned = len(world.cuts.at)
    with world.open() as spool:
        publish(spool, tasks)
        assert run_empty(world.forwarder(spool), tries=planned) > 0
    assert planned - len(world.cuts.at) > 10
    check(world, tasks)


def test_a_request_that_was_divided_stays_divided_when_its_queue_has_changed(world: World) -> None:
    """Else the tasks that were taken one by one would be taken a second time with all the others."""
    tasks = [("few", key, b"%d" % number) for number, key in enumerate((1, 9, 1, 1))]
    with world.open() as spool:
        forwarder = world.forwarder(spool)
        spool.publish(
            encode_tasks("few", [t[2] for t in tasks], [t[1] for t in tasks], timestamp=1)
        )
        world.steps.last = 9  # the whole, then alone, then the first single and the second begun
        with pytest.raises(Crash):
            forwarder.forward()
        image = world.files.image()
    taken = world.held("few")
    assert taken
    world.files, world.steps = MemoryFiles(image), Steps()

    class Lenient(StepClient):
        """As if the queue took all keys by now: a request that was refused whole would be taken."""

        def enqueue_numbered(self, requests: Any) -> int:
            for request in list(requests):
                assert len(request.keys) == 1, "sent whole again"
            return super().enqueue_numbered(requests)

    with world.open() as spool:
        forwarder = Forwarder(
            spool,
            lambda: Lenient(world.node.connect, retry=0.0),
            files=world.files,
            tell=world.told.append,
        )
        run_empty(forwarder)
    assert world.held("few") == [(1, b"0"), (1, b"2"), (1, b"3")]
    assert world.refused() == [b"1"]


def test_a_task_that_is_taken_in_the_end_is_not_set_aside_as_well(world: World) -> None:
    """A wave breaks behind a refusal, and when it is sent again the queue takes all keys."""
    with world.open() as spool:
        publish(spool, [("few", 9, b"a"), ("later", 0, b"b")])
        forwarder = world.forwarder(spool)
        with pytest.raises(QueueMissing):
            forwarder.forward()
        world.observer.delete_queue("few")
        world.observer.create_queue("few")
        world.observer.create_queue("later")
        assert run_empty(forwarder) == 0
        assert forwarder.refused == 0
    assert (world.held("few"), world.held("later")) == ([(9, b"a")], [(0, b"b")])
    assert world.refused() == []


def test_a_queue_that_is_missing_or_full_is_waited_for_and_order_stays(world: World) -> None:
    world.observer.create_queue("short", size_max=3)
    tasks = [("short", 0, b"%d" % n) for n in range(8)] + [("later", 0, b"z")]
    with world.open() as spool:
        forwarder = world.forwarder(spool)
        publish(spool, tasks[:2])
        forwarder.forward()
        publish(spool, tasks[2:])
        arrived: list[bytes] = []
        for _ in range(3):
            with pytest.raises(QueueFull):
                forwarder.forward()
        assert [payload for _, payload in world.held("short")] == [b"0", b"1"]
        world.observer.delete_queue("short")
        with pytest.raises(QueueMissing):
            forwarder.forward()
        world.observer.create_queue("short")
        with pytest.raises(QueueMissing):
            forwarder.forward()
        world.observer.create_queue("later")
        assert run_empty(forwarder) == 0
        arrived += [payload for _, payload in world.held("short")]
    assert arrived == [b"%d" % n for n in range(2, 8)]
    assert world.held("later") == [(0, b"z")]


def test_events_of_others_go_to_the_queue_that_is_named(world: World) -> None:
    event = encode_event(Event(5, 1, {}, {"message": "hello"}), PayloadFormat.CBOR)
    broken = b"\xa4no event"
    with world.open() as spool:
        publish(spool, [("mail", 0, b"a")])
        spool.publish([event, broken])
        publish(spool, [("mail", 0, b"b")])
        forwarder = world.forwarder(spool)
        assert forwarder.forward() == 1
        assert world.held("mail") == [(0, b"a")]
        for _ in range(2):
            with pytest.raises(InvalidValue, match=r"0\.seg, frame 1: is no task of ours; name"):
                forwarder.forward()
    with world.open() as spool:
        assert run_empty(world.forwarder(spool, others="orders")) == 0
    assert world.held("orders") == [(0, event), (0, broken)]
    assert world.held("mail") == [(0, b"a"), (0, b"b")]


def test_a_round_under_way_keeps_the_queue_of_others_that_it_was_begun_with(world: World) -> None:
    events = [encode_event(Event(n, 1, {}, {"n": n}), PayloadFormat.CBOR) for n in range(3)]
    with world.open() as spool:
        spool.publish(events)
        world.cuts.at = {2: "after", 3: "after"}  # the request, and the greeting to repeat it
        with pytest.raises(ConnectionLost):
            world.forwarder(spool, others="orders").forward()
    world.cuts.at = {}
    with world.open() as spool:
        forwarder = world.forwarder(spool, others="mail")
        assert run_empty(forwarder) == 0
        spool.publish(events[:1])
        assert run_empty(forwarder) == 0
    assert [payload for _, payload in world.held("orders")] == events
    assert world.held("mail") == [(0, events[0])]


def test_a_spool_whose_producer_file_is_gone_sends_again_and_says_so(world: World) -> None:
    with world.open() as spool:
        publish(spool, [("mail", 0, b"a")])
        world.steps.last = 999
        forwarder = world.forwarder(spool)
        world.cuts.at = {3: "after"}
        assert run_empty(forwarder, tries=3) >= 0
        image = world.files.image()
    image.pop(str(ROOT / "penstock.producer"))
    world.files = MemoryFiles(image)
    with world.open() as spool:
        assert spool.sending is not None
        run_empty(world.forwarder(spool))
    assert any("may arrive twice" in words for words in world.told)
    assert world.held("mail") == [(0, b"a"), (0, b"a")]


def test_files_that_were_numbered_anew_are_not_taken_for_known_ones(world: World) -> None:
    for payload in (b"a", b"b"):
        with world.open() as spool:
            publish(spool, [("mail", 0, payload)])
            run_empty(world.forwarder(spool))
        image = {path: data for path, data in world.files.image().items() if "producer" in path}
        world.files = MemoryFiles(image)  # somebody has removed segments and state
    assert world.held("mail") == [(0, b"a"), (0, b"b")]


def test_a_node_that_is_away_is_no_reason_to_end(world: World) -> None:
    def nobody() -> Client:
        raise Unreachable("no node answers")

    with world.open() as spool:
        publish(spool, [("mail", 0, b"a")])
        forwarder = Forwarder(spool, nobody, files=world.files, tell=world.told.append)
        for _ in range(3):
            with pytest.raises(Unreachable):
                forwarder.forward()
        sending = spool.sending
    assert sending is not None
    with world.open() as spool:
        assert spool.sending == sending
        assert run_empty(world.forwarder(spool)) == 0
    assert world.held("mail") == [(0, b"a")]


def test_tasks_of_one_key_stay_in_order_whatever_their_terms(world: World) -> None:
    now = time.time_ns()
    terms = [(None, None), (None, 10**7), (None, None), (None, 10**8), (None, 10**8)] * 20
    with world.open() as spool:
        for number, (delay, ttl) in enumerate(terms):
            moment = now + number * GRAIN_NS // 3
            spool.publish(
                encode_tasks(
                    "mail", [b"%d" % number], [0], timestamp=moment, delay_ms=delay, ttl_ms=ttl
                )
            )
        assert run_empty(world.forwarder(spool)) == 0
    assert [payload for _, payload in world.held("mail")] == [b"%d" % n for n in range(100)]


def test_more_queues_than_a_round_may_have_requests(world: World) -> None:
    names = [f"queue-{number}" for number in range(REQUESTS_MAX + 50)]
    for name in names:
        world.observer.create_queue(name)
    roomy = SpoolSettings(max_size=2**24)
    with world.open(roomy) as spool:
        for part in range(2):
            events = [encode_tasks(name, [b"%d" % part], [0], timestamp=1)[0] for name in names]
            spool.publish(events)
        forwarder = world.forwarder(spool)
        assert REQUESTS_MAX <= forwarder.forward() < REQUESTS_MAX + READ_COUNT
        assert run_empty(forwarder) == 0
    assert all(world.held(name) == [(0, b"0"), (0, b"1")] for name in names)


def test_numbers_that_the_node_has_forgotten_are_sent_under_another_name_and_it_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew, begun = IdentityFile.renew, list[bytes]()

    def begin_with_a_known_one(self: IdentityFile, others: QueueName | None) -> None:
        renew(self, others)
        if not begun:
            self.identity = Identity(producer=bytes(16))
        begun.append(self.identity.producer)

    monkeypatch.setattr(IdentityFile, "renew", begin_with_a_known_one)
    later = (
        Enqueue(QueueName("mail"), [0], [b"other"], producer=Producer(bytes(16), 2**40 + n))
        for n in range(1100)
    )
    world.observer.enqueue_numbered(later)
    world.observer.purge("mail")
    with world.open() as spool:
        publish(spool, [("mail", 0, b"a")])
        assert run_empty(world.forwarder(spool)) == 1
    assert world.held("mail") == [(0, b"a")]
    assert len(begun) == 2
    assert any("it is sent anew, and may arrive twice" in words for words in world.told)


@pytest.mark.parametrize("options", [0, 2, 1, 3])
def test_every_way_of_writing_segments_is_forwarded(world: World, options: int) -> None:
    from penstock.formats.beats.segment import Options

    settings = SpoolSettings(
        max_size=2**20, segment_size=4096, options=Options(options), key=bytes(16)
    )
    tasks = some_tasks(120)
    with world.open(settings) as spool:
        forwarder = world.forwarder(spool)
        publish(spool, tasks[:60])
        forwarder.forward()
        publish(spool, tasks[60:])
        assert run_empty(forwarder) == 0
    expected = [(key, payload) for queue, key, payload in tasks if queue == "orders"]
    assert world.held("orders") == sorted(expected, key=lambda task: task[0])
