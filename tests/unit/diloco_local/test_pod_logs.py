"""The logs of pods on this machine, as a client reads those of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from diloco_local.pod_logs import start_of_last_lines


@pytest.mark.parametrize(
    ("text", "lines", "expected"),
    [
        ("a\nb\nc\n", 0, ""),
        ("a\nb\nc\n", 1, "c\n"),
        ("a\nb\nc\n", 2, "b\nc\n"),
        ("a\nb\nc\n", 9, "a\nb\nc\n"),
        ("a\nb", 1, "b"),  # the last line is still being written
        ("a\nb", 2, "a\nb"),
        ("", 3, ""),
        ("x" * 70000 + "\n" + "y" * 70000 + "\n", 1, "y" * 70000 + "\n"),  # lines longer than a block
    ],
)
def test_the_last_lines_begin_where_they_begin(tmp_path: Path, text: str, lines: int, expected: str) -> None:
    file = tmp_path / "log"
    file.write_text(text)
    assert text[start_of_last_lines(file, lines) :] == expected
