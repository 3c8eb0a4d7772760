"""The map of a store: every whole copy in every file, also those that only an interrupted merge kept."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

from penstock.errors import DependencyMissing
from penstock.families.damage import Damage
from penstock.families.rabbitmq.location import resolve
from penstock.families.rabbitmq.store_map import build_map
from penstock.formats.rabbitmq import message_store
from penstock.storage.files import OpenFiles
from support.rabbitmq_directories import NAMES, message, message_id, stored, unpacked


@pytest.mark.parametrize("name", NAMES)
def test_the_map_finds_all_that_the_plain_scan_finds(tmp_path: Path, name: str) -> None:
    for vhost in resolve(unpacked(name, tmp_path)).vhosts:
        store = build_map(vhost.persistent, lambda _: None)
        records = 0
        with OpenFiles(open_max=1) as files:
            for path in vhost.persistent:
                data = path.read_bytes()
                for piece in message_store.scan(data):
                    if piece.status is message_store.Status.OK:
                        records += 1
                        places = set(store.places(piece.message_id))
                        assert (path, piece.offset, piece.length) in places
                        found = store.read(piece.message_id, files)
                        assert found == message_store.decode_message(data, piece)
        assert len(store) == records


def test_ids_that_share_a_half_are_kept_apart(tmp_path: Path) -> None:
    ids = [
        high.to_bytes(8, "big") + low.to_bytes(8, "big")
        for high in (0, 1, 2**64 - 1)
        for low in (0, 5, 2**64 - 1)
    ]
    Random(1).shuffle(ids)
    path = tmp_path / "0.rdq"
    path.write_bytes(b"".join(message_store.encode_record(id_, message(0, id_)) for id_ in ids))
    store = build_map([path], lambda _: None)
    with OpenFiles() as files:
        for id_ in ids:
            assert store.read(id_, files) == message(0, id_)
        assert store.read(bytes(15) + b"\x01", files) is None


def test_a_copy_that_was_cut_since_gives_way_to_another(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("0.rdq", "0.rdt", "1.rdq")]
    for path in paths:
        path.write_bytes(stored(1, b"body"))
    store = build_map(paths, lambda _: None)
    assert [place.path for place in store.places(message_id(1))] == paths
    paths[0].write_bytes(stored(1, b"body")[:-1])
    paths[1].unlink()
    with OpenFiles() as files:
        assert store.read(message_id(1), files) == message(1, b"body")
        paths[2].write_bytes(stored(2, b"body"))
        assert store.read(message_id(1), files) is None


def test_damage_is_told_with_its_place_and_holes_are_not(tmp_path: Path) -> None:
    path = tmp_path / "0.rdq"
    good = stored(1, b"first")
    path.write_bytes(
        good + bytes(50) + stored(2, b"second") + b"\xff" * 9 + stored(3, b"third")[:-3]
    )
    met: list[Damage] = []
    store = build_map([path, tmp_path / "gone.rdq"], met.append)
    assert len(store) == 2
    assert [(damage.status, damage.path.name) for damage in met] == [
        ("torn", "0.rdq"),
        ("unreadable", "gone.rdq"),
    ]
    assert met[0].offset == len(good) + 50 + len(stored(2, b"second"))


def test_without_numba_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0.rdq"
    path.write_bytes(stored(1, b"body"))
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(DependencyMissing, match=r"pip install 'penstock\[tables\]'"):
        build_map([path], lambda _: None)


def test_a_store_without_files_holds_nothing() -> None:
    store = build_map([], lambda _: None)
    assert (len(store), list(store.places(message_id(1)))) == (0, [])
