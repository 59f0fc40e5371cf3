"""A process's state whose copies come from other processes of the test, without servers and connections: a test moves each part."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from diloco.algorithm.fragments import Fragment
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece
from diloco.contract import learner_identity
from diloco.learner.incarnations import Incarnations
from diloco.learner.inner_state import InnerState
from diloco.learner.stored_parts import PartsOfProcess
from diloco.protocol.diloco_pb2 import Donor
from diloco.protocol.incoming_state import ArraysReceived, EndReceived, IncomingState, RestReceived
from diloco.protocol.outgoing_state import part_messages
from diloco.protocol.state_parts import StateError, cut
from diloco.protocol.state_values import decode, encode
from diloco.recovery.adopted_versions import AdoptedVersions
from diloco.recovery.copying import CopyDone, CopyEvent, CopyFailed
from diloco.recovery.process_state import ProcessState
from diloco.recovery.state_donor import StateDonor
from diloco.recovery.state_transfer import Refused, StateTransfer
from diloco.snapshots.stored_state import Block, BlockWriter, UnitFolder

JOB = "job"


class Stream:
    """What one process of a donor gives to one of the taker."""

    def __init__(self, transfer: StateTransfer, layout: Layout, fragments: int, *, with_rest: bool) -> None:
        self.transfer = transfer
        self._incoming = IncomingState(layout, fragments, with_rest=with_rest)
        self._layout = layout
        self._parts = 0
        self.over = False

    def next(self) -> ArraysReceived | RestReceived | EndReceived | None:
        """The next part on its way; None: none is staged. Raises StateError."""
        if self.transfer.over:
            raise StateError(self.transfer._why)
        if not self.transfer._queue or not _there(self.transfer._queue[0]):
            return None
        part = self.transfer._queue.popleft()
        if part is None:
            self.over = True
            self.transfer.end()
            return EndReceived(self.transfer._elements)
        values = part.staged.wait()
        payload = memoryview(values).cast("B") if part.arrays else memoryview(encode(values))
        received = None
        for message in part_messages(self._parts, part.arrays, payload, part.versions, self._layout):
            received = self._incoming.add(message)
        self._parts += 1
        self.transfer.taken(part)
        assert not isinstance(received, EndReceived)
        return received


def _there(part: Any) -> bool:
    """Whether all ranks have read their small rest, if the part is that."""
    return part is None or bool(part.arrays) or all(answer.done for answer in getattr(part.staged, "asked", ()))


class LocalCopy:
    """A `Copy` whose parts come when `send` is called, one of each stream at a time."""

    def __init__(self, open_streams: Callable[[], Sequence[Stream]], on_arrival: Callable[[], None]) -> None:
        self.events: deque[CopyEvent] = deque()
        self.bytes = 0
        self.begun_at: float | None = None
        self.heard_at = time.monotonic()
        self.over = False
        self.looks_at: Callable[[ArraysReceived], None] = lambda arrays: None
        """Called with what comes."""
        self._tell = on_arrival
        self._rest: Any = None
        self.streams: Sequence[Stream] = ()
        try:
            self.streams = open_streams()
        except Refused as error:
            self.fail(str(error))

    def take(self) -> CopyEvent | None:
        return self.events.popleft() if self.events else None

    def cancel(self) -> None:
        self.over = True
        for stream in self.streams:
            stream.transfer.end()

    def fail(self, why: str) -> None:
        if not self.over:
            self._put(CopyFailed(why))
            self.cancel()

    def send(self) -> None:
        """One more part of each stream arrives, as far as they are staged."""
        self.heard_at = time.monotonic()
        for stream in self.streams:
            if self.over or stream.over:
                continue
            try:
                received = stream.next()
            except StateError as error:
                self.fail(str(error))
                return
            if isinstance(received, RestReceived):
                self._rest = decode(received.data)
            elif isinstance(received, ArraysReceived):
                self.looks_at(received)
                self._put(received)
        if not self.over and all(stream.over for stream in self.streams):
            self.over = True
            self._put(CopyDone(self._rest))

    def _put(self, event: CopyEvent) -> None:
        self.events.append(event)
        self._tell()


class LocalProcess(ProcessState):
    """See the module."""

    def __init__(
        self,
        layout: Layout,
        fragments: Sequence[Fragment],
        inner: InnerState,
        owned: Sequence[Piece],
        incarnations: Incarnations,
        donors: Callable[[Donor], Sequence[StateDonor]],
        *,
        unit: str = "u",
        attempt: int = 1,
        rank: int = 0,
        uri: str = "memory://nowhere",
        part_elements: int = 50,
    ) -> None:
        """`donors`: of each process of a donor. `uri`: where this unit stores. `part_elements`: of a stored part, at most."""
        self.inner = inner
        self.fragment_of = {tensor.name: index for index, fragment in enumerate(fragments) for tensor in fragment.tensors}
        self.adopted = AdoptedVersions(len(fragments))
        self.state_donor = StateDonor(layout, inner, owned, None, JOB, incarnations.known, lambda: 0.0, alone=False)
        self.copies: list[LocalCopy] = []
        self.uri = uri
        self._config: Any = SimpleNamespace(job=SimpleNamespace(uid=JOB), unit=unit, attempt=attempt)
        self._layout, self._owned, self._parts = layout, owned, cut(owned, part_elements)
        self._incarnations, self._rank, self._donors = incarnations, rank, donors

    address = "here"

    def store(self, name: str, done: Callable[[Sequence[Block], str], None] = lambda blocks, error: None) -> PartsOfProcess:
        return PartsOfProcess(self.inner, self._parts, lambda: BlockWriter(UnitFolder(self.uri), name, self._rank), done)

    def copy_of_peer(self, donor: Donor, on_arrival: Callable[[], None]) -> Any:
        def open_streams() -> list[Stream]:
            streams = []
            for number, state_donor in enumerate(self._donors(donor)):
                wanted = self._wanted(donor)
                wanted.without_rest = wanted.without_rest or number != 0
                transfer = state_donor.begin(wanted, learner_identity(JOB, wanted.unit, wanted.attempt))
                streams.append(Stream(transfer, self._layout, len(self.adopted.versions), with_rest=not wanted.without_rest))
            return streams

        self.copies.append(LocalCopy(open_streams, on_arrival))
        return self.copies[-1]

    def _folder_of(self, former: str) -> UnitFolder:
        return UnitFolder(self.uri)

    def close(self) -> None:
        self.state_donor.close()
