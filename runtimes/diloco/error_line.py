"""The line of a program's output that says why it ended. Pure."""

from __future__ import annotations

import re

_RANK = re.compile(r"^\[(?:rank)?\d+\]:? ?")
"""torch and `diloco-launch` begin the lines of a rank so."""
_NOISE = re.compile(r"^[=\-~*_^\s]*$|^For simplicity, JAX has removed its internal frames")
"""Printed after the error: rules, and JAX's note on its traceback."""
_TORCHRUN_RANK = re.compile(r"^\s*rank\s*: (\d+)")
_TORCHRUN_EXIT = re.compile(r"^\s*exitcode\s*: (-?\d+)")


def error_line(output: str) -> str:
    """Return the last line that says something; of a message of several lines the first. "" if there is none."""
    lines = [_RANK.sub("", line).rstrip() for line in output.splitlines()]
    if summary := _torchrun(lines):
        return summary
    said = [line for line in lines if not _NOISE.match(line)]
    return next((line.strip() for line in reversed(said) if not line[0].isspace()), said[-1].strip() if said else "")


def _torchrun(lines: list[str]) -> str:
    """Return what torchrun's summary, a table, says of the rank that failed first. Its log has the error."""
    start = next((index for index, line in enumerate(lines) if line.startswith("Root Cause (first observed failure)")), None)
    if start is None:
        return ""
    table = lines[start:]
    rank = next((found[1] for line in table if (found := _TORCHRUN_RANK.match(line))), "?")
    code = next((found[1] for line in table if (found := _TORCHRUN_EXIT.match(line))), "?")
    return f"torchrun: rank {rank} failed first, with exit code {code}"
