"""What a sandbox leaves behind: nothing, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders.real_nodes import scratch
from nodes import cache, machine

# A cgroup with a process in it, a bridge, a mount, a kernel setting.
BUSY = """
mkdir /sys/fs/cgroup/memory/busy
sleep 1000.25 &
echo $! > /sys/fs/cgroup/memory/busy/cgroup.procs
ip link add left-over type bridge
mount -t tmpfs tmpfs /mnt
echo 77 > /proc/sys/kernel/panic
echo ready
"""


def traces() -> dict[str, frozenset[str]]:
    """Return all of this machine that a sandbox may touch."""
    return {
        "mounts": frozenset(Path("/proc/self/mountinfo").read_text().splitlines()),
        "links": frozenset(link.name for link in Path("/sys/class/net").iterdir()),
        "kernel.panic": frozenset([Path("/proc/sys/kernel/panic").read_text()]),
        "cgroups": frozenset(str(path) for each in machine.hierarchies() for path in each.folder.glob("diloco-nodes-*")),
        "processes": frozenset(path.name for path in Path("/proc").glob("[0-9]*") if command_of(path) == b"sleep\x001000.25\0"),
        "folders": frozenset(str(path) for path in (scratch() / "inner").rglob("diloco-nodes-*")),
    }


def left(before: dict[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """What is there now and was not before. What goes meanwhile is of the nodes around: they take down pods of earlier tests."""
    return {kind: new for kind, now in traces().items() if (new := now - before[kind])}


def command_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it ended
        return b""


def sandbox(script: str) -> subprocess.Popen[bytes]:
    """A sandbox in this one, with a cache of its own."""
    environment = {**os.environ, "PYTHONPATH": str(cache.ROOT / "hack"), "XDG_CACHE_HOME": str(scratch() / "inner")}
    command = [sys.executable, "-m", "nodes", "run", "bash", "-euc", script]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def reaped(started: subprocess.Popen[bytes]) -> None:
    """Wait until everybody has let go of its output, the reaper last."""
    started.communicate()


def test_a_sandbox_ends_with_its_command_and_its_status_and_leaves_nothing() -> None:
    before = traces()
    started = sandbox(BUSY + "exit 7")
    reaped(started)
    assert started.returncode == 7
    assert left(before) == {}


@pytest.mark.parametrize("victim", ["run", "process one", "the command"])
def test_a_killed_sandbox_leaves_nothing(victim: str) -> None:
    before = traces()
    started = sandbox(BUSY + "wait")
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n"
    assert len(traces()["processes"]) == 1
    first = int(Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()[-1])
    command = int(Path(f"/proc/{first}/task/{first}/children").read_text().split()[0])
    os.kill({"run": started.pid, "process one": first, "the command": command}[victim], signal.SIGKILL)
    reaped(started)
    assert left(before) == {}


def test_two_sandboxes_cannot_share_one_cache() -> None:
    first = sandbox("echo ready; sleep 1000.25")
    assert first.stdout is not None
    assert first.stdout.readline() == b"ready\n"
    second = sandbox("true")
    _, said = second.communicate()
    assert second.returncode == 1
    assert b"another run of real nodes uses" in said
    first.kill()
    reaped(first)
