"""`python -m benchmarks.gated_learner FOLDER UNIT MODULE [argument...]`: a trainer that joins when FOLDER/go exists.

It creates FOLDER/UNIT.ready when it is ready. Imports and compilation take seconds and differ between frameworks; a short training whose
numbers are compared must not begin when only the fastest learner is there.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

_POLL = 0.005


def main(argv: list[str]) -> int:
    folder, unit, module, *arguments = argv

    def wait_for_go() -> None:
        (Path(folder) / f"{unit}.ready").touch()
        while not (Path(folder) / "go").exists():
            time.sleep(_POLL)

    status: int = importlib.import_module(module).main(arguments, before_join=wait_for_go)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
