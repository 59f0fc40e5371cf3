"""The one version of everything stands in pyproject.toml. `hack/versions.py 0.2.0` writes another one wherever it stands.

See docs/decisions/0107-packages-and-images.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"

IN_FILES: Mapping[str, tuple[str, ...]] = {
    "pyproject.toml": (r'^version = "(VERSION)"$', r'^  "diloco==(VERSION)",$'),
    "runtimes/pyproject.toml": (r'^version = "(VERSION)"$',),
    "helm/diloco-operator/Chart.yaml": (r"^version: (VERSION)$", r"^appVersion: (VERSION)$"),
    "uv.lock": (r'^name = "diloco(?:-operator)?"\nversion = "(VERSION)"$',),
    "controller/Dockerfile": (r'image\.version="(VERSION)"',),
    "runtimes/syncer.Dockerfile": (r'image\.version="(VERSION)"',),
    "runtimes/torch.Dockerfile": (r'image\.version="(VERSION)"',),
    "runtimes/jax.Dockerfile": (r'image\.version="(VERSION)"',),
}
"""File -> patterns that find the project's version in it; each must match. The word VERSION in a pattern stands for the regex above."""
IMAGE = r"\b(?:operator|syncer|learner-torch|learner-jax):(VERSION)(?=[-\s`\"',\])]|\.\s|$)"
"""Finds the version in the name of an image, in the files of `WITH_IMAGES`."""
WITH_IMAGES = ("*.md", "*.yaml", "*Dockerfile")


def project_version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


def places() -> Iterator[tuple[str, str]]:
    """Yield each file that may have the project's version, with the pattern that finds it. A file may come several times."""
    for file, patterns in IN_FILES.items():
        for pattern in patterns:
            yield file, pattern
    listed = subprocess.run(["git", "ls-files", *WITH_IMAGES], cwd=ROOT, check=True, capture_output=True, text=True)
    for file in listed.stdout.splitlines():
        yield file, IMAGE


def found(text: str, pattern: str) -> list[str]:
    """All versions in a text that the pattern finds."""
    return [match[1] for match in _compiled(pattern).finditer(text)]


def replaced(text: str, pattern: str, version: str) -> str:
    """The text with `version` wherever the pattern finds one."""
    return _compiled(pattern).sub(lambda match: match[0].replace(match[1], version), text)


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace("VERSION", VERSION), re.MULTILINE)


def main() -> None:
    """Write the version in the first argument everywhere."""
    if len(sys.argv) != 2 or not re.fullmatch(VERSION, sys.argv[1]):
        sys.exit("usage: hack/versions.py VERSION, such as 0.2.0 or 0.2.0rc1")
    for file, pattern in places():
        path = ROOT / file
        before = path.read_text()
        after = replaced(before, pattern, sys.argv[1])
        if after != before:
            path.write_text(after)
            print(file)


if __name__ == "__main__":
    main()
