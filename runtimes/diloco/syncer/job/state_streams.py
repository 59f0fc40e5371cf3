"""The states of units on the wire: a learner stores its own, and takes it back once every process has died.

An attempt of a unit has one such stream at a time, and only the current one begins any: what units make this process hold and the volume
keep is bounded by the model, a part, and one state besides the newest. What reads and writes the volume runs in threads of its own: merges,
whose records are durable before they are sent, wait for none of it.

See docs/decisions/0266-stored-states.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from diloco.algorithm.layout import Layout
from diloco.contract import learner_identity
from diloco.free_space import remedy
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import StateBegin, StateEnd, StateMessage, StateStored, StateWanted
from diloco.protocol.framing import FramingError
from diloco.protocol.incoming_state import ArraysCame, EndCame, Incoming, RestCame
from diloco.protocol.outgoing_state import part_messages
from diloco.protocol.rpc import StoreContext, TakeContext
from diloco.protocol.state_parts import StateError
from diloco.protocol.tls import peer_identity
from diloco.snapshots.store import Unusable
from diloco.snapshots.unit_state_file import StateWriter, StoredState, check_state, read_parts, read_rest
from diloco.syncer.job.stored_states import StoredStates

_log = logging.getLogger(__name__)

_THREADS = 2
"""That write and read states, and as many that compare checksums: a taker must not wait for its first part until others are checked."""


class StateStreams:
    """Implements `States.Store` and `Peer.Take` of the proto."""

    def __init__(self, states: StoredStates, job_uid: str) -> None:
        self._states = states
        self._job_uid = job_uid
        self._busy: set[tuple[str, int]] = set()
        """Attempts of units with a stream. That of an attempt that is over may take a while to break, and the next one does not wait."""
        self._files = ThreadPoolExecutor(_THREADS, "states")
        self._checks = ThreadPoolExecutor(_THREADS, "state-checks")

    def close(self) -> None:
        """Begin nothing more. What runs ends by itself."""
        self._files.shutdown(wait=False, cancel_futures=True)
        self._checks.shutdown(wait=False, cancel_futures=True)

    def _run[T](self, work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._files, work, *arguments)

    @contextlib.contextmanager
    def _stream(self, unit: str, attempt: int) -> Iterator[None]:
        """Note that this attempt has a stream."""
        self._busy.add((unit, attempt))
        try:
            yield
        finally:
            self._busy.discard((unit, attempt))

    async def Store(self, requests: AsyncIterator[StateMessage | DataChunk], context: StoreContext) -> StateStored:  # noqa: N802 - the name on the wire
        """Store the state of the unit that the caller's certificate names."""
        begin = await _begin(requests)
        shown = peer_identity(context.auth_context())
        if begin is None or begin.job_uid != self._job_uid or shown != learner_identity(begin.job_uid, begin.unit, begin.attempt):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{shown or 'a certificate without identity'} may not store this state")
        assert begin is not None
        if why := self._states.why_not(begin):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        if (begin.unit, begin.attempt) in self._busy:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"unit {begin.unit} has a stream of its state already")
        try:
            with self._stream(begin.unit, begin.attempt):
                stored = await self._store(requests, begin)
        except (StateError, FramingError) as error:
            _log.warning("the state of unit %s is not stored: %s", begin.unit, error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except OSError as error:
            why = error.strerror or str(error)
            _log.error("the state of unit %s could not be stored: %s", begin.unit, why)
            helps = remedy(error, "store no states (spec.training.checkpoint.learners: Never)")
            self._states.not_stored(begin.unit, f"{why}; the one before it is intact. {helps}.")
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the syncer's volume: {why}")
        else:
            self._states.stored()
            _log.info("unit %s has stored its state at local step %d, after outer step %d", stored.unit, stored.local_step, stored.t)
        return StateStored()

    async def _store(self, requests: AsyncIterator[StateMessage | DataChunk], begin: StateBegin) -> StoredState:
        layout, files = self._states.layout, self._states.files
        assert layout is not None
        writer: StateWriter = await self._run(files.begin, begin, layout)
        stored: StoredState | None = None
        try:
            incoming = Incoming(layout, self._states.fragments)
            async for message in requests:
                came = incoming.add(message)
                if isinstance(came, ArraysCame):
                    await self._run(writer.put, came.arrays, came.values)
                elif isinstance(came, RestCame):
                    await self._run(writer.rest, came.data)
                elif isinstance(came, EndCame):
                    if why := self._states.why_not(begin):  # its next attempt may have begun meanwhile
                        raise StateError(why)
                    stored = await self._run(files.commit, writer)
                    return stored
            raise StateError("the learner ended before its state was whole")
        finally:
            if stored is None:  # also when the call is cancelled: this waits for nothing
                with contextlib.suppress(RuntimeError):  # the threads are gone with this process: the next one removes what was torn
                    self._run(files.abandon, writer)

    async def Take(self, request: StateWanted, context: TakeContext) -> AsyncIterator[StateMessage | DataChunk]:  # noqa: N802 - the name on the wire
        """Give a unit what it has stored."""
        shown = peer_identity(context.auth_context())
        if request.job_uid != self._job_uid or shown != learner_identity(request.job_uid, request.unit, request.attempt):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{shown or 'a certificate without identity'} may not take this state")
        if why := self._states.why_not_of(request.unit, request.attempt, request.inner_state):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        if (request.unit, request.attempt) in self._busy:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"unit {request.unit} has a stream of its state already")
        state, layout = self._states.files.of(request.unit), self._states.layout
        if state is None or layout is None or (state.fingerprint, state.kind) != (request.fingerprint, request.inner_state):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the syncer has stored no such state")
            return
        with self._stream(request.unit, request.attempt):
            # Beside the parts, as reading a large state takes longer than a taker waits: without the end nothing of them counts.
            checked = asyncio.get_running_loop().run_in_executor(self._checks, check_state, state)
            try:
                async for message in self._messages(state, layout, checked):
                    yield message
            except Unusable as why_not:
                _log.warning("the stored state %s cannot be used: %s", state.folder, why_not)
                await self._run(self._states.files.forget, state)
                await context.abort(grpc.StatusCode.DATA_LOSS, f"what was stored at outer step {state.t} cannot be used: {why_not}")

    async def _messages(self, state: StoredState, layout: Layout, checked: Awaitable[None]) -> AsyncIterator[StateMessage | DataChunk]:
        parts = read_parts(state, layout)
        index = total = 0
        versions = [-1] * self._states.fragments  # it holds no parameters
        while (found := await self._run(next, parts, None)) is not None:
            arrays, payload = found
            for message in part_messages(index, arrays, payload, versions, layout):
                yield message
            index, total = index + 1, total + len(payload)
        rest = await self._run(read_rest, state)
        for message in part_messages(index, [], rest, versions, layout):
            yield message
        await checked
        yield StateMessage(end=StateEnd(parts=index + 1, bytes=total + len(rest)))


async def _begin(requests: AsyncIterator[StateMessage | DataChunk]) -> StateBegin | None:
    """Return what the first message says; None: it is another one."""
    async for message in requests:
        return message.begin if not isinstance(message, DataChunk) and message.HasField("begin") else None
    return None
