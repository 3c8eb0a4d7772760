"""What must hold for any bytes at all where version 2 of the protocol is spoken."""

from __future__ import annotations

from penstock.errors import BadData, CorruptData, InvalidValue
from penstock.protocol import version2 as v2
from penstock.protocol.frames import Frame, FrameReader, encode_frame
from protocol.version2_samples import ANSWERS, REQUESTS

_SAMPLES = [
    *((kind, bytes.fromhex(text)) for _, kind, text in REQUESTS),
    *((kind, bytes.fromhex(text)) for _, kind, text in ANSWERS),
]

SEEDS: list[bytes] = [
    *(encode_frame(kind, number, body) for number, (kind, body) in enumerate(_SAMPLES)),
    b"".join(encode_frame(kind, 1, body) for kind, body in _SAMPLES if len(body) < 20),
]

SIZE_MAX = 500  # below what a fuzzer sends, so that both sides of it are tried


def check(data: bytes) -> None:
    """Take ``data`` as a stream, in one piece and in many, and judge every frame of it both ways."""
    expected, is_refused, held = _cut(data)
    _check_pieces([data], expected, is_refused, held)
    size = 1 + sum(data[:2]) % 40  # the bytes themselves say how they are split
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    _check_pieces(pieces, expected, is_refused, held)
    for kind, number, body in expected:
        check_request(kind, number, body)
        check_answer(kind, number, body)


def _cut(data: bytes) -> tuple[list[Frame], bool, int]:
    """Return the frames of a stream the simplest way, whether a length ends it, and what is left over."""
    frames: list[Frame] = []
    while len(data) >= 4:
        size = int.from_bytes(data[:4], "big")
        if size < 5 or size > SIZE_MAX:
            return frames, True, 0
        if len(data) < 4 + size:
            break
        frames.append((data[4], int.from_bytes(data[5:9], "big"), data[9 : 4 + size]))
        data = data[4 + size :]
    return frames, False, len(data)


def _check_pieces(pieces: list[bytes], expected: list[Frame], is_refused: bool, held: int) -> None:
    reader = FrameReader(SIZE_MAX)
    found: list[Frame] = []
    try:
        for piece in pieces:
            found += reader.receive(piece)
            assert reader.held < 4 + SIZE_MAX
    except CorruptData:
        assert is_refused
        assert found == expected[: len(found)]  # those cut with the bad length are lost with it
    else:
        assert not is_refused
        assert found == expected
        assert reader.held == held


def check_request(kind: int, number: int, body: bytes) -> None:
    """Decode a request; what comes out must survive its own bytes."""
    try:
        request = v2.decode_request(kind, body)
    except (BadData, InvalidValue) as error:
        str(error)
        return
    [(kind_again, number_again, again)] = FrameReader().receive(v2.encode_request(request, number))
    assert (kind_again, number_again) == (kind, number)
    assert v2.decode_request(kind, again) == request, f"{request} does not survive its own bytes"


def check_answer(kind: int, number: int, body: bytes) -> None:
    """Decode an answer; what comes out must survive its own bytes."""
    try:
        answer = v2.decode_answer(kind, body)
    except BadData as error:
        str(error)
        return
    [(kind_again, number_again, again)] = FrameReader().receive(v2.encode_answer(answer, number))
    assert (kind_again, number_again) == (kind, number)
    assert v2.decode_answer(kind, again) == answer, f"{answer} does not survive its own bytes"
