"""Files on a disk or in an object store: a path, `s3://`, `gs://`, `az://`, or whatever else fsspec has a driver for.

obstore (extra `buckets`) reads buckets: it speaks to all three kinds and needs no other package. It is not registered with fsspec, so the
rest of the program opens `s3://` with the driver that it chose.

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
    """Return (a file system of fsspec, the path within it). Raises ImportError or ValueError if there is no driver for the URI."""
    import fsspec  # here, as a learner that stores nothing elsewhere starts faster without it

    scheme, separator, rest = where.partition("://")
    if separator and scheme in BUCKETS and find_spec("obstore") is not None:
        from diloco.buckets import BucketFiles

        if not rest.strip("/"):
            raise ValueError(f"{where} names no bucket")
        store_of: Any = BucketFiles
        return store_of(BUCKETS[scheme]), rest.rstrip("/")
    fs, path = fsspec.core.url_to_fs(where)
    return fs, str(path)


def local_files() -> Any:
    """fsspec's file system for this machine's disks."""
    from fsspec.implementations.local import LocalFileSystem

    return LocalFileSystem()


def exists(fs: Any, path: str) -> bool:
    """Whether there is a file or folder in a file system of fsspec. Raises the errors of drivers: `fs.exists` of some drivers, such as that
    of local disks, takes every error for "no", and what is there must not count as absent because a disk fails for a moment."""
    try:
        fs.info(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def words(error: Exception) -> str:
    """Return a driver's error message on one line, without the part that obstore adds for its developers."""
    return " ".join(str(error).partition("\n\nDebug source:")[0].split())
