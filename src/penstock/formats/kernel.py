"""How the bulk scanners are compiled: by numba, when they are first used, and kept on disk.

A kernel is a plain function in the module that owns its byte layout. It is composed of other plain functions of
ours, of ``kernel_bytes`` above all: they run interpreted as they are, and ``compiled`` compiles them together.
Where the interpreter has a faster way that numba does not know, the kernel calls that, and gets another function in
its place when it is compiled: ``Struct.unpack_from`` by itself, a function of ours if ``compiled_as`` says which.
Import of the package stays light: numba and numpy load here, on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dis import get_instructions
from functools import cache
from hashlib import sha256
from struct import Struct
from types import BuiltinMethodType, FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.binary import Bytes
from penstock.errors import needing
from penstock.formats import kernel_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

BATCH_ROWS: Final = 16_384
"""Rows per batch of columns: large enough to spread a call's cost, small enough for the cache."""


def bulk() -> AbstractContextManager[None]:
    """Wrap the imports of numpy and numba by a bulk scan. Raises ``DependencyMissing``."""
    return needing("tables", "reading files in bulk")


@cache
def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the machine code of ``kernel`` and of what it calls. Needs numba, which the ``tables`` extra brings."""
    with bulk():
        from numba import njit

    linked = _linked(kernel)
    try:
        function: Callable[..., Any] = njit(cache=True, **_OPTIONS)(linked)
        _check_cache(function, kernel)
    except (RuntimeError, OSError):
        # No directory to keep the machine code in: every process compiles it again.
        function = njit(**_OPTIONS)(linked)
    return function


_OPTIONS: Final[dict[str, Any]] = {"nogil": True, "_nrt": False}
"""A kernel allocates nothing, so it counts no references to its arrays: each call of a part would change the counts."""

_PART_OPTIONS: Final = _OPTIONS | {
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""Inlined always: the compiler leaves some calls as they are, which made a scan of a log take twice as long.

Nothing but a kernel calls a part, so it needs no wrappers; they would take as long to compile as the part.
"""


_forms: Final[dict[object, FunctionType]] = {}


def compiled_as(form: Any) -> Callable[[T], T]:
    """Have compiled kernels call ``form``, a plain function, wherever interpreted ones call the decorated one."""

    def note(function: T) -> T:
        _forms[function] = form
        return function

    return note


@cache
def _part(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that kernels call, for numba to compile with each of them."""
    from numba import njit

    part: Callable[..., Any] = njit(**_PART_OPTIONS)(_linked(function))
    return part


def _linked(function: Any) -> FunctionType:
    """Return ``function`` with the parts in place of the plain functions that it calls, which numba does not take."""
    parts = {
        name: _unpacking(value.__self__.format) if _is_unpacking(value) else _part(value)
        for name, value in _globals(function).items()
        if isinstance(value, FunctionType) or _is_unpacking(value)
    }
    scope = function.__globals__ | parts
    linked = FunctionType(function.__code__, scope, function.__name__, None, function.__closure__)
    linked.__qualname__ = function.__qualname__
    return linked


def _globals(function: FunctionType) -> dict[str, Any]:
    """Return the names of its module that the code of ``function`` refers to, and what a compiled one has there."""
    scope = function.__globals__
    loads = (step for step in get_instructions(function.__code__) if step.opname == "LOAD_GLOBAL")
    found = {step.argval: scope[step.argval] for step in loads if step.argval in scope}
    return {
        name: _forms.get(value, value) if isinstance(value, FunctionType) else value
        for name, value in found.items()
    }


def _is_unpacking(value: object) -> bool:
    return isinstance(value, BuiltinMethodType) and isinstance(value.__self__, Struct)


@cache
def _unpacking(form: str) -> Callable[..., Any]:
    """Return what ``unpack_from`` of a ``Struct`` does, for kernels: a tuple of the fields from a place on."""
    from numba import njit, uint64

    part = njit(**_PART_OPTIONS)
    i64, u32, signed = _part(kernel_bytes.i64), _part(kernel_bytes.u32), _part(kernel_bytes.signed)
    little, little_i64 = _part(kernel_bytes.u32_little), _part(kernel_bytes.i64_little)
    readers: dict[str, Callable[..., Any]] = {
        ">B": part(lambda data, at: data[at] * 1),
        ">H": _part(kernel_bytes.u16),
        ">I": u32,
        ">i": part(lambda data, at: signed(u32(data, at))),
        ">q": i64,
        ">Q": part(lambda data, at: uint64(i64(data, at))),
        "<B": part(lambda data, at: data[at] * 1),
        "<H": part(lambda data, at: data[at] + data[at + 1] * 0x100),
        "<I": little,
        "<i": part(lambda data, at: signed(little(data, at))),
        "<q": little_i64,
        "<Q": part(lambda data, at: uint64(little_i64(data, at))),
    }
    unpack: Callable[..., Any] = part(lambda data, at: ())  # noqa: ARG005
    for field in [form[0] + letter for letter in reversed(form[1:])]:
        unpack = _preceded(readers[field], Struct(field).size, unpack)
    return unpack


def _preceded(read: Any, size: int, rest: Any) -> Any:
    """Return what reads one field, of ``size`` bytes, and then the rest."""
    from numba import njit

    return njit(**_PART_OPTIONS)(lambda data, at: (read(data, at), *rest(data, at + size)))


def _contents(function: FunctionType) -> Iterator[object]:
    """Yield all that the machine code of ``function`` is made of: code and constants, also of what it calls."""
    yield function.__code__.co_code
    yield function.__code__.co_consts
    for name, value in _globals(function).items():
        yield name
        if isinstance(value, FunctionType):
            yield from _contents(value)
        else:
            yield value.__self__.format if _is_unpacking(value) else value


def _check_cache(function: Any, kernel: Any) -> None:
    """Have the machine code on disk used only while all it was made of is the same; raise ``OSError`` without a place.

    Numba looks at the kernel's own file, but not at those that its parts and constants come from. It tries a
    directory before it chooses it, but not the one for a module in a zip, which is how Spark ships packages:
    that one would fail when the kernel is first called.
    """
    kept = function._cache  # noqa: SLF001 - nothing public asks for it
    kept._impl.locator.ensure_cache_path()  # noqa: SLF001
    file = kept._cache_file  # noqa: SLF001
    digest = sha256(repr([_OPTIONS, _PART_OPTIONS, *_contents(kernel)]).encode()).hexdigest()
    file._source_stamp = file._source_stamp, digest  # noqa: SLF001


def scan_in_batches(
    kernel: Callable[..., Any],
    data: Bytes | NDArray[np.uint8],
    *arguments: int,
    start: int,
    stop: int | None,
    size: int | None,
    fields: int,
    make: Callable[[NDArray[np.int64]], T],
    room: Callable[[int], int],
    batch_rows: int,
) -> Generator[T, None, int]:
    """Yield what ``make`` makes of each batch of rows that a kernel finds from ``start`` on; return where it ended.

    The kernel takes the buffer, ``arguments``, position, stop, end, size and rows, an array for each of ``fields``,
    and returns how many rows it wrote, its position, and whether more are to come. ``room`` tells the most rows that
    so many bytes can hold.
    """
    with bulk():
        import numpy as np

    buffer = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    kernel = compiled(kernel)
    end = len(buffer)
    size = end if size is None else size
    stop = size if stop is None else stop
    position, is_full = start, True
    while is_full:
        most = max(1, min(batch_rows, room(end - position)))
        rows = np.empty((fields, most), dtype=np.int64)
        count, position, is_full = kernel(buffer, *arguments, position, stop, end, size, rows)
        if count:
            yield make(rows[:, :count])
    return int(position)
