"""torchft has wheels for Python up to 3.13 on Linux x86_64 alone, as pyproject.toml says: elsewhere its test is not collected."""

import platform
import sys

HAS_WHEEL = (sys.platform, platform.machine()) == ("linux", "x86_64") and sys.version_info < (3, 14)
collect_ignore = [] if HAS_WHEEL else ["test_torchft_differential.py"]
