"""Files that may be elsewhere: a path, `s3://`, `gs://`, `az://`, or whatever else fsspec has a driver for.

Buckets are read by obstore (extra `buckets`), which speaks to all three and needs no other package. It is not registered with fsspec: what
the rest of a program opens by `s3://` stays as that program has it.

See docs/decisions/0152-snapshots.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

BUCKETS: Mapping[str, str] = MappingProxyType(
    {"s3": "s3", "s3a": "s3a", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "abfs", "abfss": "abfss"}
)
"""Scheme of a URI -> its name in obstore."""
REMEDY = "Install the driver (the extra `buckets` of diloco for s3://, gs:// and az://), or correct the URI."


def file_system(where: str) -> tuple[Any, str]:
    """Return (a file system of fsspec, the path within it). Raises ImportError or ValueError if there is no driver for it."""
    import fsspec  # a learner that stores nothing elsewhere starts without it

    scheme, separator, rest = where.partition("://")
    if separator and scheme in BUCKETS and find_spec("obstore") is not None:
        from obstore.fsspec import FsspecStore

        if not rest.strip("/"):
            raise ValueError(f"{where} names no bucket")
        made: Any = FsspecStore
        return made(BUCKETS[scheme]), rest.rstrip("/")
    fs, path = fsspec.core.url_to_fs(where)
    return fs, str(path)


def local_files() -> Any:
    """Return the file system of fsspec that is this machine's."""
    from fsspec.implementations.local import LocalFileSystem

    return LocalFileSystem()


def words(error: Exception) -> str:
    """Return what an error of a driver says, on one line and without what obstore adds for its developers."""
    return " ".join(str(error).partition("\n\nDebug source:")[0].split())
