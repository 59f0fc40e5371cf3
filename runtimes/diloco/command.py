"""The `diloco` command. The runtime alone has only `launch`; the package diloco-operator, if installed, replaces this by all commands.

See docs/decisions/0107-packages-and-images.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import entry_points, version

from diloco import launch

COMMANDS = "diloco.command"
"""Group of entry points. Another package registers the whole command in it."""
_USAGE = """\
usage: diloco launch [--nproc-per-node N] [-m] PROGRAM [ARGUMENT...]
       diloco --version

launch starts the ranks of one host, as a pod's environment says; it is diloco-launch under another name.
The other commands (up, plan, validate, export, simulate, ...) come with the package diloco-operator, which is not installed here.
"""
_MISUSE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    # The first entry point has the whole command line: the commands here are for a machine without diloco-operator.
    for entry in entry_points(group=COMMANDS):
        status: int | None = entry.load()(arguments)
        return status or 0
    match list(sys.argv[1:] if arguments is None else arguments):
        case ["launch", *rest]:
            return launch.main(rest)
        case ["--version"]:
            print(f"diloco {version('diloco')}")  # noqa: T201 - what it is asked for
            return 0
        case ["--help" | "-h"]:
            print(_USAGE, end="")  # noqa: T201 - what it is asked for
            return 0
        case wrong:
            print(_USAGE, f"\nerror: {' '.join(wrong) or 'no command'} is no command of the runtime", sep="", file=sys.stderr)  # noqa: T201
            return _MISUSE
