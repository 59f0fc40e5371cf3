"""Ports for programs that are told where to listen."""

from __future__ import annotations

import socket
from typing import Self


class Port(int):
    """A port of 127.0.0.1 that the kernel gives to no other socket as long as this object lives.

    A port that was looked up and closed again is free, and any socket that asks for a free one may get it before the program is there: with
    hundreds of connections a second beside it that happens. So a socket holds it, and does not listen: connections are refused, and who
    binds with SO_REUSEADDR, as servers do, may listen there.
    """

    _holder: socket.socket

    @classmethod
    def hold(cls) -> Self:
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port = cls(holder.getsockname()[1])
        port._holder = holder
        return port

    def __del__(self) -> None:
        if "_holder" in self.__dict__:
            self._holder.close()


def held_port() -> Port:
    """Keep it as what it is until the program has ended: its text, or an `int` of it as `getaddrinfo` wants it, holds nothing."""
    return Port.hold()
