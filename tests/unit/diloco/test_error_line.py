"""Which line of a program's output says why it ended."""

import pytest
from diloco.error_line import error_line

TORCHRUN = """\
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-22_10:00:01
  host      : gpu-0
  rank      : 2 (local_rank: 2)
  exitcode  : 1 (pid: 103)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_10:00:00
  host      : gpu-0
  rank      : 3 (local_rank: 3)
  exitcode  : -9 (pid: 104)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 104
============================================================
"""
JAX = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
TypeError: add got incompatible shapes for broadcasting: (2,), (3,).
--------------------
For simplicity, JAX has removed its internal frames from the traceback of the following exception. \
Set JAX_TRACEBACK_FILTERING=off to include these.
"""


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("Traceback (most recent call last):\n  File ...\nValueError: bad batch\n", "ValueError: bad batch"),
        ("[rank1]: Traceback (most recent call last):\n[rank1]:   File ...\n[rank1]: ValueError: bad\n", "ValueError: bad"),
        ("[7] ValueError: bad batch\n", "ValueError: bad batch"),
        (JAX, "TypeError: add got incompatible shapes for broadcasting: (2,), (3,)."),
        ("RuntimeError: 2 errors in loading:\n\tsize mismatch for a\n\tsize mismatch for b\n", "RuntimeError: 2 errors in loading:"),
        (TORCHRUN, "torchrun: rank 3 failed first, with exit code -9"),
        ("diloco: this model cannot be trained\n\n====\n", "diloco: this model cannot be trained"),
        ("  only an indented line", "only an indented line"),
        ("=====\n\n", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_the_line_that_says_why_is_found(output: str, line: str) -> None:
    assert error_line(output) == line
