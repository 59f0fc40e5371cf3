"""One safetensors file with the parameters of a snapshot, made piece by piece: memory does not grow with the model.

A snapshot's tensors file holds float32 tensors `value/<name>`, `momentum/<name>` and `residual/<name>`. It is read once, from its
beginning to its end, so that its checksum is known when the last piece of the model has been made. The safetensors library reads single
tensors without a checksum and writes whole models from memory; a test compares with it.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import math
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal, Self, get_args

import numpy as np

from diloco.algorithm.state import FORMAT as CORE_FORMAT
from diloco.export.places import ExportError, Snapshot, find_snapshot, other_steps
from diloco.safetensors_header import NotSafetensorsError, TensorPlace, header_bytes, read_header
from diloco.snapshots.store import TENSORS_FILE, Unusable

type DType = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[DType, ...] = get_args(DType.__value__)

_KIND = "value/"
_SOURCE_DTYPE = "F32"
_ITEM = 4
_CODES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2)}
_BLOCK = 4 << 20
_TRIES = 3
"""The syncer of a running job may remove an old snapshot between the choice and the opening."""


class SnapshotRemovedError(ExportError):
    """The chosen snapshot is not there any more."""


class ModelFile:
    """The parameters of one snapshot as a safetensors file. A context manager: the source is open inside it.

    Entering raises ExportError if the snapshot was not written by this program, or is damaged so that its header shows it.
    """

    def __init__(self, snapshot: Snapshot, dtype: DType = "float32") -> None:
        self.snapshot = snapshot
        self.dtype = dtype
        self._digest = hashlib.sha256()
        self._at = 0
        self._stack = contextlib.ExitStack()
        self._file: Any
        self._tensors: list[TensorPlace]
        self._data_at: int
        self._header: bytes

    def __enter__(self) -> Self:
        with self._stack, self._as_export_error():
            self._file = self._stack.enter_context(self.snapshot.fs.open(f"{self.snapshot.path}/{TENSORS_FILE}", "rb"))
            self._tensors = self._of_source()
            self._data_at = self._at
            self._header = self._of_model()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    @property
    def tensors(self) -> int:
        """How many there are."""
        return len(self._tensors)

    @property
    def parameters(self) -> int:
        """Elements of all tensors."""
        return sum((each.end - each.begin) // _ITEM for each in self._tensors)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._header) + self.parameters * _CODES[self.dtype][1]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor."""
        return {each.name: each.shape for each in self._tensors}

    def pieces(self) -> Iterator[bytes]:
        """Yield the file, some MiB at a time, and before it an empty piece for each block that is read for the checksum only. It is good
        only if the iteration ends without an ExportError: the snapshot's checksum is known after the last piece. Once."""
        with self._as_export_error():
            for _ in self._skip_to(self._data_at + self._tensors[0].begin):
                yield b""
            yield self._header
            for tensor, _, data in self._raw_blocks():
                yield self._coded(data, tensor.name)

    def blocks(self) -> Iterator[tuple[str, int, np.ndarray[Any, np.dtype[np.float32]]]]:
        """Yield each tensor in blocks of float32: (name, number of the block's first element, flat values). Good as `pieces` is. Once."""
        with self._as_export_error():
            for tensor, at, data in self._raw_blocks():
                yield tensor.name, at // _ITEM, np.frombuffer(data, "<f4").astype(np.float32, copy=False)

    def _raw_blocks(self) -> Iterator[tuple[TensorPlace, int, bytes]]:
        """Yield (tensor, where the block is in it, its bytes), and compare the checksum at last. Raises Unusable."""
        for tensor in self._tensors:
            collections.deque(self._skip_to(self._data_at + tensor.begin), maxlen=0)
            at, size = 0, tensor.end - tensor.begin
            while at < size:
                data = self._read(min(_BLOCK, size - at))
                yield tensor, at, data
                at += len(data)
        collections.deque(self._skip_to(self.snapshot.manifest["bytes"]), maxlen=0)
        if self._file.read(1):
            raise Unusable(f"{TENSORS_FILE} is longer than its manifest says")
        if self._digest.hexdigest() != self.snapshot.manifest["sha256"]:
            raise Unusable(f"{TENSORS_FILE} does not have the checksum of its manifest: its bytes have changed")

    # --- the source ---------------------------------------------------------------------------------------------------
    def _of_source(self) -> list[TensorPlace]:
        """Return the tensors to export, in the order in which they lie. Raises Unusable."""
        try:
            header = read_header(self._read, self.snapshot.manifest["bytes"])
        except NotSafetensorsError as error:
            raise Unusable(f"{TENSORS_FILE} is no safetensors file, so it was not written by this program: {error}") from error
        found = [
            each._replace(name=each.name.removeprefix(_KIND))
            for each in header.tensors
            if each.name.startswith(_KIND) and each.dtype == _SOURCE_DTYPE
        ]
        try:
            layout = {name: tuple(shape) for name, shape, *_ in self._core_meta()["layout"]}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unusable(f"it was not written by this program: {type(error).__name__}: {error}") from error
        if {each.name: each.shape for each in found} != layout or any(
            each.end - each.begin != _ITEM * math.prod(each.shape) for each in found
        ):
            raise Unusable(f"the tensors in {TENSORS_FILE} are not those of its manifest")
        return found

    def _core_meta(self) -> dict[str, Any]:
        core: dict[str, Any] = self.snapshot.manifest["meta"]["core"]
        if core["format"] != CORE_FORMAT:
            raise Unusable(f"its state has format {core['format']!r}, this program reads {CORE_FORMAT}")
        return core

    def _read(self, size: int) -> bytes:
        """Read exactly so much. Raises Unusable at the end of the file."""
        parts, left = [], size
        while left:
            part = self._file.read(left)
            if not part:
                raise Unusable(f"{TENSORS_FILE} has {self._at} bytes, its manifest says {self.snapshot.manifest['bytes']}: truncated")
            self._digest.update(part)
            self._at += len(part)
            left -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _skip_to(self, position: int) -> Iterator[int]:
        """Read on, for the checksum; gives the size of each block."""
        if position < self._at:
            raise Unusable(f"the tensors in {TENSORS_FILE} overlap")
        while self._at < position:
            yield len(self._read(min(_BLOCK, position - self._at)))

    @contextlib.contextmanager
    def _as_export_error(self) -> Iterator[None]:
        try:
            yield
        except Unusable as reason:
            raise ExportError(f"snapshot {self.snapshot.name} cannot be used: {reason}. {other_steps(self.snapshot)}") from reason
        except FileNotFoundError as error:
            raise SnapshotRemovedError(
                f"snapshot {self.snapshot.name} has no {TENSORS_FILE}, or was removed meanwhile. {other_steps(self.snapshot)}"
            ) from error
        except OSError as error:
            raise ExportError(f"snapshot {self.snapshot.name} cannot be read: {error.strerror or error}") from error

    # --- the model ----------------------------------------------------------------------------------------------------
    def _of_model(self) -> bytes:
        code, item = _CODES[self.dtype]
        # transformers refuses a file that does not say which framework's names and shapes it has.
        return header_bytes(self.shapes, code, item, format="pt", step=str(self.snapshot.t), job=self.snapshot.job)

    def _coded(self, block: bytes, name: str) -> bytes:
        if self.dtype == "float32":
            return block
        values = np.frombuffer(block, "<f4")
        if self.dtype == "bfloat16":
            return _bfloat16(values)
        with np.errstate(over="ignore"):
            coded = values.astype("<f2")
        if not np.isfinite(coded).all():
            raise ExportError(f"tensor {name} has values beyond the range of float16; use --dtype bfloat16 or float32")
        return coded.tobytes()


def _bfloat16(values: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    """Return the upper half of each value, rounded to nearest, ties to even."""
    bits = values.view("<u4")
    rounded: bytes = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2").tobytes()
    return rounded


@contextlib.contextmanager
def open_model(where: str, *, job: str = "", step: int | None = None, name: str = "", dtype: DType = "float32") -> Iterator[ModelFile]:
    """Yield the model in the snapshot that `find_snapshot` chooses. Raises ExportError."""
    with contextlib.ExitStack() as stack:
        for left in reversed(range(_TRIES)):
            try:
                model = stack.enter_context(ModelFile(find_snapshot(where, job=job, step=step, name=name), dtype))
            except SnapshotRemovedError:
                if not left:
                    raise
            else:
                break
        yield model
