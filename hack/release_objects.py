"""Keep the objects that this release leaves in a cluster, for the tests of all later ones: `.venv/bin/python hack/release_objects.py`.

They go to tests/fixtures/releases/<version>, the version of pyproject.toml. A file that is there already is never changed: pods of that
release may still run somewhere. The keys in it are drawn for it alone.

See docs/decisions/0136-outdated-pods.md.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

from builders import release_objects  # noqa: E402 - found by the line above


def main() -> int:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    path = release_objects.RELEASES / version / release_objects.OBJECTS
    if path.exists():
        print(f"{path.relative_to(ROOT)} is there already; raise the version in pyproject.toml first", file=sys.stderr)
        return 1
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(release_objects.make(), indent=1, sort_keys=True) + "\n")
    print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
