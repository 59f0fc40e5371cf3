"""Memory that a process freed goes back to the system."""

import subprocess
import sys

import pytest

# Raises glibc's thresholds as a big answer of the API server does (a block of 8 MiB, freed), then frees 60 MiB of blocks of 1 MiB below
# one that stays.
_PROGRAM = """
import re, sys
from pathlib import Path
from diloco_operator.operator.malloc_tuning import return_freed_memory

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

if sys.argv[1] == "give back":
    assert return_freed_memory()
bytearray(8 << 20)
before = resident()
blocks = [bytearray(b"x" * (1 << 20)) for _ in range(60)]
stays = bytearray(b"x" * (1 << 20))
del blocks
print(resident() - before)
"""


def _kept(how: str) -> int:
    """MiB that the process still has, of 61, of which it needs 1."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.slow
def test_freed_memory_goes_back_to_the_system_although_something_newer_stays() -> None:
    assert _kept("as it is") > 50
    assert _kept("give back") < 10
