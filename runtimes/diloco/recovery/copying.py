"""One try to take a state, from a peer or from what the unit has stored. A thread of its own receives and checks it, and hands it to the
training thread part by part.

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
from diloco.protocol.diloco_pb2 import StateWanted
from diloco.protocol.framing import FramingError
from diloco.protocol.incoming_state import ArraysReceived, EndReceived, IncomingState, RestReceived
from diloco.protocol.state_parts import PieceArray, StateError, pieces_from_message
from diloco.protocol.state_values import decode
from diloco.protocol.tls import TlsError
from diloco.snapshots.store import SnapshotError, Unusable
from diloco.snapshots.stored_state import Block, StoredState, UnitFolder, check_fits
from diloco.wording import plural

_AHEAD = 4
"""Parts that may wait for the training thread."""
_PROCESSES_AT_ONCE = 4
"""Processes of the donor that one process of the taker copies from at a time."""
_BLOCKS_AT_ONCE = 4
"""Blocks that are fetched at once, because one connection to an object store does not fill a link."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CopyDone:
    """Everything came."""

    rest: Any = field(repr=False)
    t: int | None = None
    """Outer step of the marker at which it was stored. None if a peer gave it."""


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """The copy failed, and nothing more comes."""

    why: str


type CopyEvent = ArraysReceived | CopyDone | CopyFailed


class Copy(abc.ABC):
    """A queue of what came, filled by a thread that `start` begins and emptied by the training thread."""

    def __init__(self, on_arrival: Callable[[], None]) -> None:
        """The copy's thread calls `on_arrival` when there is something to take."""
        self._on_arrival = on_arrival
        self._queue: queue.Queue[CopyEvent] = queue.Queue(_AHEAD)
        self._cancelled = threading.Event()
        self.bytes = 0
        """Bytes that have come."""
        self.begun_at: float | None = None
        """When the first part began, on `time.monotonic`. None if nothing has come."""
        self.heard_at = time.monotonic()
        """When something came last, or when the copy was made."""

    def start(self) -> None:
        threading.Thread(target=self._run, name="diloco-copy", daemon=True).start()

    @abc.abstractmethod
    def _read(self) -> CopyDone:
        """Receive everything, `_put` each part, and return the end. Runs on the copy's thread; whatever it raises fails the copy."""

    def take(self) -> CopyEvent | None:
        """Return what came next, without waiting. None if nothing has come."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def cancel(self) -> None:
        """End the copy. Nothing more is wanted."""
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
        self.heard_at = time.monotonic()
        if self.begun_at is None:
            self.begun_at = self.heard_at

    def _put(self, event: CopyEvent) -> None:
        """Queue it for the training thread. Waits while `_AHEAD` parts are queued; drops it once the copy is cancelled."""
        while not self._cancelled.is_set():
            try:
                self._queue.put(event, timeout=0.1)
            except queue.Full:
                continue
            self._on_arrival()
            return


class PeersCopy(Copy):
    """A copy of what this process owns, taken from the processes of a donor."""

    def __init__(
        self,
        addresses: Sequence[str],
        wanted: StateWanted,
        layout: Layout,
        fragments: int,
        open_channel: Callable[[str], grpc.Channel],
        on_arrival: Callable[[], None],
    ) -> None:
        """
        Args:
            addresses: host:port of each process of the donor, rank 0 first
            wanted: the request for each of them; only the first one is asked for the small rest
            fragments: how many the model has
            open_channel: opens a channel to an address. May raise TlsError
            on_arrival: see `Copy`
        """
        super().__init__(on_arrival)
        self._wanted = wanted
        self._layout = layout
        self._fragments = fragments
        self._open_channel = open_channel
        self._lock = threading.Lock()
        self._addresses = deque(enumerate(addresses))
        self._addresses.rotate(-wanted.rank)
        self._alone = len(addresses) == 1
        self._missing = sum(piece.elements for piece in pieces_from_message(layout, wanted.pieces.pieces))
        """Elements of the model that have not come yet."""
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

    def _read(self) -> CopyDone:
        # Units are mostly sharded alike. Then the donor's process of this rank, which is asked first, has all that is wanted.
        self._take_next()
        # Daemon threads in place of a pool: the threads of a pool would keep the process from ending.
        threads = [threading.Thread(target=self._take_in_turn, name="diloco-copy", daemon=True) for _ in range(_PROCESSES_AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        if self._missing > 0:
            raise StateError(f"the donor's processes did not give {plural(self._missing, 'element')} of what this one owns")
        return CopyDone(self._rest)

    def _take_in_turn(self) -> None:
        while self._missing > 0 and self._take_next():
            pass

    def _take_next(self) -> bool:
        """Take what the next process of the donor has. False if no process is left, or it failed."""
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
        """Take what one process of the donor has. Return how many elements of the model that was."""
        wanted = StateWanted()
        wanted.CopyFrom(self._wanted)
        wanted.without_rest = wanted.without_rest or rank != 0
        incoming = IncomingState(self._layout, self._fragments, with_rest=not wanted.without_rest)
        with self._open_channel(address) as channel:
            call = rpc.take(channel)(wanted)
            with self._lock:
                self._calls.append(call)
            # If `_end_calls` ran before the append, it has not seen this call.
            if self._cancelled.is_set() or self._error is not None:
                call.cancel()
            before = 0
            for message in call:
                received = incoming.add(message)
                with self._lock:
                    self.bytes += incoming.bytes - before
                before = incoming.bytes
                self._heard()
                if isinstance(received, ArraysReceived):
                    self._put(received)
                elif isinstance(received, RestReceived):
                    self._rest = decode(received.data)
                elif isinstance(received, EndReceived):
                    # A version that knew of no donors of several ranks gives all, and does not say how much that is.
                    return received.elements or (self._missing if self._alone else 0)
        raise StateError("the donor ended before its state was whole")


class StoredCopy(Copy):
    """A copy of what this process owns, read from what the unit has stored itself."""

    def __init__(
        self,
        find: Callable[[], Found],
        unit: str,
        kind: str,
        layout: Layout,
        pieces: Sequence[Piece],
        on_arrival: Callable[[], None],
        *,
        with_rest: bool = True,
    ) -> None:
        """
        Args:
            find: finds the state, on the copy's thread. May raise SnapshotError and what drivers of object stores raise
            unit: the unit that must have stored the state
            kind: the kind that the state must have, see `InnerState.kind`
            pieces: what this process owns
            on_arrival: see `Copy`
            with_rest: the small rest is wanted, too
        """
        super().__init__(on_arrival)
        self.found: Found | None = None
        """The state that is copied. None while it is looked for."""
        self._find = find
        self._unit = unit
        self._kind = kind
        self._layout = layout
        self._pieces = by_tensor(pieces)
        self._with_rest = with_rest

    def _read(self) -> CopyDone:
        stored = self._find()
        check_fits(stored.state, self._unit, self._kind, self._layout)
        _log.info("takes the state of outer step %d that it has stored in %s/%s", stored.state.t, stored.folder.uri, stored.state.name)
        self.found = stored
        self._on_arrival()
        try:
            return self._read_state(stored.folder, stored.state)
        except Unusable as error:
            raise _unusable(error, stored.folder) from error

    def _read_state(self, folder: UnitFolder, state: StoredState) -> CopyDone:
        waiting: deque[tuple[Block, Future[bytes]]] = deque()
        blocks = iter([block for block in state.blocks if overlap((array.piece for array in block.arrays), self._pieces)])
        while not self._cancelled.is_set():
            while len(waiting) < _BLOCKS_AT_ONCE and (block := next(blocks, None)) is not None:
                waiting.append((block, _begin_to_read(folder, state, block, self._heard)))
            if not waiting:
                break
            block, data = waiting.popleft()
            values = np.frombuffer(data.result(), "<f4")
            if not np.isfinite(values).all():
                raise StateError(f"what the unit has stored is not finite: {block.file}")
            self.bytes += values.nbytes
            self._put(self._share(block.arrays, values))
        rest = b""
        if self._with_rest:
            rest = folder.read_rest(state, self._heard)
            self.bytes += len(rest)
        return CopyDone(decode(rest) if rest else None, state.t)

    def _share(self, arrays: Sequence[PieceArray], values: NDArray[np.float32]) -> ArraysReceived:
        """Return what this process owns of these arrays. `values` has the values of one array after the other."""
        shares: list[PieceArray] = []
        parts: list[NDArray[np.float32]] = []
        start = 0
        for array in arrays:
            of_array = values[start : start + array.piece.elements]
            start += array.piece.elements
            for piece in overlap((array.piece,), self._pieces):
                shares.append(PieceArray(piece, array.name, array.dtype))
                parts.append(within(piece, array.piece, of_array).reshape(-1))
        return ArraysReceived(shares, (), np.concatenate(parts))


@dataclass(frozen=True, slots=True)
class Found:
    """A stored state, and where it is."""

    folder: UnitFolder
    state: StoredState
    former: str = ""
    """The former job whose folder has the state. Empty if it is this job's own folder."""


def newest(folder_of: Callable[[str], UnitFolder], former: Sequence[str]) -> Found:
    """Return the newest state of this job, or of the first of the `former` jobs that has stored one.

    Raises StateError, and what drivers of object stores raise.
    """
    where = ""
    for job in ("", *former):
        folder = folder_of(job)
        where = where or folder.uri
        try:
            state = folder.newest()
        except Unusable as error:
            raise _unusable(error, folder) from error
        if state is not None:
            return Found(folder, state, job)
    raise StateError(f"the unit has stored no state in {where}")


def _unusable(error: Unusable, folder: UnitFolder) -> StateError:
    return StateError(f"what the unit has stored cannot be used: {error} ({folder.uri})")


class StoredSteps:
    """How many local steps are behind what a unit has stored. A thread of its own looks that up, because an object store may hang."""

    def __init__(self, folder: Callable[[], UnitFolder], unit: str, kind: str, layout: Layout, on_arrival: Callable[[], None]) -> None:
        """Begin to look. `unit`, `kind` and `on_arrival` are as in `StoredCopy`."""
        self.found: int | None = None
        """Local steps; 0 if the unit has stored nothing that it can take, None while that is not known."""
        threading.Thread(target=self._look, args=(folder, unit, kind, layout, on_arrival), name="diloco-stored", daemon=True).start()

    def _look(self, folder: Callable[[], UnitFolder], unit: str, kind: str, layout: Layout, on_arrival: Callable[[], None]) -> None:
        steps = 0
        try:
            if (state := folder().newest()) is not None:
                check_fits(state, unit, kind, layout)
                steps = state.steps
        except Exception as error:  # noqa: BLE001 - what is wrong with it is said where it is to be taken
            _log.debug("what the unit has stored cannot be looked at: %s", words(error))
        self.found = steps
        on_arrival()


def _begin_to_read(folder: UnitFolder, state: StoredState, block: Block, heard: Callable[[], None]) -> Future[bytes]:
    """Read a block on a daemon thread of its own, which calls `heard` each time that a piece of it has come. While a driver
    hangs, a thread of a pool would keep the process from ending."""
    data: Future[bytes] = Future()

    def read() -> None:
        try:
            data.set_result(folder.read(state, block.file, block.bytes, block.sha256, heard))
        except BaseException as error:  # noqa: BLE001 - raised again where the block is waited for
            data.set_exception(error)

    threading.Thread(target=read, name="diloco-fetch", daemon=True).start()
    return data
