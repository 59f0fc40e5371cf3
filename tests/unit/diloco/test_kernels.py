"""The compiled loops: equal bytes on every level of the processor, and nothing that is not a vector of the right type and size."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from diloco import kernels
from diloco.kernels import Floats, Mode, Status
from numpy.linalg import _umath_linalg as _another_library

ON_THIS_MACHINE = [x for x in kernels.LEVELS if x <= kernels.LEVEL]


def vectors(n: int, count: int) -> list[Floats]:
    rng = np.random.default_rng(n)
    return [(rng.standard_normal(n) * 10.0 ** rng.integers(-20, 18, n)).astype(np.float32) for _ in range(count)]


def combined(n: int) -> bytes:
    out = np.empty(n, np.float32)
    squares = kernels.combine(list(map(kernels.Vector.of_values, vectors(n, 7))), [0.1, 1, 0.7, 1e-3, 3, 0.2, 0.3], 1.7, out)
    return out.tobytes() + np.float64(squares).tobytes()


def squares(n: int) -> bytes:
    return np.float64(kernels.squares(vectors(n, 1)[0])).tobytes()


def outer_step(n: int) -> bytes:
    delta, momentum, onto = vectors(n, 3)
    buffer, out = np.empty(n, np.float32), np.empty(n, np.float32)
    assert kernels.nesterov(delta, momentum, onto, 0.9, 0.7, buffer, out) is Status.OK
    return buffer.tobytes() + out.tobytes()


@pytest.mark.parametrize("loop", [combined, squares, outer_step])
@pytest.mark.parametrize("n", [1, 15, 16, 2049, 70_001])
def test_every_level_gives_the_same_bytes(loop: Callable[[int], bytes], n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = set()
    for level in ON_THIS_MACHINE:
        monkeypatch.setattr(kernels, "_loops", kernels._bound(level))
        given.add(loop(n))
    assert len(given) == 1


def test_sums_are_those_of_float64() -> None:
    (x,) = vectors(100_003, 1)
    # Each of the additions rounds by at most 2^-53; squares are exact in float64.
    assert kernels.squares(x) == pytest.approx(float(np.square(x.astype(np.float64)).sum()), rel=1e-11)


def test_terms_are_added_in_order_in_float32() -> None:
    arrays, factors = vectors(300, 6), [0.5, 0.3, 2.0, 1.0, 0.25, 0.1]
    expected = np.zeros(300, np.float32)
    for i, (array, factor) in enumerate(zip(arrays, factors, strict=True)):
        term = array * np.float32(factor)
        expected = term if i == 0 else expected + term
    out = np.empty(300, np.float32)
    kernels.combine(list(map(kernels.Vector.of_values, arrays)), factors, 3.0, out)
    assert out.tobytes() == (expected / np.float32(3)).tobytes()


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros(7, np.float32),
        np.zeros(8, np.float64),
        np.zeros((2, 4), np.float32),
        np.zeros(16, np.float32)[::2],
        np.frombuffer(b"?" + bytes(32), np.uint8)[1:].view(np.float32),
    ],
    ids=["size", "type", "shape", "stride", "alignment"],
)
def test_arrays_of_another_kind_never_reach_c(bad: Floats) -> None:
    good = np.zeros(8, np.float32)
    with pytest.raises(TypeError, match="expected a contiguous vector of 8 float32"):
        kernels.place_float32(bad, good, good.copy(), Mode.ADDED)
    with pytest.raises(TypeError):
        kernels.place_float32(good, good, bad, Mode.ADDED)


def test_read_only_arrays_are_not_written_to() -> None:
    x, out = np.zeros(8, np.float32), np.zeros(8, np.float32)
    out.flags.writeable = False
    with pytest.raises(TypeError, match="read-only"):
        kernels.combine([kernels.Vector.of_values(x)], [1.0], 1.0, out)


def test_a_mode_that_needs_a_base_says_so() -> None:
    with pytest.raises(ValueError, match="ADDED needs a base"):
        kernels.place_bfloat16(np.zeros(2, np.uint16), None, np.zeros(2, np.float32), Mode.ADDED)
    with pytest.raises(ValueError, match="PLAIN"):
        kernels.place_float32(np.zeros(2, np.float32), np.zeros(2, np.float32), np.zeros(2, np.float32), Mode.PLAIN)


@pytest.mark.parametrize("level", ON_THIS_MACHINE)
@pytest.mark.parametrize("sizes", [[1], [5000], [1, 15, 240, 256, 2049, 3, 4095], [2048, 2048, 7]])
def test_squares_on_the_way_are_those_of_each_tensor_afterwards(level: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_loops", kernels._bound(level))
    n = sum(sizes)
    x, base = vectors(n, 2)
    half = np.empty(n, np.uint16)
    scales, packed = np.empty(-(-n // 256), np.float32), np.empty((n + 1) // 2, np.uint8)
    assert kernels.encode_bfloat16(x, None, half) is kernels.encode_int4(x, None, scales, packed) is Status.OK
    places: list[Callable[[Floats, kernels.Squares], Status]] = [
        lambda out, found: kernels.place_float32(x, base, out, Mode.SUBTRACTED, found),
        lambda out, found: kernels.place_bfloat16(half, None, out, Mode.NEGATED, found),
        lambda out, found: kernels.place_int4(scales, packed, x.size, base, out, Mode.ADDED, found),
    ]
    for place in places:
        out, found = np.empty(n, np.float32), kernels.Squares(sizes)
        assert place(out, found) is Status.OK
        parts = np.split(out, np.cumsum(sizes)[:-1])
        assert found.sums.tolist() == [kernels.squares(part) for part in parts]


def test_squares_are_of_the_whole_array() -> None:
    x = np.zeros(8, np.float32)
    with pytest.raises(ValueError, match="have 7 values, the array 8"):
        kernels.place_float32(x, x, x.copy(), Mode.ADDED, kernels.Squares([3, 4]))
    with pytest.raises(ValueError, match="empty"):
        kernels.Squares([8, 0])


def test_runs_beyond_their_vector_or_without_room_never_reach_c() -> None:
    for starts, length in (([0, 297], 4), ([2**64 - 1], 4), ([0], 301), ([0], 0), ([], 1)):
        with pytest.raises(ValueError, match="not within a vector of 300"):
            kernels.Runs(np.array(starts, np.uintp), length, 300)
    runs = kernels.Runs(np.array([0, 296], np.uintp), 4, 300)
    with pytest.raises(ValueError, match="no room for 8 elements from 1"):
        kernels.cut_int4(np.zeros(150, np.uint8), runs, np.zeros(4, np.uint8), 1)
    with pytest.raises(ValueError, match="no room"):
        kernels.add_int4_runs(np.zeros(2, np.float32), np.zeros(4, np.uint8), runs, np.zeros(7, np.float32), np.zeros(7, np.float32), 0)


# --- a library that cannot be used ----------------------------------------------------------------------------------------


def imported(folder: Path) -> str:
    """What a process says that imports the loops from this folder; it must end by an ImportError, and not by a signal."""
    done = subprocess.run([sys.executable, "-c", "import kernels"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: the compiled loops cannot be used (")
    assert last.endswith(f"run `rm -f {folder / 'kernels' / 'libkernels.so'}; make setup`; elsewhere install diloco again.")
    return last


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One with a copy of the loops."""
    shutil.copytree(kernels.LIBRARY.parent, tmp_path / "kernels")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 4096, -4096, -1])
def test_a_library_that_was_cut_short_is_not_loaded(folder: Path, left: int) -> None:
    library = folder / "kernels" / kernels.LIBRARY.name
    library.write_bytes(library.read_bytes()[:left])
    assert "libkernels.so is not as it was built: it is damaged, or from another build" in imported(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", [kernels.LIBRARY.name, kernels.DIGEST.name])
def test_a_library_or_digest_that_is_not_there_is_named(folder: Path, name: str) -> None:
    (folder / "kernels" / name).unlink()
    assert f"No such file or directory: '{folder / 'kernels' / name}'" in imported(folder)


@pytest.mark.slow
def test_a_library_without_the_functions_is_named_with_the_one_that_it_lacks(folder: Path) -> None:
    library = folder / "kernels" / kernels.LIBRARY.name
    other = Path(_another_library.__file__ or "").read_bytes()
    library.write_bytes(other)
    library.with_name(kernels.DIGEST.name).write_text(hashlib.sha256(other).hexdigest())
    assert "diloco_level" in imported(folder)
