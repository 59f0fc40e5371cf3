"""The server on which a learner gives its state to peers. It uses mutual TLS as between learner and syncer.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from diloco.protocol import rpc
from diloco.protocol.channel import Keepalive, server_options
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import StateMessage, StateWanted
from diloco.protocol.tls import TlsError, TlsFiles, peer_identity, server_credentials
from diloco.recovery.state_donor import StateDonor
from diloco.recovery.state_transfer import Refused

_log = logging.getLogger(__name__)

_THREADS = 256
"""How many callers are answered at a time: the processes of one taker that want something from this process, and others that are told why
they get nothing. A thread starts with the first caller that needs it."""
_STOP_SECONDS = 1.0


class PeerServer:
    """Serves from `__init__` to `close`."""

    def __init__(self, state_donor: StateDonor, host: str, tls: TlsFiles, keepalive: Keepalive) -> None:
        """Serve on a free port of `host`. "" is a program outside the cluster, which no peer reaches: it does not serve.

        If the port cannot be opened, this process logs that and gives its state to no peer.
        """
        self._giver = state_donor
        self.address = ""
        """host:port. Empty if it does not serve."""
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="diloco-peer")
        self._server = grpc.server(self._pool, options=server_options(keepalive), maximum_concurrent_rpcs=_THREADS)
        rpc.serve_peer(self._take, self._server)
        if not host:
            return
        bracketed = f"[{host}]" if ":" in host else host
        try:
            chosen = self._server.add_secure_port(f"{bracketed}:0", server_credentials(tls))
        except (RuntimeError, TlsError) as error:
            _log.warning("this process gives its state to no peer: cannot serve on %s: %s", host, error)
            return
        self._server.start()
        self.address = f"{bracketed}:{chosen}"

    def close(self) -> None:
        """End all transfers. Waits for a second at most."""
        self._giver.close()
        self._server.stop(0).wait(_STOP_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _take(self, wanted: StateWanted, context: grpc.ServicerContext) -> Iterator[StateMessage | DataChunk]:
        try:
            transfer = self._giver.begin(wanted, peer_identity(context.auth_context()))
        except Refused as refused:
            _log.warning("no state for %s: %s", wanted.unit or "a caller without a name", refused)
            context.abort(refused.code, str(refused))
        if not context.add_callback(transfer.end):  # the call has ended already, and the callback will not run
            transfer.end()
        _log.info("gives its state to %s, attempt %d", transfer.receiver, wanted.attempt)
        with contextlib.ExitStack() as stack:
            stack.callback(transfer.end)
            try:
                yield from transfer.messages()
                _log.info("%s has the state", transfer.receiver)
            except Refused as refused:
                _log.warning("%s gets no state: %s", transfer.receiver, refused)
                context.abort(refused.code, str(refused))
