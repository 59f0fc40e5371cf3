"""obstore's file system, for files of any size: it copies them in blocks whose memory and number are bounded.

See docs/decisions/0152-snapshots.md.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any, Final

from obstore import open_reader_async
from obstore.fsspec import FsspecStore

READ_BYTES: Final = 16 << 20
"""Bytes of one request of a download. obstore's own download holds the whole file in memory, twice."""
LEAST_PART: Final = 5 << 20
"""Bytes of one part of an upload: obstore's default, and the least that S3 takes."""
MOST_PARTS: Final = 9_000
"""The most parts of an upload. S3 takes 10,000, which with obstore's default are 48.8 GiB."""


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

    async def _put_file(self, lpath: str, rpath: str, mode: str = "overwrite", **_kwargs: Any) -> None:
        bucket, path = self._split_path(rpath)
        file = Path(lpath)
        size = (await asyncio.to_thread(file.stat)).st_size
        await self._construct_store(bucket).put_async(path, file, chunk_size=max(LEAST_PART, math.ceil(size / MOST_PARTS)))
