"""One try to take a donor's state: what comes is checked on a thread of its own, and handed to the training thread part by part.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import queue
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from diloco.algorithm.layout import Layout
from diloco.learner.store import Float32Array
from diloco.protocol import rpc
from diloco.protocol.channel import Keepalive, client_options
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Chunk, Donor, StateMessage, StatePart, StateWanted
from diloco.protocol.framing import Assembler, FramingError
from diloco.protocol.tls import TlsError, TlsFiles
from diloco.recovery.parts import MOST_ARRAYS, PART_ELEMENTS, PieceArray, StateError, elements, from_message
from diloco.recovery.values import MOST_BYTES, decode

_AHEAD = 4
"""Parts that may wait for the training thread."""


@dataclass(frozen=True, slots=True)
class ArraysCame:
    """A part whose checksum is right."""

    arrays: Sequence[PieceArray]
    versions: Sequence[int]
    values: Float32Array = field(repr=False)
    """The values of all arrays, one after the other."""


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
        donor: Donor,
        wanted: StateWanted,
        layout: Layout,
        fragments: int,
        tls: TlsFiles,
        host_name: str,
        keepalive: Keepalive,
        came: Callable[[], None],
    ) -> None:
        """`host_name`: what the donor's certificate must say. `came` is called on the copy's thread when there is something to take."""
        self._donor = donor
        self._wanted = wanted
        self._layout = layout
        self._fragments = fragments
        self._tls = tls
        self._host_name = host_name
        self._keepalive = keepalive
        self._came = came
        self._queue: queue.Queue[Came] = queue.Queue(_AHEAD)
        self._call: grpc.Call | None = None
        self._cancelled = threading.Event()
        self._part: StatePart | None = None
        self._arrays: list[PieceArray] = []
        self._rest: Any = None
        self._parts = 0
        self.bytes = 0
        """That have come."""
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
        assembler = Assembler(self._expected)
        with grpc.secure_channel(self._donor.address, credentials, options=client_options(self._keepalive, self._host_name)) as channel:
            self._call = call = rpc.take(channel)(self._wanted)
            if self._cancelled.is_set():
                call.cancel()
            for message in call:
                self.heard_at = time.monotonic()
                if isinstance(message, DataChunk):
                    if (transfer := assembler.add(message)) is not None:
                        self._complete(transfer.payload)
                elif self._take(message):
                    return
        raise StateError("the donor ended before its state was whole")

    def _take(self, message: StateMessage) -> bool:
        """Take the next message. True: it was the last one. Raises StateError."""
        if self._part is not None:
            raise StateError(f"part {self._part.index} of the donor's state is not whole")
        if message.WhichOneof("message") == "end":
            if (message.end.parts, message.end.bytes) != (self._parts, self.bytes) or self._rest is None:
                raise StateError(
                    f"the donor says that its state has {message.end.parts} parts and {message.end.bytes} bytes; {self._parts} and "
                    f"{self.bytes} came{', without the small rest' if self._rest is None else ''}"
                )
            self._put(WholeCame(self._rest[0]))
            return True
        part = message.part
        if part.index != self._parts or len(part.versions) != self._fragments:
            raise StateError(f"the donor sends part {part.index} with {len(part.versions)} versions in the place of part {self._parts}")
        self._arrays = from_message(self._layout, part.arrays)
        expected = 4 * elements(self._arrays)
        if part.bytes > MOST_BYTES or (self._arrays and (part.bytes != expected or expected > 4 * PART_ELEMENTS * MOST_ARRAYS)):
            raise StateError(f"part {part.index} of the donor's state has {part.bytes} bytes, not {expected}")
        if self.begun_at is None:
            self.begun_at = time.monotonic()
        self._part = part
        return False

    def _expected(self, chunk: Chunk) -> int:
        if self._part is None or chunk.kind != Chunk.STATE or chunk.fragment != self._part.index:
            raise FramingError(f"the donor sends {Chunk.Kind.Name(chunk.kind)} {chunk.fragment} that it has not announced")
        return self._part.bytes

    def _complete(self, payload: memoryview) -> None:
        part, self._part = self._part, None
        assert part is not None
        if zlib.crc32(payload) != part.checksum:
            raise StateError(f"part {part.index} of the donor's state was changed on its way: its checksum is wrong")
        self._parts += 1
        self.bytes += len(payload)
        if self._arrays:
            values = np.frombuffer(payload, np.float32)
            if not np.isfinite(values).all():
                raise StateError(f"part {part.index} of the donor's state is not finite")
            self._put(ArraysCame(self._arrays, list(part.versions), values))
        else:
            self._rest = (decode(payload),)

    def _put(self, came: Came) -> None:
        """Wait while the training thread has enough to do."""
        while not self._cancelled.is_set():
            try:
                self._queue.put(came, timeout=0.1)
            except queue.Full:
                continue
            self._came()
            return
