"""How long this process has run. What a user's program imports and builds before it joins is part of a restart, too."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/self/stat")
_START = 22 - 3
"""Field 22 is when the process started, in ticks since boot. The fields after the program's name begin with the third one."""


def seconds_since_start() -> float:
    """0 if the system does not tell when the process started."""
    try:
        fields = _STAT.read_text().rpartition(")")[2].split()
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_START]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError, ValueError, IndexError):
        return 0.0
