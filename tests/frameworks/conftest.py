"""Tests that import torch, JAX, or what stands on them: one process runs them all, so that no other pays for these imports."""

import platform
import sys

from builders.poisoned_memory import poisoned_memory

__all__ = ["poisoned_memory"]

# torchft has wheels for Python up to 3.13 on Linux x86_64 alone, as pyproject.toml says: elsewhere its test is not collected.
HAS_WHEEL = (sys.platform, platform.machine()) == ("linux", "x86_64") and sys.version_info < (3, 14)
collect_ignore = [] if HAS_WHEEL else ["test_torchft_differential.py"]
