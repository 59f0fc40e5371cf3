"""Namespaces in which real nodes can run without touching this machine. Nothing of them remains.

A command runs as the child of process 1 of new PID, mount, network, IPC, UTS and cgroup namespaces. When the command ends, or process 1 or
the caller of `run` is killed, the kernel ends every process in the sandbox. With the last of them go bridges, mounts, network namespaces
and addresses. The kernel keeps cgroups and folders; a reaper, which lives a moment longer than `run`, removes these.

/run, /var/lib, /var/log and the kernel settings that a kubelet changes are the sandbox's own. The sandbox has no connection to a network.

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
"""Settings that a kubelet changes although they are the whole machine's. The kubelet gets files of its own to write to instead."""
SCRATCH_VARIABLE = "DILOCO_NODES_SCRATCH"
"""Environment variable with the command's folder on the disk, which goes away with the sandbox."""
CPU_SHARES = 4096
"""The sandbox's share of the processor; others on the machine have 1024 each. With as little, the many processes of control plane, nodes
and pods would together get the time of one."""
REAP_SECONDS = 60.0
"""How long the reaper waits for killed processes to go. Only a defect takes this long; usual is less than a second."""


def run(command: Sequence[str]) -> int:
    """Run a command in a new sandbox, in this working directory, and return its exit status: 128 + n for a signal n. Needs root. Raises
    `cache.InUse`.

    Call this last: afterwards this process can start no process outside the sandbox's PID namespace.
    """
    with cache.held() as lock:
        scratches = cache.FOLDER / "scratch"
        for leftover in scratches.glob("*"):  # folders of runs whose reaper was killed as well
            _reap(leftover, _groups(leftover.name))
        name = f"diloco-nodes-{os.getpid()}"
        scratch, groups = scratches / name, _groups(name)
        scratch.mkdir(parents=True)
        reaper = subprocess.Popen(
            [sys.executable, "-m", "nodes.sandbox", str(scratch)],
            env={**os.environ, "PYTHONPATH": str(cache.ROOT / "hack")},
            stdin=subprocess.PIPE,  # its end tells the reaper that this process has ended, however it did
            pass_fds=[lock],  # keeps the lock: no other run begins before the reaper is done
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
            os._exit(status)  # the forked copy must not go on with its parent's work
    # Ctrl-C reaches the command as well. This process ignores it, and waits for the command's end.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return _exit_status(os.waitpid(first, 0)[1])
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(alive)
        os.close(held_open)


def _be_process_one(command: Sequence[str], scratch: Path) -> int:
    """Start the command, and reap every process that ends in the sandbox until the command ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the command inherits this; the kernel keeps the default action from process 1 itself
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
    """Make the mounts and the loopback device of the new namespaces."""
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
    """Move this process into cgroups of its own, one in each hierarchy. They become the root of what the sandbox sees."""
    for group in groups:
        group.mkdir()
        for inherited in ("cpuset.cpus", "cpuset.mems"):  # a new group has none, and no process may enter it then
            if (group / inherited).exists():
                (group / inherited).write_text((group.parent / inherited).read_text())
        if (group / "cpu.shares").exists():
            (group / "cpu.shares").write_text(str(CPU_SHARES))
        (group / "cgroup.procs").write_text(str(os.getpid()))


def _leave(groups: Sequence[Path]) -> None:
    """Move this process out of its cgroups again: a group with a member cannot be removed."""
    for group in groups:
        if group.exists():
            (group.parent / "cgroup.procs").write_text(str(os.getpid()))


# --- the reaper -------------------------------------------------------------------------------------------------------
def _reap(scratch: Path, groups: Sequence[Path]) -> None:
    """Remove the cgroups, as soon as the killed processes in them are gone, and then the folder."""
    end = time.monotonic() + REAP_SECONDS
    for group in groups:
        while (error := _remove_group(group)) is not None:
            if time.monotonic() > end:
                print(f"error: {group} cannot be removed: {error}; its processes: {_members(group)}", file=sys.stderr, flush=True)
                break
            time.sleep(0.05)
    shutil.rmtree(scratch)


def _remove_group(group: Path) -> OSError | None:
    """Remove a cgroup with all groups below it. Return why that failed. None if the group is gone."""
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
