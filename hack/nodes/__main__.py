"""The command line of the package, see its docstring."""

from __future__ import annotations

import sys

from nodes import cache, images, machine, oci, packages, sandbox

USAGE = "usage: python -m nodes check | prepare | run COMMAND..."


def main(arguments: list[str]) -> int:
    if arguments[:1] not in (["check"], ["prepare"], ["run"]) or (len(arguments) > 1) != (arguments[0] == "run"):
        print(USAGE, file=sys.stderr)
        return 64
    missing = machine.why_not()
    if missing:
        print("this machine cannot have real nodes:", *missing, sep="\n  ", file=sys.stderr)
        return 1
    if arguments[0] == "check":
        print("this machine can have real nodes")
        return 0
    try:
        if arguments[0] == "run":
            return sandbox.run(arguments[1:])
        with cache.held():
            images.provide()
    except (cache.InUse, oci.ImageError, packages.PackageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
