"""Who belongs to a node's group and where they are, and whether this node is still the one that they know.

A directory gets an *incarnation* when it is new. Peers tell each other theirs when they connect, and each keeps the ones it
knows. A node with a new directory under an old number may have forgotten votes and entries: it neither votes nor runs
until enough others have said that they never knew it, or until a change of members has named this very incarnation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from penstock.binary import checksum
from penstock.errors import CorruptData, InvalidValue
from penstock.raft.configuration import Configuration, decode_change, encode_change
from penstock.raft.messages import Entry, EntryKind
from penstock.server.entry_store import change_in, is_change, stored_payload
from penstock.server.settings import GroupSettings
from penstock.storage.files import Files, Poison, read_whole, replace_file

FILE_NAME: Final = "penstock.group"
SIZE_MAX: Final = 2**20
INCARNATION_DIGITS: Final = 16
_SEPARATOR: Final = "#"


def label(address: str, incarnation: str) -> str:
    """Return what a configuration says of a member."""
    return f"{address}{_SEPARATOR}{incarnation}"


def parse_label(text: str) -> tuple[str, str]:
    """Return the address and the incarnation in a label; either may be empty."""
    address, _, incarnation = text.partition(_SEPARATOR)
    return address, incarnation


def without_incarnations(payload: bytes) -> bytes:
    """Return an entry's payload for clients: a change of members without the incarnations that it names.

    They are for peers on proven links only.
    """
    if not is_change(payload):
        return payload
    change = decode_change(change_in(payload))
    labels = tuple((member, label(parse_label(text)[0], "")) for member, text in change.labels)
    shown = encode_change(replace(change, labels=labels))
    return stored_payload(Entry(0, 0, shown, EntryKind.CONFIGURATION))


def refuse_member(files: Files, home: Path) -> None:
    """Raise ``InvalidValue`` if a directory belongs to a node of a group: alone it would go its own way."""
    if files.exists(home / FILE_NAME):
        raise InvalidValue(
            f"{home} belongs to a member of a cluster; start it with --node and --peers, or remove {FILE_NAME}"
            " to run it alone for good"
        )


class Membership:
    """What a node knows of its group beyond the log."""

    def __init__(
        self,
        files: Files,
        home: Path,
        settings: GroupSettings,
        *,
        is_new: bool,
        draw: Callable[[int], int],
    ) -> None:
        """``is_new``: the directory held nothing before. Raises ``BadData``, ``InvalidValue``, ``StorageFailed``."""
        self._files = files
        self._path = home / FILE_NAME
        self._poison = Poison(str(self._path))
        self._settings = settings
        self.when_changed: list[Callable[[], None]] = []
        self.when_admitted: list[Callable[[], None]] = []
        self.configuration = Configuration()
        self.heard: dict[int, str] = {}  # the newest incarnation that each peer came with
        self._strangers: set[int] = set()  # peers that never knew this node as another
        # Where the members of a newer configuration listen that a peer has applied and this node has not.
        self._book: dict[int, str] = {}
        self._book_index = -1
        data = read_whole(files, self._path, size_max=SIZE_MAX)
        if data is not None:
            self._load(data)
            return
        self.incarnation = f"{draw(16**INCARNATION_DIGITS):0{INCARNATION_DIGITS}x}"
        self._initial: dict[str, str] = {}
        if not settings.is_joining:
            self._initial = {str(peer): address for peer, address in settings.peers.items()}
        self._known: dict[str, str] = {}
        self._clients: dict[str, str] = {}
        # One that was there before, alone, has forgotten nothing; one that is alone has nobody to ask.
        self._is_admitted = not is_new or list(settings.peers) == [settings.node]
        self._store()

    def _load(self, data: bytes) -> None:
        value = _decode(data, self._path)
        if value["node"] != self._settings.node:
            raise InvalidValue(
                f"{self._path} belongs to node {value['node']}, not {self._settings.node}; give each node its own --data"
            )
        self.incarnation = value["incarnation"]
        self._initial = value["initial"]
        self._known = value["known"]
        self._is_admitted = value["admitted"]
        self._clients = value.get("clients", {})  # earlier programs did not write it

    def _store(self) -> None:
        value = {
            "node": self._settings.node,
            "incarnation": self.incarnation,
            "initial": self._initial,
            "known": self._known,
            "admitted": self._is_admitted,
            "clients": self._clients,
        }
        with self._poison.writing():
            replace_file(self._files, self._path, [_encode(value)])

    # --- who may vote ---

    @property
    def is_barred(self) -> bool:
        """Whether this node may have forgotten what it promised: it must not vote."""
        return not self._is_admitted

    def hear(self, peer: int, incarnation: str, knows: str | None) -> None:
        """Note what a handshake told: who the peer is, and by which incarnation it knows this node."""
        if incarnation:
            self.heard[peer] = incarnation
        if incarnation and str(peer) not in self._known:
            self._known[str(peer)] = incarnation
            self._store()
        if self._is_admitted or not self._initial:
            return
        if knows is None or knows == self.incarnation:
            # One of every majority that it may ever have been part of: who was promised something would be among them.
            self._strangers.add(peer)
            voters = {int(one) for one in self._initial} - {self._settings.node}
            count = len(voters.intersection(self._strangers))
            if 2 * count > len(voters):
                self._admit()
        else:
            # What the group began with is not for this one to say any more: the log or a snapshot will.
            self._initial = {}
            self._store()

    def _admit(self) -> None:
        self._is_admitted = True
        self._store()
        for call in self.when_admitted:
            call()

    def strangers(self) -> list[int]:
        """Return the peers that lost what they had: they come under a number that was known as another."""
        heard = sorted(self.heard.items())
        return [peer for peer, own in heard if self.known(peer) not in (None, own)]

    def known(self, peer: int) -> str | None:
        """Return by which incarnation a peer is known, ``None`` if it is not."""
        _, named = parse_label(self.configuration.label(peer))
        return named or self._known.get(str(peer))

    # --- where they are ---

    @property
    def initial(self) -> Configuration:
        """The configuration that the group began with; empty as long as this node cannot say."""
        if not self._is_admitted:
            return Configuration()
        voters = tuple(sorted(int(peer) for peer in self._initial))
        labels = tuple((peer, label(self._initial[str(peer)], "")) for peer in voters)
        return Configuration(voters=voters, labels=labels)

    def follow(self, configuration: Configuration, index: int) -> None:
        """Note the configuration that is in force now, as of entry ``index``."""
        if index >= self._book_index:
            self._book = {}
        if configuration == self.configuration:
            return
        self.configuration = configuration
        self.note_named(configuration.labels)
        for call in self.when_changed:
            call()

    def note_named(self, labels: Iterable[tuple[int, str]]) -> None:
        """Note labels of a change that is in this node's log, committed or not.

        One that names this very incarnation was written after the old one was out of the group. Who has it in its log is
        as good a voter as any: whoever knows less is refused for that.
        """
        if self._is_admitted:
            return
        own = dict(labels).get(self._settings.node, "")
        if parse_label(own)[1] == self.incarnation:
            self._admit()

    def note_addresses(self, addresses: dict[int, str], index: int) -> None:
        """Note where the members of a configuration listen that is in force elsewhere as of entry ``index``.

        They are addresses to dial and nothing more: who votes and leads is decided by this node's own configuration.
        Without them, a node that was down while members changed could never prove the links of the new ones.
        """
        if index > self._book_index and addresses != self._book:
            self._book, self._book_index = addresses, index
            for call in self.when_changed:
                call()

    def members(self) -> Collection[int]:
        """Return the members of the configuration; before there is one, the nodes that this one was started with."""
        return self.configuration.members or self._settings.peers

    def peers(self) -> list[int]:
        """Return all nodes to be connected to."""
        return sorted({*self.members(), *self._book} - {self._settings.node})

    def address(self, peer: int) -> str | None:
        """Return where a peer listens for the others, ``None`` if that is not known."""
        address, _ = parse_label(self.configuration.label(peer))
        return (
            self._book.get(peer)
            or address
            or self._settings.peers.get(peer)
            or self._initial.get(str(peer))
        )

    def note_client_address(self, peer: int, address: str) -> None:
        """Keep where clients reach a peer: version 1 lists it also while the peer is down."""
        if self._clients.get(str(peer)) != address:
            self._clients[str(peer)] = address
            self._store()

    def client_address(self, peer: int) -> str:
        """Return where clients last reached a member; empty if that was never known."""
        if peer == self._settings.node:
            return self._settings.client_address
        return self._clients.get(str(peer), "")

    @property
    def own_address(self) -> str:
        """Where this node hears the others; empty for nowhere."""
        return self._settings.listen or self.address(self._settings.node) or ""


def _encode(value: dict[str, Any]) -> bytes:
    body = json.dumps(value, sort_keys=True).encode()
    return b"%08x " % checksum(body) + body + b"\n"


def _decode(data: bytes, path: Path) -> dict[str, Any]:
    """Return what the file says. Raises ``CorruptData``: who forgot its place must not guess it."""
    body = data[9:-1]
    if data[:8] != b"%08x" % checksum(body) or data[-1:] != b"\n":
        raise CorruptData(
            "the cluster file is damaged; restore it, or start the node with an empty directory",
            path=str(path),
            offset=0,
            expected=f"checksum {checksum(body):08x}",
            found=data[:8].decode("latin-1"),
        )
    value: dict[str, Any] = json.loads(body)
    return value
