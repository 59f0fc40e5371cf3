"""Processes forked from one that drains on SIGTERM, each case in a process of its own: what is registered at forks stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal
from diloco.session.forks import let_forked_children_end

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
LIMIT = 240.0
"""For one process, seconds: it may import torch or JAX, on a machine that is busy."""
KILL_SELF = "os.kill(os.getpid(), signal.SIGTERM)"
# What is registered first runs first in the child, so this signal comes as early as a pool could send one.
AT_BIRTH = f"os.register_at_fork(after_in_child=lambda: {KILL_SELF})"


@pytest.mark.parametrize(("before", "child"), [("", KILL_SELF), (AT_BIRTH, "pass")], ids=["running", "just forked"])
def test_sigterm_ends_a_forked_process_at_any_moment_and_still_drains_the_parent(before: str, child: str) -> None:
    program = PROGRAM.format(before=before, child=child)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT, check=True)
    assert done.stdout.split() == [str(-signal.SIGTERM), "drains"]


def test_a_process_that_is_forked_takes_sigterm_although_its_parent_held_it_back() -> None:
    program = PROGRAM.format(before="", child="print(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT, check=True)
    assert done.stdout.split() == ["False", "0", "drains"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "modules", ["diloco.torch", "diloco.jax", "diloco.syncer.main", "diloco_operator.program.main, diloco_operator.telemetry.watcher"]
)
def test_grpc_does_nothing_at_forks_where_it_is_imported_with_us(modules: str) -> None:
    """What gRPC registers at forks it calls in C, where a test sees nothing of it. So this looks at when it reads its variable."""
    program = f"""
import builtins, os, sys
original = builtins.__import__
def watched(name, *rest):
    if name == "grpc" and "grpc" not in sys.modules:
        print(os.environ.get("GRPC_ENABLE_FORK_SUPPORT"), flush=True)
    return original(name, *rest)
builtins.__import__ = watched
import {modules}
"""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT, check=True, env=environment)
    assert set(done.stdout.split()) == {"0"}
