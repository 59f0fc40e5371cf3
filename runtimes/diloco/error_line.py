"""The line of a program's output that says why it ended. Pure."""

from __future__ import annotations

import re

_RANK = re.compile(r"^\[(?:rank)?\d+\]:? ?")
"""How torch and `diloco-launch` begin the lines of a rank."""
_NOISE = re.compile(r"^[=\-~*_^\s]*$|^For simplicity, JAX has removed its internal frames")
"""What is printed after the error: lines of dashes, and JAX's note on its traceback."""
_TORCHRUN_RANK = re.compile(r"^\s*rank\s*: (\d+)")
_TORCHRUN_EXIT = re.compile(r"^\s*exitcode\s*: (-?\d+)")


def error_line(output: str) -> str:
    """Return the last line that says something, "" if there is none. If that message has several lines, return its first."""
    lines = [_RANK.sub("", line).rstrip() for line in output.splitlines()]
    if summary := _torchrun(lines):
        return summary
    meaningful = [line for line in lines if not _NOISE.match(line)]
    # Later lines of a message are indented, as in a traceback: the last line that is not indented begins the last message.
    return next((line.strip() for line in reversed(meaningful) if not line[0].isspace()), meaningful[-1].strip() if meaningful else "")


def _torchrun(lines: list[str]) -> str:
    """A sentence from torchrun's summary table: which rank failed first. "" if there is no such table. The error is in that rank's log."""
    start = next((index for index, line in enumerate(lines) if line.startswith("Root Cause (first observed failure)")), None)
    if start is None:
        return ""
    table = lines[start:]
    rank = next((match[1] for line in table if (match := _TORCHRUN_RANK.match(line))), "?")
    code = next((match[1] for line in table if (match := _TORCHRUN_EXIT.match(line))), "?")
    return f"torchrun: rank {rank} failed first, with exit code {code}"
