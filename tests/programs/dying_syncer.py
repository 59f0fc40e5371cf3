"""`python dying_syncer.py MOMENT N`: a syncer that is killed, as by SIGKILL, at a moment of the Nth merge that it commits. The environment
is that of `python -m diloco.syncer`."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from typing import Any

from diloco.syncer.job.exchange import Exchanges
from diloco.syncer.main import main
from diloco.tape import writer as tape_writer
from diloco.tape.records import Head, write_record
from diloco.tape.writer import TapeWriter


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment: str, merge: int) -> None:
    """Let the process die there."""
    merges = 0
    write, broadcast = TapeWriter._write, Exchanges._broadcast

    def writes(file: Any, head: Head, values: memoryview | None = None) -> int:
        nonlocal merges
        merges += values is not None
        if merges == merge and values is not None:
            if moment == "before the record":
                die()
            if moment == "within the record":
                whole = io.BytesIO()
                write_record(whole, head, values)
                file.write(whole.getvalue()[: len(whole.getvalue()) - 7])
                file.flush()
                die()
        return write_record(file, head, values)

    def write_all(self: TapeWriter, batch: list[Any]) -> None:
        write(self, batch)
        if moment == "after the record" and merges >= merge:
            die()

    def broadcasts(self: Exchanges, *arguments: Any) -> None:
        broadcast(self, *arguments)
        if moment == "after the broadcast" and merges >= merge:
            # Chunks are sent by tasks that run after this one.
            asyncio.get_running_loop().call_later(0.05, die)

    setattr(tape_writer, "write_record", writes)  # noqa: B010 - not one of the names that the module gives out
    TapeWriter._write = write_all  # type: ignore[method-assign]
    Exchanges._broadcast = broadcasts  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    if sys.argv[1:]:
        arm(sys.argv[1], int(sys.argv[2]))
    sys.exit(main([]))
