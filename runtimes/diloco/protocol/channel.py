"""The gRPC options of both ends in one place, because their time-outs depend on each other.

See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from diloco.protocol.framing import MOST_CHUNK_BYTES
from diloco.protocol.window import MOST_BYTES

MAX_MESSAGE_BYTES = 16 * MOST_CHUNK_BYTES
"""Bound of one message. Chunks are much smaller; Hello and Welcome carry the whole layout (some 100 bytes per tensor)."""
CONNECT_TIMEOUT_MS = 5000
"""How long one attempt to connect may take (gRPC calls it the minimum reconnect back-off)."""
RECEIVE_BYTES = MOST_BYTES + MOST_CHUNK_BYTES
"""Bytes of a stream that gRPC accepts before they are read: as many as the window lets the other end send."""


_HANDSHAKE_PATIENCE = 4
"""A handshake needs several answers from the other end. Each may take as long as the answer to a ping."""


@dataclass(frozen=True, slots=True)
class Keepalive:
    """HTTP/2 pings that detect a frozen or lost peer after at most `every + timeout` seconds."""

    every: float = 5.0
    timeout: float = 5.0

    def __post_init__(self) -> None:
        if self.every < 0.5 or self.timeout < 0.5:
            raise ValueError("keepalive must be at least half a second: shorter ones take a busy machine for a dead one")


def options(keepalive: Keepalive) -> list[tuple[str, int]]:
    """Return options for a channel or a server. Both ends ping, so both ends allow the other's pings.

    The transfer window limits what is under way, so gRPC needs no bandwidth probe, and its frames may be as large as chunks. `ping_timeout`
    is set as well, because gRPC ends a connection with an unanswered ping only after it, and its default is a minute.
    """
    every, timeout = int(keepalive.every * 1000), int(keepalive.timeout * 1000)
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", every),
        ("grpc.keepalive_timeout_ms", timeout),
        ("grpc.http2.ping_timeout_ms", timeout),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", RECEIVE_BYTES),
        ("grpc.http2.max_frame_size", MOST_CHUNK_BYTES),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", min(every, 1000)),
    ]


def client_options(keepalive: Keepalive, host_name: str) -> list[tuple[str, int | str]]:
    """Return options for a channel of a learner, which opens one for each attempt to connect. `host_name`: what the other end's certificate
    must say.

    The learner has its own back-off, so channels must not share gRPC's. There is no proxy, because the address is a pod's. gRPC must not
    retry, because it may lose a call for ever (decision 0150).
    """
    return [
        *options(keepalive),
        ("grpc.ssl_target_name_override", host_name),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
    ]


def server_options(keepalive: Keepalive) -> list[tuple[str, int]]:
    """Return options for a server. A second server on its port fails to start; with SO_REUSEPORT the two would share the connections.

    A client that connects and sends nothing holds a file descriptor, so the handshake has a time-out. gRPC's own is two minutes.
    """
    handshake = int(_HANDSHAKE_PATIENCE * keepalive.timeout * 1000)
    return [*options(keepalive), ("grpc.so_reuseport", 0), ("grpc.server_handshake_timeout_ms", handshake)]
