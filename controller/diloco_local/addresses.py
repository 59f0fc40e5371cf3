"""Loopback addresses for pods: every pod has an IP of its own in 127/8, so it can use the same ports as in a cluster.

A control plane reserves one /16 of 127/8 by a lock on a file in the temporary directory, so that two control planes of one machine
do not collide. None reserves 127.0.0.0/16, because other programs listen there.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import re
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from diloco_operator.api.names import syncer_pod_name

_NETWORKS = range(1, 255)
_FIRST, _LAST = 2, 0xFFFE
_NAME = re.compile(
    r"(?<![\w.-])(?P<pod>[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)\.(?P<subdomain>[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)"
    r"\.(?P<namespace>[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)\.svc(?:\.cluster\.local)?(?![\w-]|\.\w)"
)


class NoAddressLeft(RuntimeError):
    """Every network, or every address of the network, is in use."""


class PortTaken(RuntimeError):
    """Another program listens on the port, so no pod could."""


class Network:
    """A /16 of 127/8, reserved as long as this object is open."""

    def __init__(self, second: int, lock: int) -> None:
        self.second = second
        self._lock = lock

    @classmethod
    def reserve(cls, rng: random.Random, folder: Path | None = None) -> Network:
        """Reserve a free network. Raises NoAddressLeft."""
        folder = folder or Path(tempfile.gettempdir())
        for second in rng.sample(_NETWORKS, len(_NETWORKS)):
            try:
                lock = os.open(folder / f"diloco-loopback-127.{second}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            except PermissionError:
                continue  # another user's
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            return cls(second, lock)
        raise NoAddressLeft(f"All networks 127.1.0.0/16 to 127.254.0.0/16 are in use, see the lock files in {folder}.")

    def check_port(self, port: int, what: str) -> None:
        """Raise PortTaken if another program listens on the port on all addresses, including the pods'. `what`: what needs the port."""
        with socket.socket() as probe:
            # As gRPC binds the syncer's server: it sets this one, and not SO_REUSEPORT, which would pass beside a listener that has it.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((f"127.{self.second}.255.254", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                raise PortTaken(
                    f"port {port} is taken on every address of this machine, and {what} must listen on it. No option changes this port: "
                    f"end the program that has it (`ss -ltnp 'sport = :{port}'` shows it), or let it listen on 127.0.0.1 only"
                ) from error

    def close(self) -> None:
        """Release the network. The lock's file stays: if it were deleted, two processes could lock two files of one name."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class Addresses:
    """Assigns the addresses of one /16. Pure."""

    def __init__(self, second: int) -> None:
        self._prefix = f"127.{second}"
        self._next = _FIRST
        self._of_owner: dict[str, str] = {}
        self._of_name: dict[str, str] = {}
        self._used: set[str] = set()

    def of_name(self, host: str, subdomain: str, namespace: str) -> str:
        """The address of a pod's DNS name. It is assigned at the first use of the name and stays the same."""
        key = f"{host}.{subdomain}.{namespace}"
        if key not in self._of_name:
            self._of_name[key] = self._take()
        return self._of_name[key]

    def of_owner(self, owner: str) -> str:
        """The address of a pod without a DNS name (`owner` is its uid) or of a node. It stays the same until it is released."""
        if owner not in self._of_owner:
            self._of_owner[owner] = self._take()
        return self._of_owner[owner]

    def release(self, owner: str) -> None:
        if address := self._of_owner.pop(owner, None):
            self._used.discard(address)

    def resolve(self, text: str, syncer: Callable[[str], str] = str) -> str:
        """Return `text` with every name `<pod>.<subdomain>.<namespace>.svc[.cluster.local]` in it replaced by its address. `syncer`: where
        a syncer is reached, by its own address."""

        def address(match: re.Match[str]) -> str:
            own = self.of_name(match["pod"], match["subdomain"], match["namespace"])
            return syncer(own) if match["pod"] == syncer_pod_name(match["subdomain"]) else own

        return _NAME.sub(address, text)

    def _take(self) -> str:
        for _ in range(_FIRST, _LAST + 1):
            number = self._next
            # Cyclic, so that an address that was just released is the last to be used again.
            self._next = number + 1 if number < _LAST else _FIRST
            address = f"{self._prefix}.{number >> 8}.{number & 255}"
            if address not in self._used:
                self._used.add(address)
                return address
        raise NoAddressLeft(f"All addresses of {self._prefix}.0.0/16 are in use.")
