"""Runs the scripts of the scenarios: lines of verbs, and checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.raft.configuration import Change
from penstock.raft.messages import Entry, Message
from raft.world import KINDS, World, parse_change, stored, with_option

QUIET = ("deliver", "expect")


def run_script(lines: Sequence[str], checks: Sequence[str], *, seed: int) -> World:
    """Run a script in a new world; raise ``AssertionError`` where it does not hold."""
    world = World(seed)
    for line in lines:
        run_line(world, str(line))
    for check in checks:
        run_check(world, str(check).split())
    return world


def run_line(world: World, line: str) -> None:
    verb, *words = line.split()
    is_quiet = verb.endswith("!")
    verb = verb.removesuffix("!")
    if verb == "repeat":
        for _ in range(int(words[0])):
            run_line(world, " ".join(words[1:]))
        return
    if verb == "tick":
        for _ in range(int(words[1])):
            world.core(int(words[0])).tick()
            world.pump_all() if is_quiet else world.settle()
        return
    VERBS[verb](world, words)
    if verb in QUIET or is_quiet:
        world.pump_all()
    else:
        world.settle()


def _fields(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def _cluster(world: World, words: Sequence[str]) -> None:
    if words[0].isdigit():
        world.cluster(range(1, int(words[0]) + 1))
    else:
        fields = _fields(words)
        world.cluster(_numbers(fields["voters"]), _numbers(fields.get("learners", "")))


def _option(world: World, words: Sequence[str]) -> None:
    chosen = [int(words[1])] if len(words) > 1 else list(world.members)
    for number in chosen:
        member = world.members[number]
        member.settings = with_option(member.settings, words[0])
        if member.core is not None:
            world.boot(member)


def _set(world: World, words: Sequence[str]) -> None:
    stored(world, int(words[0]), **_fields(words[1:]))


def _dead(world: World, words: Sequence[str]) -> None:
    world.members[int(words[0])].core = None


def _campaign(world: World, words: Sequence[str]) -> None:
    world.core(int(words[0])).campaign()


def _beat(world: World, words: Sequence[str]) -> None:
    core = world.core(int(words[0]))
    if core.is_leader:
        core.beat()


def _propose(world: World, words: Sequence[str]) -> None:
    payload = " ".join(words[1:]).encode()
    world.at_leader(int(words[0]), lambda core: core.propose([payload]))


def _read(world: World, words: Sequence[str]) -> None:
    world.read(int(words[0]))


def _transfer(world: World, words: Sequence[str]) -> None:
    fields = _fields(words)
    world.at_leader(int(fields["via"]), lambda core: core.transfer(int(fields["to"])))


def _conf(world: World, words: Sequence[str]) -> None:
    world.change(int(words[0]), parse_change(words[1:]))


def _leave(world: World, words: Sequence[str]) -> None:
    world.change(int(words[0]), Change())


def _isolate(world: World, words: Sequence[str]) -> None:
    number = int(words[0])
    for other in [*world.members, *range(1, 10)]:
        world.cuts |= {(number, other), (other, number)}


def _cut(world: World, words: Sequence[str]) -> None:
    if len(words) == 1:
        world.cuts.add(_link(words[0]))
    else:
        a, b = int(words[0]), int(words[1])
        world.cuts |= {(a, b), (b, a)}


def _link(word: str) -> tuple[int, int]:
    a, b = word.split(">")
    return int(a), int(b)


def _split(world: World, words: Sequence[str]) -> None:
    parts = [_numbers(word) for word in words]
    for part in parts:
        for other in parts:
            if part is not other:
                world.cuts |= {(a, b) for a in part for b in other}


def _drop(world: World, words: Sequence[str]) -> None:
    world.drops.append((KINDS[words[0]], _link(words[1]) if len(words) > 1 else None))


def _heal(world: World, words: Sequence[str]) -> None:
    del words
    world.cuts.clear()
    world.drops.clear()


def _crash(world: World, words: Sequence[str]) -> None:
    world.crash(int(words[0]))


def _restart(world: World, words: Sequence[str]) -> None:
    number = int(words[0])
    if world.members[number].core is not None:
        world.crash(number)
    world.boot(world.members[number])


def _hold(world: World, words: Sequence[str]) -> None:
    world.members[int(words[0])].is_holding = True


def _release(world: World, words: Sequence[str]) -> None:
    world.release(int(words[0]))


def _compact(world: World, words: Sequence[str]) -> None:
    world.compact(int(words[0]), int(words[1]))


def _deliver(world: World, words: Sequence[str]) -> None:
    pair = _link(words[0])
    for _ in range(len(world.mail.get(pair, ()))):
        world.deliver_one(pair)


def _send(world: World, words: Sequence[str]) -> None:
    fields = _fields(words[1:])
    index = int(fields.get("index", 0))
    entries = []
    for place, text in enumerate(t for t in fields.get("entries", "").split(",") if t):
        term, _, payload = text.partition(":")
        entries.append(Entry(index + 1 + place, int(term), payload.encode()))
    world.give(
        Message(
            kind=KINDS[words[0]],
            sender=int(fields["from"]),
            to=int(fields["to"]),
            term=int(fields.get("term", 0)),
            index=index,
            log_term=int(fields.get("logterm", 0)),
            entries=tuple(entries),
            commit=int(fields.get("commit", 0)),
            is_rejected=fields.get("reject", "false") == "true",
            hint=int(fields.get("hint", 0)),
        )
    )


def _expect(world: World, words: Sequence[str]) -> None:
    world.pump_all()
    run_check(world, words)


def _settle(world: World, words: Sequence[str]) -> None:
    del words
    world.settle()


VERBS = {
    "cluster": _cluster,
    "option": _option,
    "set": _set,
    "dead": _dead,
    "campaign": _campaign,
    "beat": _beat,
    "propose": _propose,
    "read": _read,
    "transfer": _transfer,
    "conf": _conf,
    "leave-joint": _leave,
    "isolate": _isolate,
    "cut": _cut,
    "split": _split,
    "drop": _drop,
    "heal": _heal,
    "crash": _crash,
    "restart": _restart,
    "hold": _hold,
    "release": _release,
    "compact": _compact,
    "deliver": _deliver,
    "send": _send,
    "expect": _expect,
    "settle": _settle,
}


def run_check(world: World, words: Sequence[str]) -> None:
    who, field, value = words
    numbers = [one.number for one in world.up()] if who == "*" else _numbers(who)
    for number in numbers:
        wanted = value
        if value.startswith("@"):
            wanted = read_field(world, int(value[1:]), field)
        found = read_field(world, number, field)
        assert found == wanted, f"{number} {field}: wanted {wanted}, found {found}"


def read_field(world: World, number: int, field: str) -> str:
    """Return a field of a member as a script writes it."""
    member, core = world.members[number], world.core(number)
    log = core.log
    values: dict[str, Any] = {
        "state": core.role.value,
        "term": core.term,
        "vote": core.vote,
        "lead": core.leader,
        "commit": log.committed,
        "first": log.first,
        "last": log.last,
        "read": "none" if member.last_read is None else member.last_read,
        "transferee": core.leadership.transferee if core.leadership is not None else 0,
        "voters": _list(core.configuration.voters),
        "learners": _list(core.configuration.learners),
    }
    if field == "log":
        return _list([log.term(index) for index in range(log.first, log.last + 1)])
    return str(values[field])


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers)) or "none"
