"""A network namespace of its own with loopback alone, whose bytes are counted: all that the processes in it send to each other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from benchmarks.namespaces import entering, in_namespace, new_namespace, run_in

ADDRESS = "127.0.0.1"


class Loopback:
    """The namespace, as long as the context is open."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._namespace = new_namespace(stack)
            run_in(self._namespace, "ip", "link", "set", "lo", "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @staticmethod
    def address(_region: int) -> str:
        """Return the address of all processes."""
        return ADDRESS

    def entering(self, _region: int) -> Callable[[], None]:
        """Return what a new process does first to be in it."""
        return entering(self._namespace)

    def sent_bytes(self) -> int:
        """Return the bytes sent so far, with the headers of IP and TCP."""
        return sent_bytes(in_namespace(self._namespace, lambda: Path("/proc/thread-self/net/dev").read_text(encoding="ascii")))


def sent_bytes(devices: str) -> int:
    """Read what loopback has sent from /proc/net/dev, whose ninth column after the name it is. Raises ValueError without loopback."""
    for line in devices.splitlines():
        name, _, columns = line.partition(":")
        if name.strip() == "lo":
            return int(columns.split()[8])
    raise ValueError(f"no loopback in {devices!r}")
