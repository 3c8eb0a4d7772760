"""All queues: deltas applied blindly, commands decided anew, and what contradicts the state."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ReplayConflict
from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    NOTHING,
    AddTask,
    Command,
    CountTasks,
    CreateCommand,
    CreateQueue,
    CreateWithPolicy,
    DeleteCommand,
    DeleteQueue,
    Delta,
    Dequeue,
    Enqueue,
    Implementation,
    KeyRange,
    ListQueues,
    Policy,
    QueueHead,
    QueueName,
    RemoveEqualTask,
    RemoveTask,
    TaskId,
)
from penstock.queues.replay import Queues
from support.deltas import apply_delta

A, B = QueueName("a"), QueueName("b")
Task = tuple[int, int, bytes]
State = dict[QueueName, tuple[Policy, int, list[Task]]]


def state_of(queues: Queues) -> State:
    """Return all that there is: policy, last id and tasks by age of each queue."""
    return {
        name: (queue.policy, queue.last_id, list(queue.by_age()))
        for name, queue in queues.by_name.items()
    }


# --- a naive model -------------------------------------------------------------------------------


@dataclass
class NaiveQueue:
    policy: Policy
    last_id: int = 0
    tasks: list[Task] = field(default_factory=list)

    def add(self, key: int, payload: bytes) -> None:
        self.last_id += 1
        self.tasks.append((self.last_id, key, payload))


class NaiveQueues:
    """The rules of docs/formats/deltas.md and commands.md, written down without any cleverness."""

    def __init__(self) -> None:
        self.queues = {DEFAULT_QUEUE: NaiveQueue(NO_LIMITS)}

    def state(self) -> State:
        return {n: (q.policy, q.last_id, sorted(q.tasks)) for n, q in self.queues.items()}

    def apply(self, delta: Delta) -> bool:
        """Return whether the delta fits the state; one that does not changes nothing."""
        queue = self.queues.get(delta.queue)
        match delta:
            case CreateQueue():
                if queue is not None:
                    return False
                self.queues[delta.queue] = NaiveQueue(delta.policy)
                return True
            case DeleteQueue():
                self.delete(delta.queue)
                return True
        if queue is None:
            return False
        match delta:
            case AddTask():
                queue.add(delta.key, delta.payload)
            case RemoveTask():
                found = [task for task in queue.tasks if task[0] == delta.id]
                if not found:
                    return False
                queue.tasks.remove(found[0])
            case RemoveEqualTask():
                equal = [task for task in queue.tasks if task[1:] == (delta.key, delta.payload)]
                if equal:
                    queue.tasks.remove(min(equal))
        return True

    def delete(self, name: QueueName) -> None:
        if name == DEFAULT_QUEUE:
            self.queues[name] = NaiveQueue(NO_LIMITS)
        else:
            self.queues.pop(name, None)

    @staticmethod
    def allows(queue: NaiveQueue, task: Enqueue) -> bool:
        policy, keys = queue.policy, queue.policy.keys
        return not (
            (policy.size_max is not None and len(queue.tasks) >= policy.size_max)
            or (policy.payload_size_max is not None and len(task.payload) > policy.payload_size_max)
            or (keys is not None and not keys.lowest <= task.key <= keys.highest)
        )

    def obey(self, command: Command) -> Delta | None:
        match command:
            case Enqueue():
                queue = self.queues.get(command.queue)
                if queue is None or not self.allows(queue, command):
                    return None
                queue.add(command.key, command.payload)
                return AddTask(queue=command.queue, key=command.key, payload=command.payload)
            case Dequeue():
                queue = self.queues.get(command.queue)
                if queue is None or not queue.tasks:
                    return None
                first = min(queue.tasks, key=lambda task: (task[1], task[0]))
                queue.tasks.remove(first)
                return RemoveTask(queue=command.queue, id=TaskId(first[0]))
            case CreateCommand() | CreateWithPolicy():
                if command.queue in (DEFAULT_QUEUE, *self.queues):
                    return None
                if isinstance(command, CreateCommand):
                    policy = Policy(size_max=command.size_max)
                else:
                    policy = command.policy
                self.queues[command.queue] = NaiveQueue(policy)
                return CreateQueue(queue=command.queue, policy=policy)
            case DeleteCommand():
                if self.queues.pop(command.queue, None) is None:
                    return None
                return DeleteQueue(queue=command.queue)
            case CountTasks() | ListQueues():
                return None


names = st.sampled_from([DEFAULT_QUEUE, A, B])
keys = st.integers(-2, 2)
payloads = st.sampled_from([b"", b"x"])
NARROW = Policy(payload_size_max=0, keys=KeyRange(lowest=-1, highest=1))
policies = st.sampled_from([NO_LIMITS, Policy(size_max=2), Policy(size_max=0)])

deltas: st.SearchStrategy[Delta] = (
    st.builds(CreateQueue, queue=names, policy=policies)
    | st.builds(DeleteQueue, queue=names)
    | st.builds(AddTask, queue=names, key=keys, payload=payloads)
    | st.builds(RemoveTask, queue=names, id=st.integers(0, 8).map(TaskId))
    | st.builds(RemoveEqualTask, queue=names, key=keys, payload=payloads)
    | st.just(NOTHING)
)
commands: st.SearchStrategy[Command] = (
    st.builds(CreateCommand, queue=names, size_max=st.sampled_from([None, 1, 2]))
    | st.builds(CreateWithPolicy, queue=names, policy=policies | st.just(NARROW))
    | st.builds(DeleteCommand, queue=names)
    | st.builds(Enqueue, queue=names, key=keys, payload=payloads)
    | st.builds(Enqueue, queue=names, key=keys, payload=payloads)
    | st.builds(Dequeue, queue=names)
    | st.builds(CountTasks, queue=names)
    | st.just(ListQueues())
)


@settings(deadline=None, max_examples=200)
@given(st.lists(deltas, max_size=40))
def test_deltas_do_what_the_naive_model_does(sequence: list[Delta]) -> None:
    queues, naive = Queues(), NaiveQueues()
    for delta in sequence:
        if naive.apply(delta):
            apply_delta(queues, delta)
        else:
            with pytest.raises(ReplayConflict):
                apply_delta(queues, delta)
        assert state_of(queues) == naive.state()


@settings(deadline=None, max_examples=200)
@given(st.lists(commands, max_size=40))
def test_commands_do_what_the_naive_model_does(sequence: list[Command]) -> None:
    queues, naive = Queues(), NaiveQueues()
    for command in sequence:
        assert queues.obey(command) == naive.obey(command)
        assert state_of(queues) == naive.state()


@settings(deadline=None)
@given(st.lists(commands, max_size=40))
def test_the_deltas_of_obeyed_commands_give_the_same_state(sequence: list[Command]) -> None:
    """This is how a log of generation 1 becomes one of generation 3."""
    obeying, applying = Queues(), Queues()
    for command in sequence:
        delta = obeying.obey(command)
        if delta is not None:
            apply_delta(applying, delta)
    # A default queue that commands deleted is there, but empty, where deltas decide.
    assert state_of(applying) == state_of(Queues()) | state_of(obeying)


@settings(deadline=None)
@given(st.lists(commands, max_size=30), st.data())
def test_a_restored_snapshot_goes_on_like_the_state_it_was_taken_of(
    sequence: list[Command], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(sequence)))
    straight, restored = Queues(), Queues()
    for command in sequence[:cut]:
        straight.obey(command)
    restored.by_name.clear()
    for contents in list(straight.by_name.values()):
        queue = restored.restore(contents.head)
        for task in contents.by_age():
            queue.restore(*task)
    assert state_of(restored) == state_of(straight)
    for command in sequence[cut:]:
        assert restored.obey(command) == straight.obey(command)
    assert state_of(restored) == state_of(straight)


# --- deltas --------------------------------------------------------------------------------------


def test_a_new_state_holds_the_default_queue_alone() -> None:
    assert state_of(Queues()) == {DEFAULT_QUEUE: (NO_LIMITS, 0, [])}


@pytest.mark.parametrize(
    ("delta", "words"),
    [
        (AddTask(queue=A, key=1, payload=b""), "added to queue 'a'"),
        (RemoveTask(queue=A, id=TaskId(1)), "removed from queue 'a'"),
        (RemoveEqualTask(queue=A, key=1, payload=b""), "removed from queue 'a'"),
        (CreateQueue(queue=DEFAULT_QUEUE, policy=NO_LIMITS), "created but exists"),
        (RemoveTask(queue=DEFAULT_QUEUE, id=TaskId(1)), "task 1 .* is not there"),
    ],
)
def test_a_delta_that_contradicts_the_state_is_a_conflict(delta: Delta, words: str) -> None:
    """docs/formats/deltas.md, "Replay": the message names the queue, and nothing changes."""
    queues = Queues()
    with pytest.raises(ReplayConflict, match=words):
        apply_delta(queues, delta)
    assert state_of(queues) == {DEFAULT_QUEUE: (NO_LIMITS, 0, [])}


def test_a_task_is_removed_by_id_once() -> None:
    queues = Queues()
    apply_delta(queues, AddTask(queue=DEFAULT_QUEUE, key=1, payload=b"x"))
    assert queues.remove(DEFAULT_QUEUE, 1) == (1, b"x")
    with pytest.raises(ReplayConflict):
        apply_delta(queues, RemoveTask(queue=DEFAULT_QUEUE, id=TaskId(1)))


def test_a_removal_by_value_that_finds_nothing_is_allowed() -> None:
    queues = Queues()
    apply_delta(queues, RemoveEqualTask(queue=DEFAULT_QUEUE, key=1, payload=b""))
    assert queues.remove_equal(DEFAULT_QUEUE, 1, b"") is None
    assert state_of(queues) == {DEFAULT_QUEUE: (NO_LIMITS, 0, [])}


def test_tasks_for_a_default_queue_that_was_deleted_are_refused() -> None:
    """Clients of variants 1a and 1b could delete it; what they put in then was logged, and refused."""
    queues = Queues()
    queues.obey(DeleteCommand(queue=DEFAULT_QUEUE))
    assert queues.obey(Enqueue(queue=DEFAULT_QUEUE, key=1, payload=b"x")) is None
    assert queues.obey(CreateCommand(queue=DEFAULT_QUEUE, size_max=None)) is None
    assert state_of(queues) == {}


def test_deleting_a_queue_that_is_missing_has_no_effect() -> None:
    queues = Queues()
    apply_delta(queues, DeleteQueue(queue=A))
    apply_delta(queues, NOTHING)
    assert state_of(queues) == {DEFAULT_QUEUE: (NO_LIMITS, 0, [])}


def test_the_default_queue_survives_its_deletion_without_its_tasks() -> None:
    queues = Queues()
    queues.restore(
        QueueHead(name=DEFAULT_QUEUE, policy=Policy(size_max=3), last_id=TaskId(9), count=0)
    )
    apply_delta(queues, AddTask(queue=DEFAULT_QUEUE, key=1, payload=b""))
    apply_delta(queues, DeleteQueue(queue=DEFAULT_QUEUE))
    assert state_of(queues) == {DEFAULT_QUEUE: (NO_LIMITS, 0, [])}


def test_ids_begin_anew_when_a_queue_is_made_again() -> None:
    queues = Queues()
    for delta in (
        CreateQueue(queue=A, policy=NO_LIMITS),
        AddTask(queue=A, key=1, payload=b"old"),
        DeleteQueue(queue=A),
        CreateQueue(queue=A, policy=NO_LIMITS),
        AddTask(queue=A, key=1, payload=b"new"),
    ):
        apply_delta(queues, delta)
    assert state_of(queues)[A] == (NO_LIMITS, 1, [(1, 1, b"new")])


def test_deltas_are_results_and_no_policy_is_asked() -> None:
    keys = KeyRange(lowest=0, highest=0)
    policy = Policy(implementation=Implementation.ARRAY, size_max=0, payload_size_max=0, keys=keys)
    queues = Queues()
    apply_delta(queues, CreateQueue(queue=A, policy=policy))
    apply_delta(queues, AddTask(queue=A, key=99, payload=b"too large"))
    assert state_of(queues)[A] == (policy, 1, [(1, 99, b"too large")])


# --- commands ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        Enqueue(queue=B, key=1, payload=b""),
        Enqueue(queue=A, key=1, payload=b"one too many"),
        Dequeue(queue=B),
        Dequeue(queue=DEFAULT_QUEUE),
        CreateCommand(queue=A, size_max=7),
        CreateCommand(queue=DEFAULT_QUEUE, size_max=7),
        DeleteCommand(queue=B),
        CountTasks(queue=A),
        CountTasks(queue=B),
        ListQueues(),
    ],
)
def test_a_command_that_fails_or_only_asks_changes_nothing(command: Command) -> None:
    """docs/formats/commands.md: such commands are in logs, and replay passes over them."""
    queues = Queues()
    queues.obey(CreateCommand(queue=A, size_max=1))
    queues.obey(Enqueue(queue=A, key=5, payload=b"x"))
    before = state_of(queues)
    assert queues.obey(command) is None
    assert state_of(queues) == before


def test_a_dequeue_takes_the_smallest_key_and_the_oldest_of_it() -> None:
    queues = Queues()
    for key in (5, -1, 5, -1):
        queues.obey(Enqueue(queue=DEFAULT_QUEUE, key=key, payload=b""))
    taken = [queues.obey(Dequeue(queue=DEFAULT_QUEUE)) for _ in range(5)]
    assert taken == [
        *(RemoveTask(queue=DEFAULT_QUEUE, id=TaskId(i)) for i in (2, 4, 1, 3)),
        None,
    ]


def test_a_full_queue_takes_a_task_again_after_one_left() -> None:
    queues = Queues()
    enqueue = Enqueue(queue=A, key=1, payload=b"")
    queues.obey(CreateCommand(queue=A, size_max=1))
    assert queues.obey(enqueue) == AddTask(queue=A, key=1, payload=b"")
    assert queues.obey(enqueue) is None
    assert queues.obey(Dequeue(queue=A)) == RemoveTask(queue=A, id=TaskId(1))
    assert queues.obey(enqueue) == AddTask(queue=A, key=1, payload=b"")
    assert state_of(queues)[A] == (Policy(size_max=1), 2, [(2, 1, b"")])
