"""obstore's file system, for files of any size: it copies them in blocks of bounded size.

See docs/decisions/0152-snapshots.md.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from obstore import open_reader_async
from obstore.fsspec import FsspecStore

READ_BYTES: Final = 16 << 20
"""Bytes of one request of a download. obstore's own download holds the whole file in memory, twice."""


class BucketFiles(FsspecStore):
    """Files in the buckets of one scheme."""

    async def _get_file(self, rpath: str, lpath: str, **_kwargs: Any) -> None:
        bucket, path = self._split_path(rpath)
        reader = await open_reader_async(self._construct_store(bucket), path, buffer_size=READ_BYTES)
        # In threads: all files of the process share this loop, and a disk may be slow.
        file = await asyncio.to_thread(Path(lpath).open, "wb")
        with file:
            while block := await reader.read(READ_BYTES):
                await asyncio.to_thread(file.write, block)
