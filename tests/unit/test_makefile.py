from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_help_is_the_default_and_has_a_line_for_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    shown = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^make (\S+) +(\S.*)$", shown, re.MULTILINE)
    assert sorted(target for target, _ in lines) == sorted(phony[1].split())
