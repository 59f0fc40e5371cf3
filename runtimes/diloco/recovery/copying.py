"""One try to take a state, of a peer or what the unit has stored: what comes is checked on a thread of its own, and handed to the training
thread part by part.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import abc
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from diloco.algorithm.layout import Layout
from diloco.object_stores import words
from diloco.protocol import rpc
from diloco.protocol.channel import Keepalive, client_options
from diloco.protocol.diloco_pb2 import StateWanted
from diloco.protocol.framing import FramingError
from diloco.protocol.incoming_state import ArraysCame, Incoming, RestCame
from diloco.protocol.state_parts import StateError
from diloco.protocol.state_values import decode
from diloco.protocol.tls import TlsError, TlsFiles
from diloco.snapshots.store import SnapshotError, Unusable
from diloco.snapshots.stored_state import Block, StoredState, UnitFolder, check_fits

_AHEAD = 4
"""Parts that may wait for the training thread."""
_BLOCKS_AT_ONCE = 4
"""Blocks that are fetched at once: one connection to an object store carries less than a link does."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WholeCame:
    """Everything came."""

    rest: Any = field(repr=False)
    t: int | None = None
    """Outer step of the marker at which it was stored; None: a peer gave it."""


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """Nothing more comes of it."""

    why: str


type Came = ArraysCame | WholeCame | CopyFailed


class Copy(abc.ABC):
    """Begins with `start`."""

    def __init__(self, came: Callable[[], None]) -> None:
        """`came` is called on the copy's thread when there is something to take."""
        self._came = came
        self._queue: queue.Queue[Came] = queue.Queue(_AHEAD)
        self._cancelled = threading.Event()
        self.bytes = 0
        """That have come."""
        self.begun_at: float | None = None
        """When the first part began, on `time.monotonic`."""
        self.heard_at = time.monotonic()
        """When something came last."""

    def start(self) -> None:
        """Begin, on a thread of its own."""
        threading.Thread(target=self._run, name="diloco-copy", daemon=True).start()

    @abc.abstractmethod
    def _read(self) -> WholeCame:
        """Put what comes, and return the end of it. Raises what is wrong with it."""

    def take(self) -> Came | None:
        """Take what came next. Never waits."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def cancel(self) -> None:
        """Nothing more is wanted."""
        self._cancelled.set()

    def _run(self) -> None:
        try:
            self._put(self._read())
        except grpc.RpcError as error:
            detail = error.details() if isinstance(error, grpc.Call) else str(error)
            self._put(CopyFailed(detail or "the connection broke"))
        except (FramingError, StateError, TlsError, SnapshotError) as error:
            self._put(CopyFailed(str(error)))
        except Exception as error:  # noqa: BLE001 - whatever it is: another donor, or none
            self._put(CopyFailed(f"{type(error).__name__}: {words(error)}"))

    def _heard(self) -> None:
        """Note that something came."""
        self.heard_at = time.monotonic()
        if self.begun_at is None:
            self.begun_at = self.heard_at

    def _put(self, came: Came) -> None:
        """Wait while the training thread has enough to do."""
        while not self._cancelled.is_set():
            try:
                self._queue.put(came, timeout=0.1)
            except queue.Full:
                continue
            self._came()
            return


class PeersCopy(Copy):
    """A copy of a peer's state."""

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
        """Ask at `address`: `host:port`. `host_name`: what the donor's certificate must say. `came`: see `Copy`."""
        super().__init__(came)
        self._address = address
        self._wanted = wanted
        self._incoming = Incoming(layout, fragments)
        self._tls = tls
        self._host_name = host_name
        self._keepalive = keepalive
        self._call: grpc.Call | None = None

    def cancel(self) -> None:
        super().cancel()
        if self._call is not None:
            self._call.cancel()

    def _read(self) -> WholeCame:
        credentials = self._tls.read().channel_credentials()
        with grpc.secure_channel(self._address, credentials, options=client_options(self._keepalive, self._host_name)) as channel:
            self._call = call = rpc.take(channel)(self._wanted)
            if self._cancelled.is_set():
                call.cancel()
            rest: Any = None
            for message in call:
                came = self._incoming.add(message)
                self.bytes = self._incoming.bytes
                self._heard()
                if isinstance(came, ArraysCame):
                    self._put(came)
                elif isinstance(came, RestCame):
                    rest = decode(came.data)
                elif came is not None:
                    return WholeCame(rest)
        raise StateError("the donor ended before its state was whole")


class StoredCopy(Copy):
    """A copy of what the unit has stored itself, in the first folder in which there is something."""

    def __init__(self, folders: Callable[[], Iterator[UnitFolder]], unit: str, kind: str, layout: Layout, came: Callable[[], None]) -> None:
        """Take the newest state of `unit`, which must be of this `kind`. `folders` is called on the thread. `came`: see `Copy`."""
        super().__init__(came)
        self._folders = folders
        self._unit = unit
        self._kind = kind
        self._layout = layout

    def _read(self) -> WholeCame:
        where = ""
        for folder in self._folders():
            where = where or folder.uri
            try:
                state = folder.newest()
                if state is not None:
                    return self._read_state(folder, state)
            except Unusable as error:
                raise StateError(f"what the unit has stored cannot be used: {error} ({folder.uri})") from error
        raise StateError(f"the unit has stored no state in {where}")

    def _read_state(self, folder: UnitFolder, state: StoredState) -> WholeCame:
        check_fits(state, self._unit, self._kind, self._layout)
        _log.info("takes the state of outer step %d that it has stored in %s/%s", state.t, folder.uri, state.name)
        waiting: deque[tuple[Block, Future[bytes]]] = deque()
        blocks = iter(state.blocks)
        while not self._cancelled.is_set():
            while len(waiting) < _BLOCKS_AT_ONCE and (block := next(blocks, None)) is not None:
                waiting.append((block, _begin_to_read(folder, state, block)))
            if not waiting:
                break
            block, data = waiting.popleft()
            values = np.frombuffer(data.result(), "<f4")
            if not np.isfinite(values).all():
                raise StateError(f"what the unit has stored is not finite: {block.file}")
            self.bytes += values.nbytes
            self._heard()
            self._put(ArraysCame(block.arrays, (), values))
        rest = folder.read_rest(state)
        self.bytes += len(rest)
        self._heard()
        return WholeCame(decode(rest), state.t)


class StoredSteps:
    """How many local steps are behind what a unit has stored: looked up on a thread of its own, as a store may hang."""

    def __init__(self, folder: Callable[[], UnitFolder], unit: str, kind: str, layout: Layout, came: Callable[[], None]) -> None:
        """Begin to look. The rest: as of `StoredCopy`."""
        self.found: int | None = None
        """0: nothing that this unit can take; None: it is not known yet."""
        threading.Thread(target=self._look, args=(folder, unit, kind, layout, came), name="diloco-stored", daemon=True).start()

    def _look(self, folder: Callable[[], UnitFolder], unit: str, kind: str, layout: Layout, came: Callable[[], None]) -> None:
        found = 0
        try:
            if (state := folder().newest()) is not None:
                check_fits(state, unit, kind, layout)
                found = state.steps
        except Exception as error:  # noqa: BLE001 - what is wrong with it is said where it is to be taken
            _log.debug("what the unit has stored cannot be looked at: %s", words(error))
        self.found = found
        came()


def _begin_to_read(folder: UnitFolder, state: StoredState, block: Block) -> Future[bytes]:
    """Read a block on a thread of its own. Not on one of a pool: these keep the process at its end while a driver hangs."""
    data: Future[bytes] = Future()

    def read() -> None:
        try:
            data.set_result(folder.read(state, block.file, block.bytes, block.sha256))
        except BaseException as error:  # noqa: BLE001 - raised again where the block is waited for
            data.set_exception(error)

    threading.Thread(target=read, name="diloco-fetch", daemon=True).start()
    return data
