"""One segment of a spool: written by one, read by the other, told apart by what is durable of it.

Positions are logical: they count the header and the frames as they are before compression and encryption.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

from penstock.binary import Bytes
from penstock.errors import BadData, InvalidValue
from penstock.formats.beats.body import IV_RANDOM_SIZE, BodyDecoder, BodyEncoder, marked_iv
from penstock.formats.beats.frame import BadStretch, Frame, FrameReader, StretchKind, encode_frames
from penstock.formats.beats.frame_run import RunEnd, take_frames
from penstock.formats.beats.segment import (
    COUNT_OFFSET,
    Header,
    Options,
    PayloadFormat,
    decode_header,
    encode_header,
)
from penstock.storage.files import NO_ROOM, File, Files

CHUNK: Final = 2**18
"""Bytes that a cursor reads at a time: few enough to stay in a cache while they are taken apart."""

CODED_CHUNK: Final = 2**16
"""The same of a compressed segment: LZ4 makes up to 255 times as much of it."""

WRITTEN_VERSION: Final = 2
HEADER_MAX: Final = 12
_COUNT: Final = Struct("<I")


def new_iv(key: bytes) -> bytes:
    """Return an initialization vector for one segment. It must never be used again."""
    return marked_iv(os.urandom(IV_RANDOM_SIZE), key)


def encode_count(count: int) -> bytes:
    """Return a number of frames the way a header holds it."""
    return _COUNT.pack(count)


@dataclass(frozen=True, slots=True)
class Place:
    """How far a segment is written."""

    durable_size: int
    logical_size: int
    count: int


class SegmentWriter:
    """The segment that is being written. Whatever fails here is its owner's to judge: nothing is caught.

    After ``append`` has failed only ``cut_back``, ``remove`` and ``close`` make sense.
    """

    def __init__(self, files: Files, path: Path, options: Options, key: bytes | None) -> None:
        """Make the file. Raises ``FileExistsError``: a number is never used twice."""
        iv = None
        if options & Options.ENCRYPTED:
            assert key is not None, "the settings were checked"
            iv = new_iv(key)
        self.header = Header(WRITTEN_VERSION, 0, options)
        self._encoder = BodyEncoder(options, key=key, iv=iv)
        self._unwritten: list[Bytes] = [encode_header(self.header), self._encoder.begin()]
        self._files = files
        self.path = path
        self._file = files.create(path)
        self._is_named = False  # its name is durable
        self._is_sealed = False
        self.durable_size = 0  # of the file
        self.logical_size = self.header.size
        self.count = 0

    def append(self, payloads: Sequence[bytes]) -> None:
        """Write frames, and return when they are durable."""
        assert not self._is_sealed
        frames = encode_frames(payloads)
        pieces = [*self._unwritten, self._encoder.encode(frames)]
        self._file.write(self.durable_size, pieces)
        self._file.sync()
        if not self._is_named:
            self._files.sync_directory(self.path.parent)
            self._is_named = True
        self._unwritten = []
        self.durable_size += sum(map(len, pieces))
        self.logical_size += len(frames)
        self.count += len(payloads)

    def place(self) -> Place:
        """Return how far it is written, for ``cut_back``."""
        return Place(self.durable_size, self.logical_size, self.count)

    def cut_back(self, place: Place) -> None:
        """Take back what was written since. The segment ends there: a coded body cannot be gone on with."""
        self.durable_size, self.logical_size = place.durable_size, place.logical_size
        self.count = place.count
        self._is_sealed = True
        self._file.truncate(self.durable_size)
        self._file.sync()
        self._write_count()

    def remove(self) -> None:
        """Take the whole segment back."""
        self._file.close()
        self._files.remove(self.path)
        self._files.sync_directory(self.path.parent)

    def seal(self) -> None:
        """End the segment, unless it is ended. The count is written now that all frames are durable."""
        if self._is_sealed:
            return
        self._is_sealed = True
        ending = self._encoder.end()
        try:
            if ending:
                self._file.write(self.durable_size, [ending])
        except OSError as error:
            # A reader does without an end mark, and so a full disk does too.
            if error.errno not in NO_ROOM:
                raise
            self._file.truncate(self.durable_size)
        else:
            self.durable_size += len(ending)
        self._write_count()

    def _write_count(self) -> None:
        """Write down how many frames there are. Nobody relies on it, so a full disk is no failure."""
        try:
            self._file.write(COUNT_OFFSET, [encode_count(self.count)])
            self._file.sync()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def close(self) -> None:
        """Let the file go. A segment that was not sealed is one that a crash has left."""
        self._file.close()


class SegmentCursor:
    """Reads the frames of a segment in order, as far as it is allowed to.

    Flawless frames are taken in runs. From the first flaw on the careful decoder reads the segment to its end.
    """

    def __init__(self, file: File, path: Path, *, key: bytes | None) -> None:
        """Read the header. Raises ``BadData`` with the path, and ``InvalidValue`` if a key is needed."""
        self._file = file
        self.path = path
        try:
            self.header = decode_header(file.read(0, HEADER_MAX))
        except BadData as error:
            raise error.located(str(path)) from None
        if self.header.options & Options.ENCRYPTED and key is None:
            raise InvalidValue(f"{path}: is encrypted; name the file with its key")
        self._decoder = BodyDecoder(self.header.options, key=key)
        self._next_read = self.header.size
        self._is_plain = not self.header.options & (Options.ENCRYPTED | Options.COMPRESSED)
        self._data = b""  # decoded, not yet taken
        self._start = 0
        self._careful: FrameReader | None = None
        self._found: deque[Frame | BadStretch] = deque()
        self._is_ended = False  # all of a sealed segment was looked at
        self.offset = self.header.size  # where the next frame stands
        self.index = 0
        self.damage: list[BadStretch] = []

    @property
    def payload_format(self) -> PayloadFormat:
        return self.header.payload_format

    @property
    def torn_size(self) -> int:
        """How many of the last bytes of a coded body gave nothing: they are no whole block."""
        return self._decoder.torn_size

    @property
    def is_finished(self) -> bool:
        """Whether a sealed segment was taken to its end."""
        return self._is_ended and not self._found

    def take(
        self, count_max: int, *, size: int, is_sealed: bool, index_max: int | None = None
    ) -> list[bytes]:
        """Return payloads from the first ``size`` bytes of the file, none only if there are no more in these.

        ``is_sealed``: nothing will follow, so that what is left at the end is damage. ``index_max``: frames of
        the segment to pass at most, from its beginning.
        """
        payloads: list[bytes] = []
        while len(payloads) < count_max and (index_max is None or self.index < index_max):
            if self._careful is None:
                left = count_max - len(payloads)
                if index_max is not None:
                    left = min(left, index_max - self.index)
                more, why = self._take_run(left)
                payloads += more
                if why is RunEnd.NEEDS_MORE:
                    if self._fill(size):
                        continue
                    if not is_sealed:
                        break
                if why is not RunEnd.ENOUGH:
                    self._begin_to_be_careful()
            elif self._found:
                self._take_found(payloads)
            elif not self._feed(self._careful, size, is_sealed=is_sealed):
                break
        return payloads

    def skip_to(self, offset: int, index: int | None, *, size: int) -> bool:
        """Go to a place in this sealed segment. Return whether a frame ends there, the one before ``index``.

        ``index``: ``None`` where it is not known. After a ``False`` begin anew: the place may have been passed.
        """
        while self.offset < offset and not self.is_finished:
            if self._careful is None:
                # Without a flaw every frame counts, so that this many lead there.
                ahead = 1 if index is None else max(1, index - self.index)
                _, why = self._take_run(ahead)
                if why is RunEnd.ODD or (why is RunEnd.NEEDS_MORE and not self._fill(size)):
                    self._begin_to_be_careful()
            elif self._found:
                self._take_found([])
            else:
                self._feed(self._careful, size, is_sealed=True)
        return self.offset == offset and index in (None, self.index)

    def begins_with_a_frame(self, *, size: int) -> bool:
        """Return whether a sound frame is the first thing in the first ``size`` bytes of the file.

        For a cursor at its start. Nothing is searched for: with a wrong key this ends after a few bytes.
        """
        while True:
            payloads, why = self._take_run(1)
            is_cut = why is RunEnd.NEEDS_MORE
            if payloads or not is_cut or not self._fill(size) or self._decoder.finish() is not None:
                return bool(payloads)

    def _take_run(self, count_max: int) -> tuple[list[bytes], RunEnd]:
        start = self._start
        payloads, self._start, why = take_frames(self._data, start, count_max)
        self.offset += self._start - start
        self.index += len(payloads)
        return payloads, why

    def _take_found(self, payloads: list[bytes]) -> None:
        found = self._found.popleft()
        self.offset = found.offset + found.size
        if isinstance(found, Frame):
            self.index = found.index + 1
            payloads.append(found.payload)
            return
        self.index = found.index + (found.kind is StretchKind.FRAME)
        self.damage.append(found)

    def _fill(self, size: int) -> bool:
        """Add a chunk to the data. Return whether there was one."""
        if self._next_read >= size:
            return False
        chunk = self._read(size)
        left = self._data[self._start :]
        self._data, self._start = (left + chunk if left else chunk), 0
        return True

    def _read(self, size: int) -> bytes:
        # A frame that is larger than a chunk is gathered in ever larger ones, not in ever more.
        at_once = max(CHUNK, len(self._data)) if self._is_plain else CODED_CHUNK
        raw = self._file.read(self._next_read, min(at_once, size - self._next_read))
        # A file that is shorter than it was is at its end too.
        self._next_read = self._next_read + len(raw) if raw else size
        return raw if self._is_plain else b"".join(self._decoder.feed(raw))

    def _begin_to_be_careful(self) -> None:
        self._careful = FrameReader(self.offset, index=self.index)
        left, self._data, self._start = self._data[self._start :], b"", 0
        self._found.extend(self._careful.feed(left, is_last=False))

    def _feed(self, careful: FrameReader, size: int, *, is_sealed: bool) -> bool:
        """Give the careful decoder more. Return whether there was any."""
        if self._next_read < size:
            self._found.extend(careful.feed(self._read(size), is_last=False))
            return True
        if not is_sealed or self._is_ended:
            return False
        self._is_ended = True
        self._found.extend(careful.feed(b"", is_last=True))
        problem = self._decoder.finish()
        if problem is not None:
            place = (careful.offset, 0, careful.index)
            self._found.append(BadStretch(StretchKind.TAIL, *place, reason=problem, data=b""))
        return True

    def close(self) -> None:
        self._file.close()
