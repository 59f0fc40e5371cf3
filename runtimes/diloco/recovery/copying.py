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
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece, by_tensor, overlap, within
from diloco.object_stores import words
from diloco.protocol import rpc
from diloco.protocol.channel import Keepalive, client_options
from diloco.protocol.diloco_pb2 import StateWanted
from diloco.protocol.framing import FramingError
from diloco.protocol.incoming_state import ArraysCame, EndCame, Incoming, RestCame
from diloco.protocol.state_parts import PieceArray, StateError, pieces_from_message
from diloco.protocol.state_values import decode
from diloco.protocol.tls import TlsError, TlsFiles
from diloco.snapshots.store import SnapshotError, Unusable
from diloco.snapshots.stored_state import Block, StoredState, UnitFolder, check_fits
from diloco.wording import plural

_AHEAD = 4
"""Parts that may wait for the training thread."""
_PROCESSES_AT_ONCE = 4
"""How many processes of a donor one of the taker hears at a time."""
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
    """A copy of what this process owns, of the processes of a donor."""

    def __init__(
        self,
        addresses: Sequence[str],
        wanted: StateWanted,
        layout: Layout,
        fragments: int,
        tls: TlsFiles,
        host_name: str,
        keepalive: Keepalive,
        came: Callable[[], None],
    ) -> None:
        """
        Args:
            addresses: host:port of each process of the donor, rank 0 first
            wanted: for each of them, but the small rest for the first one only
            fragments: how many the model has
            host_name: what the certificate of the donor must say
            came: see `Copy`
        """
        super().__init__(came)
        self._wanted = wanted
        self._layout = layout
        self._fragments = fragments
        self._tls = tls
        self._host_name = host_name
        self._keepalive = keepalive
        self._lock = threading.Lock()
        self._addresses = deque(enumerate(addresses))
        self._addresses.rotate(-wanted.rank)
        self._alone = len(addresses) == 1
        self._missing = sum(piece.elements for piece in pieces_from_message(layout, wanted.pieces.pieces))
        """Elements of the model that did not come yet."""
        self._rest: Any = None
        self._calls: list[grpc.Call] = []
        self._error: Exception | None = None

    def cancel(self) -> None:
        super().cancel()
        self._end_calls()

    def _end_calls(self) -> None:
        with self._lock:
            self._addresses.clear()
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def _read(self) -> WholeCame:
        # Units are mostly sharded alike. Then the process of the same rank has all, and no other one is asked.
        self._take_next()
        # Not a pool, whose threads keep the process at its end.
        threads = [threading.Thread(target=self._take_in_turn, name="diloco-copy", daemon=True) for _ in range(_PROCESSES_AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        if self._missing > 0 and not self._alone:
            raise StateError(f"the donor's processes did not give {plural(self._missing, 'element')} of what this one owns")
        return WholeCame(self._rest)

    def _take_in_turn(self) -> None:
        while self._missing > 0 and self._take_next():
            pass

    def _take_next(self) -> bool:
        """Take what the next process of the donor has. False if none is left."""
        with self._lock:
            if not self._addresses:
                return False
            rank, address = self._addresses.popleft()
        try:
            elements = self._take(rank, address)
        except Exception as error:  # noqa: BLE001 - raised again by `_read`
            self._error = self._error or error
            self._end_calls()
            return False
        with self._lock:
            self._missing -= elements
        return True

    def _take(self, rank: int, address: str) -> int:
        """Take what one process of the donor has. Return its elements of the model."""
        wanted = StateWanted()
        wanted.CopyFrom(self._wanted)
        wanted.without_rest = wanted.without_rest or rank != 0
        incoming = Incoming(self._layout, self._fragments, with_rest=not wanted.without_rest)
        credentials = self._tls.read().channel_credentials()
        with grpc.secure_channel(address, credentials, options=client_options(self._keepalive, self._host_name)) as channel:
            call = rpc.take(channel)(wanted)
            with self._lock:
                self._calls.append(call)
            if self._cancelled.is_set() or self._error is not None:
                call.cancel()
            before = 0
            for message in call:
                came = incoming.add(message)
                with self._lock:
                    self.bytes += incoming.bytes - before
                before = incoming.bytes
                self._heard()
                if isinstance(came, ArraysCame):
                    self._put(came)
                elif isinstance(came, RestCame):
                    self._rest = decode(came.data)
                elif isinstance(came, EndCame):
                    return came.elements
        raise StateError("the donor ended before its state was whole")


class StoredCopy(Copy):
    """A copy of what this process owns, of what the unit has stored itself."""

    def __init__(
        self,
        find: Callable[[], Found],
        unit: str,
        kind: str,
        layout: Layout,
        pieces: Sequence[Piece],
        came: Callable[[], None],
        *,
        with_rest: bool = True,
    ) -> None:
        """
        Args:
            find: finds the state, on the thread. Raises SnapshotError and what drivers raise
            unit: whose the state must be
            kind: what it must be, see `InnerState.kind`
            pieces: what this process owns
            came: see `Copy`
        """
        super().__init__(came)
        self.found: Found | None = None
        """What is copied. None: it is looked for."""
        self._find = find
        self._unit = unit
        self._kind = kind
        self._layout = layout
        self._pieces = by_tensor(pieces)
        self._with_rest = with_rest

    def _read(self) -> WholeCame:
        found = self._find()
        check_fits(found.state, self._unit, self._kind, self._layout)
        _log.info("takes the state of outer step %d that it has stored in %s/%s", found.state.t, found.folder.uri, found.state.name)
        self.found = found
        self._came()
        try:
            return self._read_state(found.folder, found.state)
        except Unusable as error:
            raise _unusable(error, found.folder) from error

    def _read_state(self, folder: UnitFolder, state: StoredState) -> WholeCame:
        waiting: deque[tuple[Block, Future[bytes]]] = deque()
        blocks = iter([block for block in state.blocks if overlap((array.piece for array in block.arrays), self._pieces)])
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
            self._put(self._share(block.arrays, values))
        rest = b""
        if self._with_rest:
            rest = folder.read_rest(state)
            self.bytes += len(rest)
            self._heard()
        return WholeCame(decode(rest) if rest else None, state.t)

    def _share(self, arrays: Sequence[PieceArray], values: NDArray[np.float32]) -> ArraysCame:
        """Return what this process owns of some arrays. `values`: those of one array after the other."""
        shares: list[PieceArray] = []
        parts: list[NDArray[np.float32]] = []
        start = 0
        for array in arrays:
            of_array = values[start : start + array.piece.elements]
            start += array.piece.elements
            for piece in overlap((array.piece,), self._pieces):
                shares.append(PieceArray(piece, array.name, array.dtype))
                parts.append(within(piece, array.piece, of_array).reshape(-1))
        return ArraysCame(shares, (), np.concatenate(parts))


@dataclass(frozen=True, slots=True)
class Found:
    """A stored state, and where it is."""

    folder: UnitFolder
    state: StoredState
    former: str = ""
    """The folder of another job in whose place it was found. Empty: in this job's own."""


def newest(folder_of: Callable[[str], UnitFolder], former: Sequence[str]) -> Found:
    """Return the newest state of this job, or of the first of the `former` ones that has any. Raises StateError, and what drivers raise."""
    where = ""
    for one in ("", *former):
        folder = folder_of(one)
        where = where or folder.uri
        try:
            state = folder.newest()
        except Unusable as error:
            raise _unusable(error, folder) from error
        if state is not None:
            return Found(folder, state, one)
    raise StateError(f"the unit has stored no state in {where}")


def _unusable(error: Unusable, folder: UnitFolder) -> StateError:
    return StateError(f"what the unit has stored cannot be used: {error} ({folder.uri})")


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
