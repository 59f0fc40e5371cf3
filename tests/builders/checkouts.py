"""Copies of this repository, with what git knows of it and nothing that was built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from builders.documents import ROOT


def a_copy_of_the_tree(folder: Path) -> Path:
    """A checkout of its own, with one commit, of the files as they are here."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():  # not deleted meanwhile
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    own = ["-c", "user.name=reader", "-c", "user.email=reader@example.com"]
    for command in (["init", "--quiet"], ["add", "--all"], [*own, "commit", "--quiet", "--message", "Copy"]):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
    return folder
