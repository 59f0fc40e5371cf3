"""A learner stores its inner state with the syncer at each marker, and trains on: the whole job goes on with it once all have died.

The parts are those that a peer gets, without parameters, on a stream of its own beside the exchange. What is sent takes a share of the
link's time, so that pushes and broadcasts keep the rest. A peer that takes this process's state goes first.

See docs/decisions/0266-stored-states.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import grpc

from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import whole
from diloco.learner.config import LearnerConfig
from diloco.learner.inner_state import InnerState
from diloco.protocol import rpc
from diloco.protocol.channel import Keepalive, client_options
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Marker, StateBegin, StateMessage, StateStored
from diloco.protocol.state_parts import StateError, to_message
from diloco.protocol.tls import TlsError
from diloco.recovery.gift import Gift, Refused

_log = logging.getLogger(__name__)

LINK_SHARE = 0.25
"""Share of the time in which this stream sends."""


class Storer:
    """Called by the training thread, but for `marker`; a thread of its own sends."""

    def __init__(
        self, config: LearnerConfig, layout: Layout, state: InnerState, keepalive: Keepalive, now: Callable[[], float] = time.perf_counter
    ) -> None:
        """Begin with `now`: seconds, to measure short times with."""
        self._config = config
        self._layout = layout
        self._state = state
        self._keepalive = keepalive
        self._now = now
        self._marker: Marker | None = None
        self._gift: Gift | None = None
        self._call: grpc.Future[StateStored] | None = None
        self._closed = threading.Event()

    def marker(self, marker: Marker) -> None:
        """Note that the syncer wants the state: called by the connection's thread. The newest marker counts."""
        self._marker = marker

    def at_boundary(self, local_step: int, versions: Sequence[int], step_seconds: float) -> None:
        """Begin to store, or stage what fits into the time that this boundary may take. The state is readable."""
        gift, marker = self._gift, self._marker
        if gift is not None and not gift.over:
            gift.stage(versions, step_seconds, self._now)
        elif marker is not None and not self._closed.is_set():
            self._marker = None
            self._begin(marker, local_step)

    def close(self) -> None:
        """Store nothing more: what is under way is torn, and the syncer keeps what it had."""
        self._closed.set()
        if self._gift is not None:
            self._gift.end("the unit leaves")
        if self._call is not None:
            self._call.cancel()

    def _begin(self, marker: Marker, local_step: int) -> None:
        try:
            arrays = [one for one in self._state.arrays([whole(spec) for spec in self._layout.tensors]) if one.name]
        except StateError as error:
            _log.warning("the state is not stored: %s", error)
            return
        except Exception:  # noqa: BLE001 - of a framework: this unit trains on
            _log.exception("the state could not be stored")
            return
        begin = StateBegin(
            job_uid=self._config.job.uid,
            unit=self._config.unit,
            attempt=self._config.attempt,
            fingerprint=self._layout.fingerprint,
            inner_state=self._state.kind,
            t=marker.t,
            local_step=local_step,
            arrays=to_message(self._layout, arrays),
        )
        self._gift = gift = Gift(self._layout, self._state, "the syncer", parameters=False)
        threading.Thread(target=self._send, args=(gift, begin), name="diloco-store", daemon=True).start()

    def _send(self, gift: Gift, begin: StateBegin) -> None:
        try:
            credentials = self._config.tls.read().channel_credentials()
            options = client_options(self._keepalive, self._config.host_name)
            with grpc.secure_channel(self._config.syncer, credentials, options=options) as channel:
                self._call = call = rpc.store(channel)(paced(self._messages(gift, begin), self._closed.wait, self._now))
                if self._closed.is_set():
                    call.cancel()
                call.result()
            _log.debug("the syncer has stored the state of the marker of outer step %d", begin.t)
        except (grpc.RpcError, grpc.FutureCancelledError, TlsError) as error:
            detail = error.details() if isinstance(error, grpc.Call) else str(error)
            if not self._closed.is_set():
                _log.warning("the state is not stored: %s", detail or "the connection broke")
        finally:
            gift.end()

    def _messages(self, gift: Gift, begin: StateBegin) -> Iterator[StateMessage | DataChunk]:
        yield StateMessage(begin=begin)
        try:
            yield from gift.messages()
        except Refused as refused:
            if not self._closed.is_set():
                _log.warning("the state is not stored: %s", refused)


def paced[T](messages: Iterable[T], pause: Callable[[float], object], now: Callable[[], float], share: float = LINK_SHARE) -> Iterator[T]:
    """Yield messages so that sending them takes at most `share` of the time. Who takes the next one has sent the one before. `pause` waits
    for so many seconds."""
    for message in messages:
        begun = now()
        yield message
        pause((now() - begun) * (1 / share - 1))
