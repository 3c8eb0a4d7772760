"""``penstock cluster``: who belongs to a group, how far each has come, and who leads."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from penstock.cli.connection import NODE, connected
from penstock.cli.group_flags import parse_node, parse_peer
from penstock.cli.output import Exit, cell, emit, say
from penstock.errors import ConnectionLost, InvalidValue, NotLeader, RequestRefused

if TYPE_CHECKING:
    from penstock.client.blocking import Client
    from penstock.protocol.version2 import ClusterInfo, ClusterMember

LAG_MAX: Final = 100
"""Entries that a learner may be behind when it becomes a voter: it never has all while others enqueue."""

LOOK_SECONDS: Final = 0.2
"""How often a command that waits looks at the group."""

SAY_SECONDS: Final = 1.0
"""How often it tells how far it is."""

LEAD_SECONDS: Final = 10.0
"""How long a transfer waits until the new leader takes requests."""

ConnectOption = Annotated[
    str,
    typer.Option(
        "--connect",
        metavar="HOST:PORT,…",
        envvar="PENSTOCK_NODE",
        help="Nodes of the group; the leader is found.",
    ),
]


def status(
    table: Annotated[bool, typer.Option("--table", help="A table for people.")] = False,
    own: Annotated[
        bool, typer.Option("--own", help="As the node sees it that answers, whoever leads.")
    ] = False,
    connect: ConnectOption = NODE,
) -> None:
    """Print the members of a group, one line each, as its leader sees them. Exits 1 if none leads.

    \b
    Examples:
      penstock cluster status
      penstock cluster status --table
      penstock cluster status --own --connect 127.0.0.1:2602
    """
    with connected(connect) as client:
        info = client.cluster(own=own)
    rows = [_row(info, member) for member in info.members]
    if table:
        _show(info, rows)
    else:
        for row in rows:
            emit(row)
    if info.leader is None:
        say(
            f"node {info.node} knows no leader; check that a majority of the nodes is running, then retry"
        )
        raise typer.Exit(Exit.DAMAGE)


def add(
    member: Annotated[
        str, typer.Argument(metavar="N=HOST:PORT", help="The node, and where its peers hear it.")
    ],
    learner: Annotated[
        bool, typer.Option("--learner", help="Leave it a learner, which does not vote.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="For it to catch up.")
    ] = 3600.0,
    connect: ConnectOption = NODE,
) -> None:
    """Add a node: as a learner, and as a voter when it has caught up.

    The node was started with --join. If the command ends early, run it again. A member gets another address by it.

    \b
    Examples:
      penstock cluster add 4=127.0.0.1:2705
      penstock cluster add 5=127.0.0.1:2706 --learner
    """
    node, place = _understood(parse_peer, member)
    address = str(place)
    with connected(connect) as client:
        info = client.cluster()
        _refuse_taken(info, node, address)
        found = _member(info, node)
        if found is None or found.standing != "voter":
            if found is None or found.address != address:
                _make_learner(client, node, address)
            if not learner:
                _wait_caught_up(client, node, wait)
                _make_voter(client, node, address)
        elif found.address != address:
            _make_voter(client, node, address)
        info = client.cluster()
    for each in info.members:
        if each.node == node:
            emit(_row(info, each))


def remove(
    node: Annotated[str, typer.Argument(metavar="N", help="The node's number.")],
    connect: ConnectOption = NODE,
) -> None:
    """Remove a node from its group; it can be stopped then.

    \b
    Examples:
      penstock cluster remove 4
    """
    number = _understood(parse_node, node)
    with connected(connect) as client:
        _found(client.cluster(), number)
        _change(
            client,
            lambda: client.change_members(remove=[number]),
            lambda info: _member(info, number) is None,
        )
    emit({"node": number, "removed": True})


def transfer(
    node: Annotated[str, typer.Argument(metavar="N", help="The node that is to lead.")],
    connect: ConnectOption = NODE,
) -> None:
    """Let another node lead, as before a restart of the one that does; no request is lost.

    \b
    Examples:
      penstock cluster transfer 2
    """
    number = _understood(parse_node, node)
    with connected(connect) as client:
        before = client.cluster()
        if before.leader != number:
            if _found(before, number).standing != "voter":
                raise RequestRefused(f"node {number} is a learner, and only a voter can lead")
            _change(client, lambda: client.transfer(number), lambda info: info.leader == number)
        info = _wait_leading(client, number)
    emit({"leader": number, "before": before.leader, "term": info.term})


def _understood(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except InvalidValue as error:
        raise typer.BadParameter(str(error)) from None


def _member(info: ClusterInfo, node: int) -> ClusterMember | None:
    return next((each for each in info.members if each.node == node), None)


def _found(info: ClusterInfo, node: int) -> ClusterMember:
    """Return a member of the group. Raises ``RequestRefused``."""
    found = _member(info, node)
    if found is None:
        raise RequestRefused(f"node {node} is not a member; see: penstock cluster status")
    return found


def _refuse_taken(info: ClusterInfo, node: int, address: str) -> None:
    """Raise ``RequestRefused`` if another member is at this address: one process cannot be two members."""
    for each in info.members:
        if each.address == address and each.node != node:
            raise RequestRefused(
                f"node {each.node} has the address {address}; give node {node} another one, or remove node {each.node} first"
            )


def _is_at(info: ClusterInfo, node: int, address: str) -> bool:
    found = _member(info, node)
    return found is not None and found.address == address


def _is_voter(info: ClusterInfo, node: int) -> bool:
    found = _member(info, node)
    return found is not None and found.standing == "voter" and not info.is_joint


def _change(
    client: Client, change: Callable[[], None], is_done: Callable[[ClusterInfo], bool]
) -> None:
    """Make a change. If its outcome is unknown, as when the leader goes, what the group says decides."""
    try:
        change()
    except ConnectionLost:
        if not is_done(client.cluster()):
            raise


def _make_learner(client: Client, node: int, address: str) -> None:
    _change(
        client,
        lambda: client.change_members(learners={node: address}),
        lambda info: _is_at(info, node, address),
    )
    say(f"node {node} is a learner at {address}")


def _make_voter(client: Client, node: int, address: str) -> None:
    end = time.monotonic() + LEAD_SECONDS
    while True:
        try:
            _change(
                client,
                lambda: client.change_members(voters={node: address}),
                lambda info: _is_voter(info, node) and _is_at(info, node, address),
            )
        except RequestRefused as error:
            # The group may be making a change of its own, which names the newcomer.
            if isinstance(error, NotLeader) or time.monotonic() >= end:
                raise
            time.sleep(LOOK_SECONDS)
            continue
        say(f"node {node} is a voter at {address}")
        return


def _wait_caught_up(client: Client, node: int, seconds: float) -> None:
    """Wait until a learner has nearly all entries, telling how far it is. Raises ``typer.Exit``."""
    end, told = time.monotonic() + seconds, 0.0
    while True:
        found = _member(client.cluster(), node)
        if found is None:
            say(f"node {node} was removed meanwhile")
            raise typer.Exit(Exit.DAMAGE)
        is_sent = found.pace == "replicate"
        if is_sent and found.lag is not None and found.lag <= LAG_MAX:
            return
        now = time.monotonic()
        if now >= end:
            say(f"node {node} has not caught up in {seconds:g} s; it stays a learner")
            raise typer.Exit(Exit.DAMAGE)
        if now - told >= SAY_SECONDS:
            told = now
            say(_progress(found))
        time.sleep(LOOK_SECONDS)


def _progress(found: ClusterMember) -> str:
    if found.pace == "snapshot":
        return f"node {found.node} is being sent a snapshot"
    if found.pace == "replicate":
        return f"node {found.node} is {found.lag} entries behind"
    return f"node {found.node} has not answered yet; was it started with --join?"


def _wait_leading(client: Client, node: int) -> ClusterInfo:
    end = time.monotonic() + LEAD_SECONDS
    while True:
        info = client.cluster()
        if info.node == node and info.is_leading:
            return info
        if time.monotonic() >= end:
            raise NotLeader(
                f"node {node} does not lead after {LEAD_SECONDS:g} s; see: penstock cluster status"
            )
        time.sleep(LOOK_SECONDS)


def _row(info: ClusterInfo, member: ClusterMember) -> dict[str, Any]:
    return {
        "node": member.node,
        "standing": member.standing,
        "is_leader": member.is_leader,
        "address": member.client_address or None,
        "peer_address": member.address or None,
        "match": member.match,
        "lag": member.lag,
        "pace": member.pace,
        "window": member.window,
        "seen_by": info.node,
        "term": info.term,
        "commit_index": info.committed,
        "is_joint": info.is_joint,
    }


_COLUMNS: Final = {
    "node": "node",
    "standing": "standing",
    "address": "clients",
    "peer_address": "peers",
    "match": "match",
    "lag": "lag",
    "pace": "pace",
    "window": "window",
}


def _show(info: ClusterInfo, rows: list[dict[str, Any]]) -> None:
    leader = "no leader" if info.leader is None else f"node {info.leader} leads"
    joint = ", members are changing" if info.is_joint else ""
    title = f"{leader}, term {info.term}, committed {info.committed}, seen by node {info.node}"
    # Two addresses of IPv4 fit into a terminal of 80 columns only without the padding.
    shown = Table(
        box=SIMPLE_HEAD,
        title=title + joint,
        title_justify="left",
        collapse_padding=True,
        pad_edge=False,
    )
    for name in _COLUMNS.values():
        shown.add_column(name, overflow="fold", justify="right" if name == "lag" else "left")
    for row in rows:
        row = row | {"standing": "leader" if row["is_leader"] else row["standing"]}
        shown.add_row(*(cell("–" if row[name] is None else row[name]) for name in _COLUMNS))
    Console(file=sys.stdout).print(shown)
