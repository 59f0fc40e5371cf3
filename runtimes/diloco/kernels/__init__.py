"""Loops over fragments in C, for numpy arrays: one pass each, at the speed of memory, and outside of Python's global lock.

The C code keeps no state, allocates nothing and rounds every operation as numpy's float32 does, so results are the same bytes on every
processor. `runtimes/hatch_build.py` compiles it when the package is built, and writes down its digest. The digest is checked here, because
a process that loads a truncated library dies of SIGBUS without a message.

See docs/decisions/0062-merge-numerics.md.
"""

from __future__ import annotations

import ctypes
import enum
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Indices = NDArray[np.uintp]

LIBRARY: Final = Path(__file__).with_name("libkernels.so")
DIGEST: Final = LIBRARY.with_name("libkernels.so.sha256")
"""File with the digest of the library, in hexadecimal."""

_POINTER, _SIZE, _FLOAT, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float, ctypes.c_int


class Status(enum.IntEnum):
    """What a loop reports. The numbers are those of kernels.c."""

    OK = 0
    INPUT_NOT_FINITE = 1
    RESULT_NOT_FINITE = 2


class Mode(enum.IntEnum):
    """What becomes of a decoded value v. The numbers are those of kernels.c."""

    PLAIN = 0
    """v"""
    NEGATED = 1
    """-v"""
    ADDED = 2
    """base + v"""
    SUBTRACTED = 3
    """base - v"""


_SIGNATURES: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "finite": (_INT, (_POINTER, _SIZE)),
    "encode_bfloat16": (_INT, (_POINTER, _POINTER, _SIZE, _POINTER)),
    "encode_int4": (_INT, (_POINTER, _POINTER, _SIZE, _POINTER, _POINTER)),
    "place_float32": (_INT, (_POINTER, _SIZE, _POINTER, _POINTER, _INT, _POINTER, _POINTER)),
    "place_bfloat16": (_INT, (_POINTER, _SIZE, _POINTER, _POINTER, _INT, _POINTER, _POINTER)),
    "place_int4": (_INT, (_POINTER, _POINTER, _SIZE, _POINTER, _POINTER, _INT, _POINTER, _POINTER)),
    "cut_int4": (None, (_POINTER, _POINTER, _SIZE, _SIZE, _POINTER, _SIZE)),
    "mark_blocks": (None, (_POINTER, _SIZE, _SIZE, _POINTER)),
    "add_int4_runs": (_INT, (_POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _SIZE)),
    "squares": (ctypes.c_double, (_POINTER, _SIZE)),
    "combine": (ctypes.c_double, (_POINTER, _POINTER, _SIZE, _SIZE, _SIZE, _FLOAT, _POINTER)),
    "nesterov": (_INT, (_POINTER, _POINTER, _POINTER, _SIZE, _FLOAT, _FLOAT, _POINTER, _POINTER)),
}
"""Result and arguments of each loop, as kernels.c declares them."""


def _load() -> ctypes.CDLL:
    try:
        if hashlib.sha256(LIBRARY.read_bytes()).hexdigest().encode() != DIGEST.read_bytes().strip():
            raise _unusable(f"{LIBRARY} is not as it was built: it is damaged, or from another build")
        return ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise _unusable(error) from error


def _function(name: str, result: Any, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    try:
        function = getattr(_library, name)
    except AttributeError as error:
        raise _unusable(error) from error
    function.restype, function.argtypes = result, arguments
    typed: Callable[..., Any] = function
    return typed


def _unusable(why: object) -> ImportError:
    return ImportError(
        f"the compiled loops cannot be used ({why}). In a checkout run `rm -f {LIBRARY}; make setup`; elsewhere install diloco again."
    )


def _bound(level: int) -> dict[str, Callable[..., Any]]:
    """Return the loops that are compiled for a level of the processor."""
    return {name: _function(f"diloco_{name}_v{level}", *signature) for name, signature in _SIGNATURES.items()}


_library: Final = _load()
LEVELS: Final = (1, 3, 4)
"""Levels of processors: 3 is x86-64-v3. Other architectures have only level 1."""
LEVEL: Final[int] = _function("diloco_level", _INT, ())()
"""The level of this processor."""
_loops = _bound(LEVEL)


def finite(x: Floats) -> bool:
    return bool(_loops["finite"](_at(x, np.float32, x.size), x.size))


def encode_bfloat16(x: Floats, base: Floats | None, out: NDArray[np.uint16]) -> Status:
    """Write `x`, or `x - base` if there is a base, in bfloat16 into `out`: nearest, ties to even. RESULT_NOT_FINITE if a value is too large
    for bfloat16."""
    n = out.size
    return Status(
        _loops["encode_bfloat16"](_at(x, np.float32, n), _at_or_null(base, np.float32, n), n, _at(out, np.uint16, n, written=True))
    )


def encode_int4(x: Floats, base: Floats | None, scales: Floats, packed: Bytes) -> Status:
    """Write `x`, or `x - base` if there is a base, in blocks of 256: one of `scales` for each block, two values to a byte of `packed`."""
    n = x.size
    return Status(
        _loops["encode_int4"](
            _at(x, np.float32, n),
            _at_or_null(base, np.float32, n),
            n,
            _at(scales, np.float32, -(-n // 256), written=True),
            _at(packed, np.uint8, (n + 1) // 2, written=True),
        )
    )


class Squares:
    """The sums of squares of consecutive tensors in one array, in float64. The `place` functions fill them in."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """`sizes`: number of values of each tensor. Raises ValueError for an empty tensor."""
        if any(size < 1 for size in sizes):
            raise ValueError(f"an empty tensor has no squares: {list(sizes)}")
        self.ends = np.cumsum(sizes, dtype=np.uintp)
        self.sums = np.zeros(len(sizes), np.float64)


def place_float32(x: Floats, base: Floats, out: Floats | None, mode: Mode, squares: Squares | None = None) -> Status:
    """Write `base + x` or `base - x` into `out`, which may be `base`, or is None if only `squares` are wanted."""
    if mode not in (Mode.ADDED, Mode.SUBTRACTED):
        raise ValueError(f"float32 values are their own decoded form: nothing to do for {mode.name}")
    n = base.size
    return Status(
        _loops["place_float32"](_at(x, np.float32, n), n, _at(base, np.float32, n), _out_or_null(out, n), mode, *_sums(squares, n))
    )


def place_bfloat16(
    coded: NDArray[np.uint16], base: Floats | None, out: Floats | None, mode: Mode, squares: Squares | None = None
) -> Status:
    """Decode into `out`, which may be `base`, or is None if only `squares` are wanted. The modes ADDED and SUBTRACTED need `base`."""
    n = coded.size
    return Status(
        _loops["place_bfloat16"](_at(coded, np.uint16, n), n, _base(base, mode, n), _out_or_null(out, n), mode, *_sums(squares, n))
    )


def place_int4(
    scales: Floats, packed: Bytes, n: int, base: Floats | None, out: Floats | None, mode: Mode, squares: Squares | None = None
) -> Status:
    """Decode `n` values into `out`, which may be `base`, or is None if only `squares` are wanted. ADDED and SUBTRACTED need `base`."""
    return Status(
        _loops["place_int4"](
            _at(scales, np.float32, -(-n // 256)),
            _at(packed, np.uint8, (n + 1) // 2),
            n,
            _base(base, mode, n),
            _out_or_null(out, n),
            mode,
            *_sums(squares, n),
        )
    )


class Runs:
    """Elements of a vector, in runs of equal length. The bounds are checked here, because the C code does not check them."""

    def __init__(self, starts: Indices, length: int, n: int) -> None:
        """Runs of `length` elements that begin at `starts` in a vector of `n`. Raises ValueError for elements beyond it."""
        if length < 1 or starts.size < 1 or starts.max() > n - length or length > n:
            raise ValueError(f"runs of {length} elements are not within a vector of {n}")
        self.starts, self.length, self.n = starts, length, n

    @property
    def size(self) -> int:
        """Elements of all runs together."""
        return self.starts.size * self.length

    def arguments(self) -> tuple[int, int, int]:
        """Return the runs as arguments of the loops."""
        return _at(self.starts, np.uintp, self.starts.size), self.starts.size, self.length


def cut_int4(packed: Bytes, runs: Runs, out: Bytes, at: int) -> None:
    """Copy the levels of `runs` from a vector to another, `out`, from its element `at` on. Both are packed two levels to a byte."""
    _loops["cut_int4"](
        _at(packed, np.uint8, (runs.n + 1) // 2), *runs.arguments(), _at(_with_room(out, runs, at, 2), np.uint8, out.size, written=True), at
    )


def mark_blocks(runs: Runs, marked: Bytes) -> None:
    """Set to 1 the entry in `marked` of each block of 256 elements that the runs touch."""
    _loops["mark_blocks"](*runs.arguments(), _at(marked, np.uint8, -(-runs.n // 256), written=True))


def add_int4_runs(scales: Floats, packed: Bytes, runs: Runs, base: Floats, out: Floats, at: int) -> Status:
    """Write `base` plus the decoded values into `out`, which may be `base`.

    `packed`, `base` and `out` hold one run after the other, from their element `at` on. `scales` has one scale for each block of the whole
    vector.
    """
    return Status(
        _loops["add_int4_runs"](
            _at(scales, np.float32, -(-runs.n // 256)),
            _at(_with_room(packed, runs, at, 2), np.uint8, packed.size),
            *runs.arguments(),
            _at(_with_room(base, runs, at, 1), np.float32, out.size),
            _at(out, np.float32, out.size, written=True),
            at,
        )
    )


def squares(x: Floats) -> float:
    """Return the sum of the squares, in float64."""
    return float(_loops["squares"](_at(x, np.float32, x.size), x.size))


class Vector(ctypes.Structure):
    """A vector that `combine` adds up: values, or a payload, which `combine` decodes. Made by the class methods."""

    _fields_ = (("data", _POINTER), ("other", _POINTER), ("kind", ctypes.c_int64))
    size: int
    _arrays: tuple[NDArray[Any] | None, ...]
    """Keeps the arrays alive that the structure points to."""

    @classmethod
    def _of(cls, kind: int, n: int, data: NDArray[Any], items: int, other: Floats | None, others: int) -> Vector:
        made = cls(_at(data, data.dtype.type, items), _at_or_null(other, np.float32, others), kind)
        made.size, made._arrays = n, (data, other)
        return made

    @classmethod
    def of_values(cls, x: Floats) -> Vector:
        return cls._of(0, x.size, _typed(x, np.float32), x.size, None, 0)

    @classmethod
    def of_float32(cls, value: Floats, anchor: Floats) -> Vector:
        """The vector `anchor - value`."""
        return cls._of(1, value.size, _typed(value, np.float32), value.size, anchor, value.size)

    @classmethod
    def of_bfloat16(cls, delta: NDArray[np.uint16]) -> Vector:
        """The vector `-delta`."""
        return cls._of(2, delta.size, _typed(delta, np.uint16), delta.size, None, 0)

    @classmethod
    def of_int4(cls, scales: Floats, packed: Bytes, n: int) -> Vector:
        """The vector `-delta`, of `n` values."""
        return cls._of(3, n, _typed(packed, np.uint8), (n + 1) // 2, scales, -(-n // 256))


def combine(vectors: Sequence[Vector], factors: Sequence[float], divisor: float, out: Floats, begin: int = 0) -> float:
    """Compute `out = (sum of factor * vector) / divisor` in float32, added in order, for the vectors' elements from `begin` on, as many as
    `out` has. Returns the sum of the squares of `out`, in float64."""
    n = out.size
    if not vectors or len(vectors) != len(factors):
        raise ValueError(f"{len(vectors)} vectors with {len(factors)} factors cannot be combined")
    if begin < 0 or any(vector.size < begin + n for vector in vectors):
        raise ValueError(f"vectors of {[vector.size for vector in vectors]} have no {n} elements from {begin}")
    given = (Vector * len(vectors))(*vectors)
    scalars = (_FLOAT * len(factors))(*factors)
    return float(_loops["combine"](given, scalars, len(vectors), begin, n, divisor, _at(out, np.float32, n, written=True)))


def nesterov(delta: Floats, momentum: Floats, onto: Floats | None, mu: float, rate: float, buffer: Floats, out: Floats) -> Status:
    """Compute `buffer = mu * momentum + delta; out = onto - rate * (delta + mu * buffer)`. If `onto` is None, it counts as 0."""
    n = out.size
    return Status(
        _loops["nesterov"](
            _at(delta, np.float32, n),
            _at(momentum, np.float32, n),
            _at_or_null(onto, np.float32, n),
            n,
            mu,
            rate,
            _at(buffer, np.float32, n, written=True),
            _at(out, np.float32, n, written=True),
        )
    )


def _with_room[T: np.generic](x: NDArray[T], runs: Runs, at: int, per_item: int) -> NDArray[T]:
    """Return `x` if it has room for the runs from element `at` on, with `per_item` elements in each item. Raises ValueError if not."""
    if at < 0 or x.size * per_item < at + runs.size:
        raise ValueError(f"an array of {x.size} has no room for {runs.size} elements from {at}")
    return x


def _sums(squares: Squares | None, n: int) -> tuple[int | None, int | None]:
    if squares is None:
        return None, None
    tensors = squares.ends.size
    if not tensors or squares.ends[-1] != n:
        raise ValueError(f"the tensors have {squares.ends[-1] if tensors else 0} values, the array {n}")
    return _at(squares.ends, np.uintp, tensors), _at(squares.sums, np.float64, tensors, written=True)


def _base(base: Floats | None, mode: Mode, n: int) -> int | None:
    if mode in (Mode.ADDED, Mode.SUBTRACTED):
        if base is None:
            raise ValueError(f"mode {mode.name} needs a base")
        return _at(base, np.float32, n)
    return None


def _typed[T: np.generic](x: NDArray[T], dtype: type[np.generic]) -> NDArray[T]:
    """Return `x`. Raises TypeError if it has another type than `dtype`."""
    if x.dtype != dtype:
        raise TypeError(f"expected a vector of {np.dtype(dtype).name}, not of {x.dtype}")
    return x


def _out_or_null(out: Floats | None, n: int) -> int | None:
    return None if out is None else _at(out, np.float32, n, written=True)


def _at_or_null(x: Floats | None, dtype: type[np.generic], size: int) -> int | None:
    return None if x is None else _at(x, dtype, size)


def _at(x: NDArray[np.generic], dtype: type[np.generic], size: int, *, written: bool = False) -> int:
    """Return the address of `x`. Raises TypeError unless it is a contiguous vector of this type and size, because the C code checks
    nothing."""
    if x.dtype != dtype or x.shape != (size,) or not x.flags.c_contiguous or not x.flags.aligned or (written and not x.flags.writeable):
        state = "" if x.flags.writeable else "read-only "
        raise TypeError(f"expected a contiguous vector of {size} {np.dtype(dtype).name}, not a {state}{x.dtype} array of shape {x.shape}")
    return x.ctypes.data
