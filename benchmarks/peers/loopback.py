"""A network namespace that has only loopback. The bytes on it, which processes in the namespace send to each other, are counted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from benchmarks.namespaces import entering, in_namespace, new_namespace, run_in

ADDRESS = "127.0.0.1"


class Loopback:
    """The namespace. It lives as long as the context is open."""

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
        """The address of all processes."""
        return ADDRESS

    def entering(self, _region: int) -> Callable[[], None]:
        """A `preexec_fn` that moves a new process into the namespace."""
        return entering(self._namespace)

    def sent_bytes(self) -> int:
        """Bytes sent so far, with the headers of IP and TCP."""
        return sent_bytes(in_namespace(self._namespace, lambda: Path("/proc/thread-self/net/dev").read_text(encoding="ascii")))


def sent_bytes(devices: str) -> int:
    """The bytes that loopback has sent: the ninth column after its name in `devices`, the text of /proc/net/dev. Raises ValueError without
    loopback."""
    for line in devices.splitlines():
        name, _, columns = line.partition(":")
        if name.strip() == "lo":
            return int(columns.split()[8])
    raise ValueError(f"no loopback in {devices!r}")
