"""Whether this machine can have real nodes, and facts about it that they need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from nodes import cache

TOOLS = ("apt-get", "dpkg-deb", "ip", "tar", "chroot")
FILE_SYSTEMS = ("overlay", "cgroup", "tmpfs", "proc", "sysfs")
CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "devices")
"""The cgroup controllers with which runc limits pods."""
NAMESPACES = ("mnt", "net", "pid", "ipc", "uts", "cgroup")
CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_NET_ADMIN": 12}
"""Name -> bit."""
FREE_GIGABYTES = 15
"""One and a half times the disk that images, nodes and the learners' packages take."""


def why_not() -> list[str]:
    """A sentence for each thing that real nodes lack on this machine. Empty if they can run."""
    return list(_missing())


def _missing() -> Iterator[str]:
    if os.uname().sysname != "Linux":
        yield f"containers need Linux, and this is {os.uname().sysname}."
        return
    if os.geteuid() != 0:
        yield "namespaces, bridges and mounts need root: run it as root."
        return
    if release().get("ID") != "debian":
        name = release().get("PRETTY_NAME", "another system")
        yield f"containerd, runc and the base image are taken from Debian's packages, and this is {name}."
    for tool in TOOLS:
        if shutil.which(tool) is None:
            yield f"the program {tool} is missing: install the package that has it (ip: iproute2)."
    yield from _missing_of_kernel()
    if (free := shutil.disk_usage(_existing(cache.FOLDER)).free >> 30) < FREE_GIGABYTES:
        yield f"{FREE_GIGABYTES} GB of disk are needed for {cache.FOLDER}, and {free} GB are free."


def _missing_of_kernel() -> Iterator[str]:
    known = Path("/proc/filesystems").read_text().split()
    for name in FILE_SYSTEMS:
        if name not in known:
            yield f"the kernel has no file system {name}."
    for name in NAMESPACES:
        if not Path(f"/proc/self/ns/{name}").exists():
            yield f"the kernel has no {name} namespaces."
    capabilities = int(
        next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")), 16
    )
    for name, bit in CAPABILITIES.items():
        if not capabilities >> bit & 1:
            yield f"root lacks {name} here: give it to this container or virtual machine."
    mounted = {controller for hierarchy in hierarchies() for controller in hierarchy.controllers}
    for name in CONTROLLERS:
        if name not in mounted:
            yield f"the cgroup v1 controller {name} is not mounted (cgroup v2 alone was never tried)."


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())


def release() -> dict[str, str]:
    """The fields of /etc/os-release. Empty if there is no such file."""
    lines = Path("/etc/os-release").read_text().splitlines() if Path("/etc/os-release").exists() else []
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}


class Hierarchy:
    """One mounted hierarchy of cgroup v1."""

    def __init__(self, mount_point: str, options: str) -> None:
        self.folder = Path(mount_point)
        named = [option for option in options.split(",") if option.startswith("name=")]
        self.controllers = [option for option in options.split(",") if option not in ("rw", "ro", "xattr", "clone_children", *named)]
        self.mount_options = ",".join(["none", *named] if named else self.controllers)


def hierarchies() -> list[Hierarchy]:
    """The hierarchies in this process's mount namespace, each once."""
    by_options: dict[str, Hierarchy] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup":
            hierarchy = Hierarchy(before.split()[4], options)
            by_options.setdefault(hierarchy.mount_options, hierarchy)
    return list(by_options.values())
