"""Processes forked from one that drains on SIGTERM, each case in a process of its own: what is registered at forks stays."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal
from diloco.learner.forks import let_forked_children_end

class Unit:
    def drain(self, number, frame):
        print("drains", flush=True)

unit = Unit()
{before}
signal.signal(signal.SIGTERM, unit.drain)
let_forked_children_end(unit.drain)
if not (child := os.fork()):
    {child}
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""
KILL_SELF = "os.kill(os.getpid(), signal.SIGTERM)"
# What is registered first runs first in the child, so this signal comes as early as a pool could send one.
AT_BIRTH = f"os.register_at_fork(after_in_child=lambda: {KILL_SELF})"


@pytest.mark.parametrize(("before", "child"), [("", KILL_SELF), (AT_BIRTH, "pass")], ids=["running", "just forked"])
def test_sigterm_ends_a_forked_process_at_any_moment_and_still_drains_the_parent(before: str, child: str) -> None:
    program = PROGRAM.format(before=before, child=child)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(-signal.SIGTERM), "drains"]


def test_a_process_that_is_forked_takes_sigterm_although_its_parent_held_it_back() -> None:
    program = PROGRAM.format(before="", child="print(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "0", "drains"]
