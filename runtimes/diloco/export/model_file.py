"""One safetensors file with the parameters of a snapshot, made piece by piece, so that memory does not grow with the model.

A snapshot's tensors file holds float32 tensors `value/<name>`, `momentum/<name>` and `residual/<name>`. It is read once, from its
beginning to its end, so that its checksum is known when the last piece of the model has been made. The safetensors library reads single
tensors without a checksum and writes whole models from memory; a test compares with it.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Literal, Self, get_args

import numpy as np

from diloco import kernels
from diloco.algorithm.state import FORMAT as CORE_FORMAT
from diloco.export.places import ExportError, Snapshot, find_snapshot, other_steps
from diloco.kernels import Status
from diloco.safetensors_file import SafetensorsFile
from diloco.safetensors_header import NotSafetensorsError, header_bytes
from diloco.snapshots.store import TENSORS_FILE, Unusable, compare_checksum, tensors_of
from diloco.snapshots.tensor_file import HashingFile

type DType = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[DType, ...] = get_args(DType.__value__)

_KIND = "value/"
_SOURCE_DTYPE = "F32"
_CODES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2)}
_TRIES = 3
"""Attempts to open a snapshot: the syncer of a running job may remove the chosen one before it is opened."""


class SnapshotRemovedError(ExportError):
    """The chosen snapshot was removed."""


class ModelFile:
    """The parameters of one snapshot as a safetensors file. A context manager, within which the snapshot is open.

    Entering it raises ExportError if another program wrote the snapshot, or if its header shows damage.
    """

    def __init__(self, snapshot: Snapshot, dtype: DType = "float32") -> None:
        self.snapshot = snapshot
        self.dtype = dtype
        self._stack = contextlib.ExitStack()
        self._file: HashingFile
        self._source: SafetensorsFile
        self._header: bytes
        self.shapes: dict[str, tuple[int, ...]]
        """The shape of each tensor, in the order of the file."""

    def __enter__(self) -> Self:
        with self._stack, self._as_export_error():
            path = f"{self.snapshot.path}/{TENSORS_FILE}"
            if self.snapshot.fs.info(path)["type"] != "file":  # a pipe or a device, which may never end
                raise Unusable(f"{TENSORS_FILE} is no regular file")
            self._file = HashingFile(self._stack.enter_context(self.snapshot.fs.open(path, "rb")))
            self._source, self.shapes = self._of_source()
            code, item = _CODES[self.dtype]
            # format="pt", because transformers refuses a file that does not name the framework of its names and shapes.
            self._header = header_bytes(self.shapes, code, item, format="pt", step=str(self.snapshot.t), job=self.snapshot.job)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    @property
    def tensors(self) -> int:
        return len(self.shapes)

    @property
    def parameters(self) -> int:
        """The number of elements of all tensors."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._header) + self.parameters * _CODES[self.dtype][1]

    def pieces(self, reading: Callable[[], None] = lambda: None) -> Iterator[bytes]:
        """Yield the file, some MiB at a time. Call this once.

        The file is good only if the iteration ends without an ExportError, as the snapshot's checksum is known after the last piece. Before
        the first piece, the beginning of the snapshot is read for the checksum alone; `reading` is called after each MiB of that.
        """
        with self._as_export_error():
            names = self._names()
            begin = min(place.begin for place in self._source.places if place.name in names)
            self._file.seek(self._source.data_at + begin, reading)
        yield self._header
        for name, _, data in self.blocks():
            yield self._coded(data, name)

    def blocks(self) -> Iterator[tuple[str, int, bytes]]:
        """Yield each tensor in blocks of float32, little-endian: (name, offset of the block in the tensor, in bytes, bytes of the block).
        Good only if the iteration ends, as for `pieces`. Call this once."""
        with self._as_export_error():
            for place, at, data in self._source.blocks(self._names()):
                yield place.name.removeprefix(_KIND), at, data
            self._file.skip_rest()
            compare_checksum(TENSORS_FILE, self._file.written(), tensors_of(self.snapshot.manifest))

    def _names(self) -> set[str]:
        return {_KIND + name for name in self.shapes}

    def _of_source(self) -> tuple[SafetensorsFile, dict[str, tuple[int, ...]]]:
        """Return the open file, and the shapes of the tensors to export in the order of the file. Raises Unusable."""
        try:
            source = SafetensorsFile(self._file, self.snapshot.manifest["bytes"])
        except NotSafetensorsError as error:
            raise Unusable(f"{TENSORS_FILE} is no safetensors file, so it was not written by this program: {error}") from error
        shapes = {
            tensor.name.removeprefix(_KIND): tensor.shape
            for tensor in source.places
            if tensor.name.startswith(_KIND) and tensor.dtype == _SOURCE_DTYPE
        }
        try:
            layout = {name: tuple(shape) for name, shape, *_ in self._core_meta()["layout"]}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unusable(f"it was not written by this program: {type(error).__name__}: {error}") from error
        if not shapes or shapes != layout:
            raise Unusable(f"the tensors in {TENSORS_FILE} are not those of its manifest")
        return source, shapes

    def _core_meta(self) -> dict[str, Any]:
        core: dict[str, Any] = self.snapshot.manifest["meta"]["core"]
        if core["format"] != CORE_FORMAT:
            raise Unusable(f"its state has format {core['format']!r}, this program reads {CORE_FORMAT}")
        return core

    @contextlib.contextmanager
    def _as_export_error(self) -> Iterator[None]:
        try:
            yield
        except (Unusable, NotSafetensorsError) as reason:
            raise ExportError(f"snapshot {self.snapshot.name} cannot be used: {reason}. {other_steps(self.snapshot)}") from reason
        except FileNotFoundError as error:
            raise SnapshotRemovedError(
                f"snapshot {self.snapshot.name} has no {TENSORS_FILE}, or was removed meanwhile. {other_steps(self.snapshot)}"
            ) from error
        except OSError as error:
            raise ExportError(f"snapshot {self.snapshot.name} cannot be read: {error.strerror or error}") from error

    def _coded(self, block: bytes, name: str) -> bytes:
        if self.dtype == "float32":
            return block
        values = np.frombuffer(block, "<f4")
        if self.dtype == "bfloat16":
            upper = np.empty(values.size, np.uint16)
            if kernels.encode_bfloat16(values, None, upper) is not Status.OK:
                raise ExportError(f"tensor {name} has values beyond the range of bfloat16; use --dtype float32")
            return upper.tobytes()
        with np.errstate(over="ignore"):
            coded = values.astype("<f2")
        if not np.isfinite(coded).all():
            raise ExportError(f"tensor {name} has values beyond the range of float16; use --dtype bfloat16 or float32")
        return coded.tobytes()


@contextlib.contextmanager
def open_model(where: str, *, job: str = "", step: int | None = None, name: str = "", dtype: DType = "float32") -> Iterator[ModelFile]:
    """Open the model in the snapshot that `find_snapshot` chooses. Raises ExportError."""
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
