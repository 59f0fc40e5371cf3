"""Token files for training: already tokenised, or text with a tokenizer from a file; local, or anywhere that fsspec reads.

A source that is no token file on a local disk is first turned into one in a cache folder: remote files are copied, text and parquet are
tokenised. A token file is memory-mapped, so its size does not matter, and the learners of one machine share its memory.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from diloco.object_stores import file_system, words

type Tokens = NDArray[np.unsignedinteger]

TOKEN_TYPES: Final[dict[str, type[np.unsignedinteger]]] = {"uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32}
_TOKEN_COLUMNS: Final = ("input_ids", "tokens")
_TEXT_COLUMNS: Final = ("text", "content")
_BLOCK: Final = 16 << 20
"""Tokens or characters that are read at once."""


class DataError(ValueError):
    """Training data cannot be used. The message, for people, says which file, why, and what to do."""


@dataclass(frozen=True)
class TokenSource:
    url: str
    """A path, or a URL that fsspec knows: `.bin` (raw, little-endian), `.npy`, `.parquet`, or text under any other name."""
    tokenizer: Path | None = None
    """A `tokenizer.json` of the tokenizers library, for text."""
    token_type: str = "uint16"
    """The token type of raw `.bin` files: a key of TOKEN_TYPES."""
    column: str | None = None
    """The column of parquet files; None for the first existing one of input_ids, tokens, text, content."""
    cache: Path = field(default_factory=lambda: Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "diloco" / "tokens")
    """Folder for copied and tokenised files. Learners of one machine may share it."""

    def read(self) -> Tokens:
        """Return the tokens, unsigned integers [n], memory-mapped. Raises DataError, and OSError if the source cannot be read."""
        try:
            return self._read()
        except (DataError, OSError):
            raise
        except Exception as error:  # drivers raise their own classes
            raise DataError(f"{self.url} cannot be read: {words(error)}") from error

    def _read(self) -> Tokens:
        fs, path = file_system(self.url)
        protocols = (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
        local = Path(path) if "file" in protocols else None
        suffix = Path(path).suffix
        if suffix in (".bin", ".npy"):
            file = local or self._cached(fs, path, suffix, "copy", self._copy)
            return self._map(file, suffix)
        if suffix == ".parquet":
            return self._map(self._cached(fs, path, ".npy", f"column {self.column}", self._from_parquet), ".npy")
        if self.tokenizer is None:
            raise DataError(
                f"{self.url} is text: name a tokenizer.json (--tokenizer), or tokenise it into a .bin, .npy or .parquet file first"
            )
        return self._map(self._cached(fs, path, ".npy", "text", self._from_text), ".npy")

    def _map(self, file: Path, suffix: str) -> Tokens:
        if suffix == ".bin":
            kind = TOKEN_TYPES.get(self.token_type)
            if kind is None:
                raise DataError(f"{self.token_type!r} is no type of tokens: use one of {', '.join(TOKEN_TYPES)}")
            if file.stat().st_size % np.dtype(kind).itemsize or not file.stat().st_size:
                raise DataError(f"{self.url} has {file.stat().st_size} bytes, which is no number of {self.token_type} tokens")
            return np.memmap(file, np.dtype(kind).newbyteorder("<"), "r")
        try:
            tokens: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise DataError(f"{self.url} is no .npy file of numbers: {error}") from error
        if tokens.ndim != 1 or tokens.dtype.name not in TOKEN_TYPES:
            raise DataError(f"{self.url} holds {tokens.dtype}{list(tokens.shape)}; tokens are one axis of {', '.join(TOKEN_TYPES)}")
        return tokens

    # --- the cache --------------------------------------------------------------------------------------------------------------

    def _cached(self, fs: Any, path: str, suffix: str, how: str, make: Callable[[Any, str, Path], None]) -> Path:
        """Return the file that `make(fs, path, file)` writes. It is made anew when the source or the tokenizer has changed."""
        digest = hashlib.sha256(json.dumps([self.url, how, fs.ukey(path)]).encode())
        if self.tokenizer is not None:
            digest.update(self.tokenizer.read_bytes())
        file = self.cache / f"{digest.hexdigest()[:32]}{suffix}"
        if file.exists():
            return file
        self.cache.mkdir(parents=True, exist_ok=True)
        part = self.cache / f".{file.name}.{secrets.token_hex(4)}"
        try:
            make(fs, path, part)
            part.replace(file)  # atomic: several learners may make the file at the same time, all with the same content
        finally:
            part.unlink(missing_ok=True)
        return file

    def _copy(self, fs: Any, path: str, file: Path) -> None:
        fs.get_file(path, str(file))

    def _from_text(self, fs: Any, path: str, file: Path) -> None:
        tokenizer = self._load_tokenizer()
        with fs.open(path, "r", encoding="utf-8", newline="") as text, file.open("wb") as out:
            _write(
                out,
                (np.asarray(tokenizer.encode(part, add_special_tokens=False).ids) for part in _lines(text)),
                self._smallest_type(tokenizer),
            )

    def _from_parquet(self, fs: Any, path: str, file: Path) -> None:
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise DataError(f"reading {self.url} takes pyarrow: pip install pyarrow") from error
        with fs.open(path, "rb") as source, file.open("wb") as out:
            parquet = pyarrow.parquet.ParquetFile(source)
            names = parquet.schema_arrow.names
            column = self.column or next((name for name in (*_TOKEN_COLUMNS, *_TEXT_COLUMNS) if name in names), None)
            if column is None or column not in names:
                raise DataError(f"{self.url} has no column {column or 'input_ids, tokens, text or content'}; it has {', '.join(names)}")
            batches = (batch.column(0) for batch in parquet.iter_batches(batch_size=1024, columns=[column]))
            kind = parquet.schema_arrow.field(column).type
            if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                _write(out, (np.asarray(row) for rows in batches for row in rows.to_pylist() if row), np.uint32)
                return
            if self.tokenizer is None:
                raise DataError(f"column {column} of {self.url} is text: name a tokenizer.json (--tokenizer)")
            tokenizer = self._load_tokenizer()
            # With special tokens, unlike plain text: each row is a document, and the tokenizer's file says how it begins and ends.
            encoded = (document for rows in batches for document in tokenizer.encode_batch([row for row in rows.to_pylist() if row]))
            _write(out, (np.asarray(document.ids) for document in encoded), self._smallest_type(tokenizer))

    def _load_tokenizer(self) -> Any:
        try:
            import tokenizers
        except ImportError as error:
            raise DataError("tokenising text takes the tokenizers library: pip install tokenizers") from error
        try:
            return tokenizers.Tokenizer.from_file(str(self.tokenizer))
        except Exception as error:  # the library raises plain Exception for a file that it cannot read
            raise DataError(f"{self.tokenizer} is no tokenizer.json: {error}") from error

    def _smallest_type(self, tokenizer: Any) -> type[np.unsignedinteger]:
        return np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32


def check_vocabulary(url: str, tokens: Tokens, vocabulary: int) -> None:
    """Raise DataError if a token is too large for a model with `vocabulary` tokens. Reads all tokens."""
    largest = max((int(tokens[at : at + _BLOCK].max()) for at in range(0, len(tokens), _BLOCK)), default=0)
    if largest >= vocabulary:
        raise DataError(
            f"{url} has token {largest}, and the model knows {vocabulary} tokens: set --vocabulary, or take the data's own tokenizer"
        )


def _lines(text: IO[str]) -> Iterator[str]:
    """Yield the text in parts that end at the end of a line."""
    while part := text.read(_BLOCK):
        yield part + text.readline()


def _write(out: IO[bytes], parts: Iterator[NDArray[Any]], kind: type[np.unsignedinteger]) -> None:
    """Write a .npy file of all parts, one after the other. The header is written again at the end, when the length is known."""
    count = 0
    _header(out, kind, 0)
    begin = out.tell()
    for values in parts:
        if values.size and (values.ndim != 1 or values.dtype.kind not in "iu" or values.min() < 0 or values.max() > np.iinfo(kind).max):
            raise DataError(
                f"a row holds {values.dtype}{list(values.shape)}, or values that are no tokens: tokens are whole numbers from 0"
            )
        out.write(values.astype(kind).tobytes())
        count += values.size
    out.seek(0)
    _header(out, kind, count)
    assert out.tell() == begin


def _header(out: IO[bytes], kind: type[np.unsignedinteger], count: int) -> None:
    # numpy pads the header for a first axis that grows, so a later header has the same size.
    np.lib.format.write_array_header_1_0(
        out, {"descr": np.lib.format.dtype_to_descr(np.dtype(kind)), "fortran_order": False, "shape": (count,)}
    )
