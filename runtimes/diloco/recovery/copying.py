"""One try to take a donor's state: what comes is checked on a thread of its own, and handed to the training thread part by part.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from diloco.algorithm.layout import Layout
from diloco.protocol import rpc
from diloco.protocol.channel import Keepalive, client_options
from diloco.protocol.diloco_pb2 import StateWanted
from diloco.protocol.framing import FramingError
from diloco.protocol.incoming_state import ArraysCame, Incoming, RestCame
from diloco.protocol.state_parts import StateError
from diloco.protocol.state_values import decode
from diloco.protocol.tls import TlsError, TlsFiles

_AHEAD = 4
"""Parts that may wait for the training thread."""


@dataclass(frozen=True, slots=True)
class WholeCame:
    """Everything came."""

    rest: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """This donor gives nothing more."""

    why: str


type Came = ArraysCame | WholeCame | CopyFailed


class Copy:
    """Begins when it is made."""

    def __init__(
        self,
        address: str,
        wanted: StateWanted,
        layout: Layout,
        fragments: int,
        tls: TlsFiles,
        host_name: str,
        keepalive: Keepalive,
        came: Callable[[], None],
    ) -> None:
        """Ask at `address`: `host:port`. `host_name`: what the donor's certificate must say. `came` is called on the copy's thread when
        there is something to take."""
        self._address = address
        self._wanted = wanted
        self._incoming = Incoming(layout, fragments)
        self._tls = tls
        self._host_name = host_name
        self._keepalive = keepalive
        self._came = came
        self._queue: queue.Queue[Came] = queue.Queue(_AHEAD)
        self._call: grpc.Call | None = None
        self._cancelled = threading.Event()
        self.begun_at: float | None = None
        """When the first part began, on `time.monotonic`."""
        self.heard_at = time.monotonic()
        """When something came last."""
        threading.Thread(target=self._run, name="diloco-copy", daemon=True).start()

    def take(self) -> Came | None:
        """Take what came next. Never waits."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def cancel(self) -> None:
        """Nothing more is wanted."""
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()

    def _run(self) -> None:
        try:
            self._read()
        except grpc.RpcError as error:
            detail = error.details() if isinstance(error, grpc.Call) else str(error)
            self._put(CopyFailed(detail or "the connection broke"))
        except (FramingError, StateError, TlsError) as error:
            self._put(CopyFailed(str(error)))
        except Exception as error:  # noqa: BLE001 - whatever it is: another donor, or none
            self._put(CopyFailed(f"{type(error).__name__}: {error}"))

    def _read(self) -> None:
        credentials = self._tls.read().channel_credentials()
        with grpc.secure_channel(self._address, credentials, options=client_options(self._keepalive, self._host_name)) as channel:
            self._call = call = rpc.take(channel)(self._wanted)
            if self._cancelled.is_set():
                call.cancel()
            rest: Any = None
            for message in call:
                self.heard_at = time.monotonic()
                came = self._incoming.add(message)
                if self.begun_at is None and self._incoming.begun:
                    self.begun_at = self.heard_at
                if isinstance(came, ArraysCame):
                    self._put(came)
                elif isinstance(came, RestCame):
                    rest = decode(came.data)
                elif came is not None:
                    self._put(WholeCame(rest))
                    return
        raise StateError("the donor ended before its state was whole")

    @property
    def bytes(self) -> int:
        """That have come."""
        return self._incoming.bytes

    def _put(self, came: Came) -> None:
        """Wait while the training thread has enough to do."""
        while not self._cancelled.is_set():
            try:
                self._queue.put(came, timeout=0.1)
            except queue.Full:
                continue
            self._came()
            return
