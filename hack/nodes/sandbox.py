"""Namespaces in which real nodes can be started without touching this machine, and out of which nothing is left.

A command runs as the child of process 1 of new PID, mount, network, IPC, UTS and cgroup namespaces. When it ends, or process 1 or the
caller of `run` is killed, the kernel ends every process in there, and with the last of them go bridges, mounts, network namespaces and
addresses. What the kernel keeps are cgroups and folders: a reaper, which lives a moment longer than `run`, removes these.

/run, /var/lib, /var/log and the kernel settings that a kubelet changes are the sandbox's own. There is no way out to a network.

See docs/decisions/0082-real-programs-in-tests.md.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nodes import cache, machine

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_NAMESPACES = os.CLONE_NEWNS | os.CLONE_NEWNET | os.CLONE_NEWIPC | os.CLONE_NEWUTS | os.CLONE_NEWCGROUP

KERNEL_SETTINGS = ("kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "vm/panic_on_oom")
"""Settings that no namespace has for itself and a kubelet sets: it is given files of its own to write to."""
SCRATCH_VARIABLE = "DILOCO_NODES_SCRATCH"
"""Tells the command its folder on the disk, which goes away with the sandbox."""
CPU_SHARES = 4096
"""Share of the sandbox against others on the machine, 1024 each: control plane, nodes and pods are many, and would get the time of one."""
REAP_SECONDS = 60.0
"""How long the reaper waits for killed processes to be gone. A limit for defects; the usual is less than a second."""


def run(command: Sequence[str]) -> int:
    """Run it in a new sandbox, in this working directory; its exit status, 128 + n for a signal n. Root. Raises `cache.InUse`.

    This process cannot start others outside of the sandbox's PID namespace any more: call it last.
    """
    with cache.held() as lock:
        scratches = cache.FOLDER / "scratch"
        for left in scratches.glob("*"):  # of a run whose reaper was killed as well
            _reap(left, _groups(left.name))
        name = f"diloco-nodes-{os.getpid()}"
        scratch, groups = scratches / name, _groups(name)
        scratch.mkdir(parents=True)
        reaper = subprocess.Popen(
            [sys.executable, "-m", "nodes.sandbox", str(scratch)],
            env={**os.environ, "PYTHONPATH": str(cache.ROOT / "hack")},
            stdin=subprocess.PIPE,  # which ends when this process does, whatever ended it
            pass_fds=[lock],  # no process begins before it is done
            start_new_session=True,
        )
        try:
            _enter(groups)
            return _run(command, scratch)
        finally:
            _leave(groups)
            assert reaper.stdin is not None
            reaper.stdin.close()
            reaper.wait()


def _run(command: Sequence[str], scratch: Path) -> int:
    alive, held_open = os.pipe()
    os.unshare(os.CLONE_NEWPID)  # for children from now on
    first = os.fork()
    if first == 0:
        status = 125
        try:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.close(held_open)
            if not select.select([alive], [], [], 0)[0]:  # else the parent died before the line above
                os.unshare(_NAMESPACES)
                _furnish(scratch)
                status = _be_process_one(command, scratch)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"error: the sandbox for real nodes cannot be made: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)  # this copy of the program must not go on with its parent's work
    # Ctrl-C goes to the command as well; this process stays to see it end.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return _exit_status(os.waitpid(first, 0)[1])
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(alive)
        os.close(held_open)


def _be_process_one(command: Sequence[str], scratch: Path) -> int:
    """Start the command and reap every process that ends in here, until the command does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # inherited by the command; process 1 itself is deaf to it
    child = subprocess.Popen(command, env={**os.environ, SCRATCH_VARIABLE: str(scratch)}).pid
    while True:
        ended, status = os.wait()
        if ended == child:
            return _exit_status(status)


def _exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


# --- what the command finds ------------------------------------------------------------------------------------------
def _furnish(scratch: Path) -> None:
    """Make mounts and the loopback device of the new namespaces."""
    hierarchies = machine.hierarchies()
    _mount("--make-rprivate", "/")
    _mount("-t", "proc", "proc", "/proc")
    _mount("-t", "sysfs", "sysfs", "/sys")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/sys/fs/cgroup")
    for hierarchy in hierarchies:
        hierarchy.folder.mkdir()
        _mount("-t", "cgroup", "-o", hierarchy.mount_options, "cgroup", str(hierarchy.folder))
        for controller in hierarchy.controllers:
            link = hierarchy.folder.with_name(controller)
            if not link.exists():
                link.symlink_to(hierarchy.folder.name)
    for folder in ("/run", "/var/lib", "/var/log"):
        _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
    for setting in KERNEL_SETTINGS:
        real, own = Path("/proc/sys") / setting, scratch / "settings" / setting
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(real.read_text())
        _mount("--bind", str(own), str(real))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


# --- cgroups ----------------------------------------------------------------------------------------------------------
def _groups(name: str) -> list[Path]:
    return [hierarchy.folder / name for hierarchy in machine.hierarchies()]


def _enter(groups: Sequence[Path]) -> None:
    """Move this process into cgroups of its own, one a hierarchy: they become the root of what the sandbox sees."""
    for group in groups:
        group.mkdir()
        for inherited in ("cpuset.cpus", "cpuset.mems"):  # empty at first, and then no process may enter
            if (group / inherited).exists():
                (group / inherited).write_text((group.parent / inherited).read_text())
        if (group / "cpu.shares").exists():
            (group / "cpu.shares").write_text(str(CPU_SHARES))
        (group / "cgroup.procs").write_text(str(os.getpid()))


def _leave(groups: Sequence[Path]) -> None:
    """Move this process out of them again, as a group with a member cannot be removed."""
    for group in groups:
        if group.exists():
            (group.parent / "cgroup.procs").write_text(str(os.getpid()))


# --- the reaper -------------------------------------------------------------------------------------------------------
def _reap(scratch: Path, groups: Sequence[Path]) -> None:
    """Remove cgroups, as soon as those killed in them are gone, and the folder."""
    end = time.monotonic() + REAP_SECONDS
    for group in groups:
        while (left := _remove_group(group)) is not None:
            if time.monotonic() > end:
                print(f"error: {group} cannot be removed: {left}; its processes: {_members(group)}", file=sys.stderr, flush=True)
                break
            time.sleep(0.05)
    shutil.rmtree(scratch)


def _remove_group(group: Path) -> OSError | None:
    """Return why it could not be removed; None when it is not there any more."""
    for folder, _, _ in os.walk(group, topdown=False):
        try:
            Path(folder).rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            return error
    return None


def _members(group: Path) -> list[str]:
    return [pid for file in group.rglob("cgroup.procs") for pid in file.read_text().split()]


if __name__ == "__main__":
    # The reaper: waits for the end of its input, which is the end of `run`.
    sys.stdin.read()
    _reap(Path(sys.argv[1]), _groups(Path(sys.argv[1]).name))
