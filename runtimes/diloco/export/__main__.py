"""`python -m diloco.export`: export or list on the machine that has the snapshots, such as a pod that mounts the syncer's volume.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from diloco.export.listing_stream import send_listing
from diloco.export.model_file import DTYPES, open_model
from diloco.export.places import ExportError
from diloco.export.stream import send
from diloco.export.target_file import TargetFile


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 0, or 1 with the reason on stderr."""
    given = _parser().parse_args(arguments)
    if given.hold:
        _hold()
        return 0
    try:
        if given.list:
            send_listing(given.source, sys.stdout.buffer, sys.stdin.buffer, job=given.job, check=given.check)
            return 0
        with open_model(given.source, job=given.job, step=given.step, name=given.snapshot, dtype=given.dtype) as model:
            if given.output is None:
                send(model, sys.stdout.buffer, sys.stdin.buffer)
            else:
                with TargetFile(given.output) as target:
                    for piece in model.pieces():
                        target.write(piece)
                    target.commit()
    except ExportError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except BrokenPipeError:
        return 1  # without a message: the reader, who would see it, has gone
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m diloco.export", description="A job's parameters as one safetensors file.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("source", nargs="?", default="", help="folder or URI with snapshots")
    what.add_argument("--hold", action="store_true", help="do nothing until SIGTERM, so that a pod stays for others to export in")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="default: a checked stream to stdout, as `kubectl diloco export` reads it"
    )
    parser.add_argument("--job", default="", help="name of the job, if several have snapshots there")
    parser.add_argument("--step", type=int, help="outer step of the snapshot; default: the newest")
    parser.add_argument("--snapshot", default="", help="name of the snapshot; default: the newest")
    parser.add_argument(
        "--list", action="store_true", help="list the snapshots, one JSON object a line, as `kubectl diloco snapshots` reads it"
    )
    parser.add_argument("--check", action="store_true", help="with --list: read each, and compare its checksum")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="type of the parameters in the file (%(default)s)")
    return parser


def _hold() -> None:
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()


if __name__ == "__main__":
    sys.exit(main())
