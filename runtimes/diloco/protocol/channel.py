"""The gRPC options of both ends in one place, because their time-outs depend on each other.

See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from diloco.protocol.framing import MOST_CHUNK_BYTES
from diloco.protocol.window import MOST_BYTES

MAX_MESSAGE_BYTES = 16 * MOST_CHUNK_BYTES
"""Bound of one message. Chunks stay far below; Hello and Welcome carry the whole layout (some 100 bytes per tensor)."""
CONNECT_TIMEOUT_MS = 5000
"""How long one attempt to connect may take (gRPC calls it the minimum reconnect back-off)."""
RECEIVE_BYTES = MOST_BYTES + MOST_CHUNK_BYTES
"""What gRPC takes of a stream before it is read: all that the window lets the other end send."""


_HANDSHAKE_PATIENCE = 4
"""A handshake takes several answers of the other end, each of which may take as long as one to a ping."""


@dataclass(frozen=True, slots=True)
class Keepalive:
    """HTTP/2 pings that detect a frozen or lost peer, after at most `every + timeout`. Seconds."""

    every: float = 5.0
    timeout: float = 5.0

    def __post_init__(self) -> None:
        if self.every < 0.5 or self.timeout < 0.5:
            raise ValueError("keepalive must be at least half a second: shorter ones take a busy machine for a dead one")


def options(keepalive: Keepalive) -> list[tuple[str, int]]:
    """Return options for a channel or a server. Both ends ping, so both ends allow the other's pings.

    The window of chunks limits what is under way, so gRPC needs no bandwidth probe, and its frames may be as large as chunks. An unanswered
    ping ends the connection after `ping_timeout`, whatever the keepalive's time-out says; gRPC's own value is a minute.
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
    """Return options for a learner's channel, one per attempt to connect: the learner has a back-off of its own, so channels may not share
    gRPC's. No proxy: the address is a pod's. No retries by gRPC, which may lose a call for ever (decision 0150). `host_name`: what the
    certificate of the other end must say."""
    return [
        *options(keepalive),
        ("grpc.ssl_target_name_override", host_name),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
    ]


def server_options(keepalive: Keepalive) -> list[tuple[str, int]]:
    """Options for a server. Two on one port would share those who connect between them: refuse to start instead. Who connects and says
    nothing holds a descriptor of the process; gRPC's own limit is two minutes."""
    handshake = int(_HANDSHAKE_PATIENCE * keepalive.timeout * 1000)
    return [*options(keepalive), ("grpc.so_reuseport", 0), ("grpc.server_handshake_timeout_ms", handshake)]
