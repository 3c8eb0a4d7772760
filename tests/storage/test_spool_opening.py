"""What a spool makes of the directories it finds: other versions, positions in doubt, damage, keys, leftovers.

The cases are those of sections 5 and 8 of the format's description, and of its table 9.11.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadData, CorruptData, InvalidValue, UnsupportedVersion
from penstock.formats.beats.segment import Header, Options, PayloadFormat, decode_header
from penstock.formats.beats.state import Position, decode_state
from penstock.storage.spool import Spool, SpoolSettings
from support import beats_spools as vectors
from support.beats_spools import payloads_of, sealed, some_events, spool, stored
from support.spool_lives import KEY, read_all

WRONG_KEY = bytes(16)
A, B = (
    vectors.PLAIN[16:83],
    vectors.PLAIN[95:212],
)


def opened(place: Path, notes: list[str] | None = None, *, key: bytes | None = KEY) -> Spool:
    settings = SpoolSettings(max_size=2**20, segment_size=2**16, key=key)
    return Spool(place, settings, tell=(notes if notes is not None else []).append)


def left_in(place: Path, notes: list[str] | None = None, *, key: bytes | None = KEY) -> list[bytes]:
    with opened(place, notes, key=key) as one:
        return [payload for batch in read_all(one) for payload in batch.payloads]


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.name != "penstock.lock")


# --- versions ---


def test_segments_of_all_versions_and_options_are_read_in_the_order_of_their_numbers(
    tmp_path: Path,
) -> None:
    headers = [Header(0, 0), Header(1, 0), *(Header(2, 0, Options(o)) for o in range(8))]
    payloads = [
        payloads_of(some_events(5, first=10 * number), header)
        for number, header in enumerate(headers)
    ]
    # 9 comes before 10, and 11: numbers, not names.
    place = spool(
        tmp_path / "spool",
        {
            number + 5: sealed(
                payloads[number], version=header.version, options=header.options, key=KEY
            )
            for number, header in enumerate(headers)
        },
    )
    with opened(place) as one:
        batches = read_all(one, 3)
        assert [p for batch in batches for p in batch.payloads] == [p for b in payloads for p in b]
        formats = [batch.payload_format for batch in batches[::2]]
        assert formats[:3] == [PayloadFormat.JSON, PayloadFormat.CBOR, PayloadFormat.CBOR]
        assert formats[-1] is PayloadFormat.PROTOBUF
        for batch in batches:
            one.acknowledge(batch)
        one.publish([b"new"])
    assert left_in(place) == [b"new"]
    assert names(place) == ["15.seg", "state.dat"]


@pytest.mark.parametrize("name", sorted(n for n in vectors.VECTORS if not n.startswith("state")))
def test_every_vector_is_read_whole(name: str, tmp_path: Path) -> None:
    place = spool(tmp_path / "spool", {0: vectors.VECTORS[name]})
    found = left_in(place)
    assert len(found) == (1 if "proto" in name or "aes" in name else 2)


def test_a_segment_that_was_not_closed_gets_its_count(tmp_path: Path) -> None:
    data = sealed([A, B], count=0)
    place = spool(tmp_path / "spool", {3: data})
    notes: list[str] = []
    assert left_in(place, notes) == [A, B]
    assert decode_header((place / "3.seg").read_bytes()).count == 2
    assert notes == []


def test_a_name_with_leading_zeros_counts_unless_the_one_without_is_there(tmp_path: Path) -> None:
    place = spool(tmp_path / "spool", {"007.seg": sealed([A]), "x.seg": b"no", "8.seg.bak": b"no"})
    with opened(place) as one:
        one.publish([B])
        assert [batch.payloads for batch in read_all(one)] == [[A], [B]]
    assert names(place) == ["007.seg", "8.seg", "8.seg.bak", "state.dat", "x.seg"]
    place = spool(tmp_path / "both", {"007.seg": sealed([A]), "7.seg": sealed([B])})
    assert left_in(place) == [B]


# --- table 9.11 ---


def test_a_torn_tail_is_cut_and_said(tmp_path: Path) -> None:
    place = spool(tmp_path / "spool", {0: vectors.TORN})
    notes: list[str] = []
    assert left_in(place, notes) == [A]
    assert notes == [f"{place / '0.seg'}: cut a torn tail of 109 bytes at 91"]
    assert decode_header((place / "0.seg").read_bytes()) == Header(2, 1)
    assert (place / "0.seg").stat().st_size == 91


@pytest.mark.parametrize(
    ("data", "found", "words"),
    [
        (vectors.BAD_PAYLOAD, [B], "passed over 79 bytes at 12: the checksum is"),
        (vectors.HUGE_LENGTH, [B], "passed over 79 bytes at 12: a length of 4294967295"),
        (vectors.SHORT_LENGTH, [B], "passed over 79 bytes at 12: a length of 12"),
        (vectors.BAD_END, [A, B], None),
    ],
)
@pytest.mark.parametrize("is_newest", [True, False])
def test_damage_costs_one_frame_and_its_segment_is_kept_aside(
    tmp_path: Path, data: bytes, found: list[bytes], words: str | None, is_newest: bool
) -> None:
    segments: dict[int | str, bytes] = {0: data}
    if not is_newest:
        segments[1] = sealed([b"next"])
    place = spool(tmp_path / "spool", segments)
    notes: list[str] = []
    with opened(place, notes) as one:
        if is_newest:
            one.publish([b"next"])
        batches = read_all(one)
        assert [p for batch in batches for p in batch.payloads] == [*found, b"next"]
        one.rewind()
        batches = read_all(one)
        assert [p for batch in batches for p in batch.payloads] == [*found, b"next"]
        assert one.stat().damaged == (words is not None), "told once, however often it is read"
        for batch in batches:
            one.acknowledge(batch)
    assert [note for note in notes if words is not None and words in note] == notes
    kept = ["0.seg.damaged"] if words is not None else []
    assert names(place) == [*kept, "1.seg", "state.dat"]
    if kept and not is_newest:
        assert (place / "0.seg.damaged").read_bytes() == data
    assert left_in(place) == []


def test_an_empty_segment_holds_nothing_and_is_no_error(tmp_path: Path) -> None:
    place = spool(tmp_path / "spool", {0: vectors.EMPTY, 1: sealed([A]), 2: vectors.EMPTY})
    notes: list[str] = []
    assert left_in(place, notes) == [A]
    assert notes == []


@pytest.mark.parametrize("size", range(12))
def test_a_part_of_a_header_holds_nothing_and_is_said(tmp_path: Path, size: int) -> None:
    part = vectors.PLAIN[:size]
    place = spool(tmp_path / "spool", {0: part, 1: sealed([A])})
    notes: list[str] = []
    assert left_in(place, notes) == [A]
    assert notes == [f"{place / '0.seg'}: ends inside its header, {size} bytes; passed over"]
    place = spool(tmp_path / "newest", {0: sealed([A]), 1: part})
    notes = []
    with opened(place, notes) as one:
        assert notes == [f"{place / '1.seg'}: held nothing but a part of a header; removed"]
        one.publish([B])
        assert names(place) == ["0.seg", "2.seg", "state.dat"]


def test_a_newest_segment_of_zeros_is_kept_aside_and_its_number_not_used_again(
    tmp_path: Path,
) -> None:
    place = spool(tmp_path / "spool", {0: sealed([A]), 1: bytes(3000)})
    notes: list[str] = []
    assert left_in(place, notes) == [A]
    words = "its beginning was never written; kept as 1.seg.damaged"
    assert notes == [f"{place / '1.seg'}: {words}"]
    with opened(place) as one:
        one.publish([B])
    assert names(place) == ["0.seg", "1.seg.damaged", "2.seg", "state.dat"]


@pytest.mark.parametrize("data", [vectors.FUTURE_VERSION, vectors.UNKNOWN_OPTION])
@pytest.mark.parametrize("number", [0, 1])
def test_a_segment_that_we_do_not_know_is_refused_and_kept(
    tmp_path: Path, data: bytes, number: int
) -> None:
    place = spool(tmp_path / "spool", {number: data, 1 - number: sealed([A])})
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(UnsupportedVersion, match="that we do not know") as caught:
        opened(place)
    assert str(place / f"{number}.seg") in str(caught.value)
    (place / "penstock.lock").unlink()
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


# --- positions ---


@pytest.mark.parametrize(
    ("state", "expected", "position"),
    [
        (stored(0, 91, 1), [B, b"next"], Position(0, 91, 1)),
        (stored(0, 220, 2), [b"next"], Position(0, 220, 2)),
        (stored(0, 400, 3), [b"next"], Position(1)),  # past the end: a Beats that lost count
        (stored(0, 90, 1), [A, B, b"next"], Position(0)),  # inside a frame
        (stored(0, 91, 2), [A, B, b"next"], Position(0)),  # not so many frames before it
        (stored(0, 220, 1), [A, B, b"next"], Position(0)),
        (stored(0, 0, 0), [A, B, b"next"], Position(0)),
        (stored(0, 91, 0), [A, B, b"next"], Position(0)),  # no frame before it: the beginning
        (stored(1, 0, 0), [b"next"], Position(1)),  # what stands before was sent
        (stored(7, 91, 1), [A, B, b"next"], Position(0)),  # somebody began to number anew
        (b"", [A, B, b"next"], Position(0)),
        (None, [A, B, b"next"], Position(0)),
        (stored(0, 91, 1)[:20], [A, B, b"next"], Position(0)),
        (b"\x02" + stored(0, 91, 1)[1:], [A, B, b"next"], Position(0)),
        (stored(0, 91, 1) + b"whatever", [B, b"next"], Position(0, 91, 1)),
        (stored(0, 2**63, 2**63), [b"next"], Position(1)),
    ],
)
def test_a_position_is_believed_where_a_frame_ends_and_doubt_skips_nothing(
    tmp_path: Path, state: bytes | None, expected: list[bytes], position: Position
) -> None:
    place = spool(tmp_path / "spool", {0: vectors.PLAIN, 1: sealed([b"next"])}, state)
    with opened(place) as one:
        assert one.stat().position == position
        assert [p for batch in read_all(one) for p in batch.payloads] == expected
    # What was decided is on the disk: the next start decides the same.
    assert decode_state((place / "state.dat").read_bytes()).position == position
    assert left_in(place) == expected


def test_a_position_of_version_0_is_one_of_bytes(tmp_path: Path) -> None:
    v0, state = vectors.VECTORS["v0_json"], vectors.VECTORS["state_v0"]
    place = spool(tmp_path / "spool", {0: v0}, state)
    assert left_in(place) == [v0[120:309]]
    assert decode_state((place / "state.dat").read_bytes()).position == Position(0, 116, 1)
    place = spool(tmp_path / "off", {0: v0}, state[:12] + b"\x71" + state[13:])
    assert len(left_in(place)) == 2


def test_a_position_behind_all_that_is_left_is_where_the_next_payload_comes(
    tmp_path: Path,
) -> None:
    place = spool(tmp_path / "spool", {0: vectors.PLAIN}, stored(0, 400, 3))
    assert left_in(place) == []
    with opened(place) as one:
        one.publish([b"more"])
    assert left_in(place) == [b"more"]


def test_a_number_in_the_state_is_not_used_again(tmp_path: Path) -> None:
    # The frames of a new 7.seg have the sizes of the old one's, so the position would hold for it.
    place = spool(tmp_path / "spool", {}, stored(7, 91, 1))
    with opened(place) as one:
        one.publish([A, B])
    assert names(place) == ["8.seg", "state.dat"]
    assert left_in(place) == [A, B]


def test_segments_that_somebody_numbered_anew_outlive_new_ones_of_ours(tmp_path: Path) -> None:
    place = spool(tmp_path / "spool", {0: sealed([A]), 1: sealed([B])}, stored(7, 91, 1))
    with opened(place) as one:
        one.publish([b"new"])
    assert left_in(place) == [A, B, b"new"]


def test_a_half_written_state_is_cleared_away(tmp_path: Path) -> None:
    place = spool(
        tmp_path / "spool", {0: vectors.PLAIN, "state.dat.penstock-temporary": b"half"}, b""
    )
    assert left_in(place) == [A, B]
    assert names(place) == ["0.seg", "state.dat"]


# --- keys ---


@pytest.mark.parametrize("options", [Options(1), Options(3), Options(5), Options(7)], ids=str)
@pytest.mark.parametrize("is_newest", [True, False])
@pytest.mark.parametrize("is_ours", [True, False])
def test_a_wrong_or_missing_key_is_an_error_and_nothing_is_touched(
    tmp_path: Path, options: Options, is_newest: bool, is_ours: bool
) -> None:
    place = tmp_path / "spool"
    if is_ours:
        settings = SpoolSettings(max_size=2**20, segment_size=2**16, options=options, key=KEY)
        with Spool(place, settings) as one:
            one.publish([A, B])
    else:
        spool(place, {0: sealed([A, B], options=options, key=KEY)})
    if not is_newest:
        (place / "1.seg").write_bytes(sealed([b"next"]))
    before = (place / "0.seg").read_bytes()
    with pytest.raises(CorruptData, match="wrong key or damaged") as caught:
        opened(place, key=WRONG_KEY)
    assert str(place / "0.seg") in str(caught.value)
    with pytest.raises(InvalidValue, match="is encrypted; name the file with its key"):
        opened(place, key=None)
    assert (place / "0.seg").read_bytes() == before
    assert left_in(place) == [A, B] + ([] if is_newest else [b"next"])


@pytest.mark.parametrize("options", [Options(1), Options(3)], ids=str)
def test_an_encrypted_segment_that_was_torn_before_its_first_frame_does_not_lock_us_out(
    tmp_path: Path, options: Options
) -> None:
    settings = SpoolSettings(max_size=2**20, segment_size=2**16, options=options, key=KEY)
    for size in range(13, 60):
        place = tmp_path / str(size)
        with Spool(place, settings) as one:
            one.publish([A])
        data = (place / "0.seg").read_bytes()
        (place / "0.seg").write_bytes(data[:4] + bytes(4) + data[8:size])
        notes: list[str] = []
        assert left_in(place, notes) == []
        # Of a compressed one of so many bytes nothing but the head is there, which is whole by itself.
        whole = (28, 35) if options & Options.COMPRESSED else (28,)
        assert len(notes) == (size not in whole), (size, notes)
        with opened(place) as one:
            one.publish([B])
        assert left_in(place) == [B]


# --- compressed ---


def test_a_torn_tail_of_a_compressed_segment_is_cut_at_its_last_whole_block(tmp_path: Path) -> None:
    settings = SpoolSettings(max_size=2**20, segment_size=2**16, options=Options.COMPRESSED)
    with Spool(tmp_path / "spool", settings) as one:
        one.publish([A])
        one.publish([B])
        size = (tmp_path / "spool" / "0.seg").stat().st_size
        one.publish([A, B])
        torn = (tmp_path / "spool" / "0.seg").read_bytes()
    for end in range(size, len(torn)):
        place = spool(tmp_path / f"{end}", {0: torn[:end]})
        notes: list[str] = []
        assert left_in(place, notes) == [A, B]
        words = [f"{place / '0.seg'}: cut a torn tail of {end - size} bytes at {size}"]
        assert notes == (words if end > size else [])
        assert (place / "0.seg").read_bytes()[8:] == torn[8:size]
        notes.clear()
        assert left_in(place, notes) == [A, B]
        assert notes == []


def test_a_torn_block_that_was_filled_with_zeros_costs_nothing_that_stands_before_it(
    tmp_path: Path,
) -> None:
    settings = SpoolSettings(max_size=2**20, segment_size=2**16, options=Options.COMPRESSED)
    with Spool(tmp_path / "spool", settings) as one:
        one.publish([A])
        one.publish([B])
        size = (tmp_path / "spool" / "0.seg").stat().st_size
        one.publish([A, B])
        torn = (tmp_path / "spool" / "0.seg").read_bytes()
    for end in range(size, len(torn)):
        place = spool(tmp_path / f"{end}", {0: torn[:end].ljust(size + 700, b"\0")})
        notes: list[str] = []
        # A block has no checksum, so that a frame of the torn one may come out whole.
        assert left_in(place, notes) in ([A, B], [A, B, A], [A, B, A, B])
        assert notes


def test_damage_in_the_middle_of_a_compressed_segment_keeps_what_stands_before(
    tmp_path: Path,
) -> None:
    settings = SpoolSettings(max_size=2**20, segment_size=2**16, options=Options.COMPRESSED)
    with Spool(tmp_path / "spool", settings) as one:
        one.publish([A])
        size = (tmp_path / "spool" / "0.seg").stat().st_size
        one.publish([B])
    path = tmp_path / "spool" / "0.seg"
    data = bytearray(path.read_bytes())
    data[size + 20] ^= 0xFF
    path.write_bytes(data)
    (tmp_path / "spool" / "1.seg").write_bytes(sealed([b"next"]))
    notes: list[str] = []
    with opened(tmp_path / "spool", notes) as one:
        found = [p for batch in read_all(one) for p in batch.payloads]
    assert found[0] == A
    assert found[-1] == b"next"
    assert notes


def test_nothing_but_bad_data_or_a_bad_key_stops_the_start(tmp_path: Path) -> None:
    """Every cut of a segment opens, and gives the frames before the cut."""
    for end in range(len(vectors.PLAIN) + 1):
        place = spool(tmp_path / str(end), {0: vectors.PLAIN[:end]})
        try:
            found = left_in(place)
        except BadData as error:  # pragma: no cover - the message is the finding
            pytest.fail(f"cut at {end}: {error}")
        assert found == [A, B][: (end >= 91) + (end >= 220)]
