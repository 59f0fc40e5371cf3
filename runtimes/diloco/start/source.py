"""Reads a job's first parameters from snapshots of another job, or from safetensors files.

A URI names one of these: a file `….safetensors`; a folder with `model.safetensors.index.json` and the files that it names, or with
`model.safetensors`, as transformers saves models; or whatever `diloco export` accepts: one snapshot, or a folder with snapshots, whose
newest one is taken.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from diloco.export.model_file import open_model
from diloco.export.places import ExportError, NoSnapshotsError, errors_of_drivers, opened, shown
from diloco.object_stores import exists
from diloco.safetensors_file import FLOAT_BYTES, SafetensorsFile
from diloco.safetensors_header import NotSafetensorsError
from diloco.snapshots.store import MOST_MANIFEST, Unusable, file_size, read_file

SUFFIX = ".safetensors"
MODEL_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_BFLOAT16 = "BF16"


class Block(NamedTuple):
    """A run of elements of a tensor, in canonical order."""

    name: str
    first: int
    """Index of its first element in the tensor."""
    values: NDArray[np.float32]
    """float32 [elements]."""


class StoredTensor(NamedTuple):
    """What a file says of one tensor."""

    dtype: str
    """The format's name of the type, such as "BF16"."""
    shape: tuple[int, ...]


class StartError(Exception):
    """A job cannot begin with the model of `spec.startFrom`. The message says which, why, and what to do."""


class Source(Protocol):
    @property
    def name(self) -> str:
        """A name for people: the URI, and for a snapshot also its job and outer step."""
        ...

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...

    def blocks(self, names: Collection[str]) -> Iterator[Block]:
        """Yield these tensors, each from its beginning to its end. The blocks are good only if the iteration ends, as it may raise
        ExportError after some of them."""
        ...


def open_source(uri: str) -> Source:
    """Return the model at `uri`. Only the names, types and shapes of its tensors are read yet. Raises StartError."""
    try:
        files = _files(uri)
        return _FilesSource.of(uri, files) if files else _SnapshotSource.of(uri)
    except NoSnapshotsError as error:
        raise StartError(f"spec.startFrom.uri {uri}: there is no {MODEL_FILE}, no {INDEX_FILE}, and {error}") from error
    except ExportError as error:
        raise StartError(f"spec.startFrom.uri {uri}: {error}") from error


@dataclass(frozen=True, slots=True)
class _SnapshotSource:
    """The parameters in a snapshot. Its checksum is known when the last block has been read."""

    name: str
    tensors: Mapping[str, StoredTensor]
    _uri: str

    @classmethod
    def of(cls, uri: str) -> _SnapshotSource:
        with open_model(uri) as model:
            snapshot = model.snapshot
            tensors = {name: StoredTensor("F32", shape) for name, shape in model.shapes.items()}
        return cls(f"{snapshot.name} (outer step {snapshot.t} of job {snapshot.job})", tensors, snapshot.name)

    def blocks(self, names: Collection[str]) -> Iterator[Block]:
        with open_model(self._uri) as model:
            for name, at, data in model.blocks():
                if name in names:
                    yield _block(name, "F32", at, data)


@dataclass(frozen=True, slots=True)
class _FilesSource:
    """Safetensors files that hold a model together."""

    name: str
    tensors: Mapping[str, StoredTensor]
    _uri: str
    _paths: Sequence[str]

    @classmethod
    def of(cls, uri: str, paths: Sequence[str]) -> _FilesSource:
        tensors: dict[str, StoredTensor] = {}
        with errors_of_drivers(uri):
            for path in paths:
                with _opened_file(uri, path) as file:
                    held = {tensor.name: StoredTensor(tensor.dtype, tensor.shape) for tensor in file.places}
                    if twice := sorted(tensors.keys() & held.keys()):
                        raise ExportError(f"tensor {twice[0]} is in {path} and in another of its files")
                    tensors |= held
        return cls(uri, tensors, uri, paths)

    def blocks(self, names: Collection[str]) -> Iterator[Block]:
        with errors_of_drivers(self._uri):
            for path in self._paths:
                with _opened_file(self._uri, path) as file:
                    for place, at, data in file.blocks(names):
                        yield _block(place.name, place.dtype, at, data)


def _files(uri: str) -> list[str]:
    """Return the safetensors files at the URI; none if there is no such model, and snapshots must be looked for."""
    fs, path = opened(uri)
    with errors_of_drivers(uri):
        if path.endswith(SUFFIX):
            if not exists(fs, path):
                raise ExportError("there is no such file")
            return [path]
        if exists(fs, f"{path}/{INDEX_FILE}"):
            return [f"{path}/{name}" for name in _named_in(_index(fs, path))]
        return [f"{path}/{MODEL_FILE}"] if exists(fs, f"{path}/{MODEL_FILE}") else []


def _index(fs: Any, folder: str) -> bytes:
    try:
        return read_file(fs, folder, INDEX_FILE, MOST_MANIFEST)
    except Unusable as reason:
        raise ExportError(str(reason)) from reason


def _named_in(index: bytes) -> list[str]:
    """Return the files that an index names. Raises ExportError for a wrong index, and for a name that leads out of its folder."""
    try:
        names = sorted({str(name) for name in json.loads(index)["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ExportError(f"{INDEX_FILE} has no weight_map: {error}") from error
    for name in names:
        if "/" in name or "\\" in name or not name.endswith(SUFFIX):
            raise ExportError(f"{INDEX_FILE} names {name!r}, which is no {SUFFIX} file beside it")
    if not names:
        raise ExportError(f"{INDEX_FILE} names no file")
    return names


@contextlib.contextmanager
def _opened_file(uri: str, path: str) -> Iterator[SafetensorsFile]:
    """Open a safetensors file. Raises ExportError if it is none, or ends too early while it is read."""
    fs, _ = opened(uri)
    folder, _, name = path.rpartition("/")
    try:
        size = file_size(fs, folder, name)
    except Unusable as reason:
        raise ExportError(str(reason)) from reason
    with fs.open(path, "rb") as file:
        try:
            yield SafetensorsFile(file, size)
        except NotSafetensorsError as error:
            raise ExportError(f"{shown(fs, path)} is no safetensors file: {error}") from error


def _block(name: str, dtype: str, at: int, data: bytes) -> Block:
    """Convert a part of a tensor of `dtype` to float32. `data`: its bytes, from byte `at` of the tensor on."""
    first = at // FLOAT_BYTES[dtype]
    if dtype == _BFLOAT16:  # numpy does not know it: it is the upper half of a float32
        return Block(name, first, (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype(np.float32, copy=False))
    values: NDArray[Any] = np.frombuffer(data, f"<f{FLOAT_BYTES[dtype]}")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinity, which the seed's check refuses
        return Block(name, first, values.astype(np.float32, copy=False))
