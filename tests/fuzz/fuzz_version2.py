"""Fuzzes the frames of version 2 and what they mean; run by ``scripts/fuzz``.

Bytes changed at random mostly break a length, and the fuzzer would spend its time on that. Most changes are
therefore made inside one frame of a stream, whose length is then made to fit.
"""

from __future__ import annotations

from random import Random

from fuzz.driver import fuzz, instrumented, load_atheris

_KINDS = b"EDANXSUPZCRQIMHedapzqimkx"


def mutate(data: bytes, size_max: int, seed: int) -> bytes:
    """Return ``data`` changed: one frame of four times out of five, anything else otherwise."""
    random = Random(seed)
    change = load_atheris().Mutate
    frames = split(data)
    if not frames or random.random() < 0.2:
        return bytes(change(data, size_max))
    place = random.randrange(len(frames))
    kind, number, body = frames[place]
    match random.randrange(8):
        case 0:
            kind = random.choice(_KINDS)
        case 1:
            frames.insert(place, random.choice(frames))
        case 2 if len(frames) > 1:
            del frames[place]
            return joined(frames)[:size_max]
        case _:
            body = bytes(change(body, max(1, min(size_max - 9, 2 * len(body) + 16))))
    frames[place] = (kind, number, body)
    return joined(frames)[:size_max]


def split(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return (type, request id, body) of each whole frame."""
    frames = []
    while len(data) >= 9:
        end = 4 + int.from_bytes(data[:4], "big")
        if not 9 <= end <= len(data):
            break
        frames.append((data[4], data[5:9], data[9:end]))
        data = data[end:]
    return frames


def joined(frames: list[tuple[int, bytes, bytes]]) -> bytes:
    """Return the stream of these frames, with lengths that fit."""
    return b"".join(
        (5 + len(body)).to_bytes(4, "big") + bytes((kind,)) + number + body
        for kind, number, body in frames
    )


if __name__ == "__main__":
    fuzz(instrumented("fuzz.version2_check"), mutate)
