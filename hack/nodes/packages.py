"""The programs of a node, unpacked into the cache from the distribution's packages. Nothing is installed, and no service is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nodes import cache, machine

PACKAGES = ("containerd", "runc", "containernetworking-plugins", "catatonit", "debootstrap")


class PackageError(Exception):
    """A package cannot be downloaded, or one of its programs does not start."""


def provide() -> Path:
    """A folder that looks like the root of a system with `PACKAGES` installed. Raises `PackageError`."""
    codename = machine.release()["VERSION_CODENAME"]
    return cache.made_once(cache.FOLDER / f"packages-{codename}-{cache.key(*PACKAGES)}", _make)


def _make(folder: Path) -> None:
    print(f"taking {', '.join(PACKAGES)} from the distribution's packages", file=sys.stderr)
    downloads = folder / "downloads"
    downloads.mkdir()
    _apt(["update"], downloads)
    _apt(["download", *PACKAGES], downloads)
    for package in downloads.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
        package.unlink()
    for program in ("usr/sbin/runc", "usr/bin/containerd"):
        tried = subprocess.run([folder / program, "--version"], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            raise PackageError(f"{program} of the distribution does not start: {tried.stderr.strip()}")


def _apt(arguments: list[str], folder: Path) -> None:
    command = ["apt-get", "--quiet=2", "--option=APT::Sandbox::User=root", *arguments]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PackageError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")


def search_path(packages: Path) -> str:
    """PATH with the packages' programs in front: containerd finds its shims there, and debootstrap what it needs."""
    return f"{packages / 'usr/bin'}:{packages / 'usr/sbin'}:{os.environ.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}"
