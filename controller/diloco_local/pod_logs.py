"""Reads the logs of pods on this machine with the interface of a cluster's client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from diloco_operator.kube.client import BadRequest, LogRequest, NotFound

_BLOCK = 1 << 16


class LocalPodLogs:
    """Pod logs from the files of `runs`, which is `Kubelet.runs`."""

    def __init__(self, runs: Callable[[str, str, str], tuple[list[tuple[Path, int]], bool]]) -> None:
        self._runs = runs

    async def pod_logs(self, namespace: str, name: str, wanted: LogRequest) -> AsyncIterator[bytes]:
        """Yield what the log has now. Raises NotFound if the container has no log, BadRequest if it has no previous run but that is
        wanted."""
        assert not wanted.follow, "the control plane on this machine has no reader that follows a log"
        runs, _ = self._runs(namespace, name, wanted.container)
        newest = 2 if wanted.previous else 1
        if not runs:
            raise NotFound(404, "NotFound", f"container {wanted.container} of pod {namespace}/{name} has no log here")
        if len(runs) < newest:
            raise BadRequest(400, "BadRequest", f'previous terminated container "{wanted.container}" in pod "{name}" not found')
        file, begin = runs[-newest]
        with file.open("rb") as opened:
            if wanted.tail_lines is not None:
                begin = max(begin, await asyncio.to_thread(start_of_last_lines, file, wanted.tail_lines))
            opened.seek(begin)
            while block := opened.read(_BLOCK):
                yield block


def start_of_last_lines(file: Path, lines: int) -> int:
    """The position where the last `lines` lines of a file begin."""
    with file.open("rb") as opened:
        position = opened.seek(0, os.SEEK_END)
        wanted = lines + 1  # one more: the newline before the first of these lines
        opened.seek(max(0, position - 1))
        if position and opened.read(1) != b"\n":
            wanted -= 1
        while position > 0:
            size = min(_BLOCK, position)
            position -= size
            opened.seek(position)
            block = opened.read(size)
            at = size
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                wanted -= 1
                if wanted == 0:
                    return position + at + 1
        return 0
