"""The two ends of `Syncer.Exchange` and `Peer.Take`. They replace the generated ones, so that `chunks` reads and writes the messages.

See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

import grpc

from diloco.protocol.chunks import DataChunk, from_learner, to_learner, to_taker, to_wire
from diloco.protocol.diloco_pb2 import (
    DESCRIPTOR,
    FromLearner,
    PartState,
    Report,
    StateMessage,
    StateWanted,
    Told,
    ToLearner,
    WatchRequest,
)

_SERVICE = DESCRIPTOR.services_by_name["Syncer"].full_name
_PEER = DESCRIPTOR.services_by_name["Peer"].full_name

type ExchangeContext = grpc.aio.ServicerContext[FromLearner | DataChunk, ToLearner | DataChunk]
type WatchContext = grpc.aio.ServicerContext[WatchRequest, Report]
type TellContext = grpc.aio.ServicerContext[PartState, Told]
type Call = Any
"""A `grpc.Call` that yields `ToLearner | DataChunk`, or `StateMessage | DataChunk`."""


class SyncerService(Protocol):
    """The interface of a syncer's service, see diloco.proto."""

    async def Exchange(self, requests: AsyncIterator[FromLearner | DataChunk], context: ExchangeContext) -> None: ...  # noqa: N802
    async def Watch(self, request: WatchRequest, context: WatchContext) -> None: ...  # noqa: N802
    async def Tell(self, request: PartState, context: TellContext) -> Told: ...  # noqa: N802


def exchange(channel: grpc.Channel | grpc.aio.Channel) -> Callable[..., Call]:
    """Return a function that opens a learner's stream. Its arguments are an iterator of `FromLearner | DataChunk | bytes`, and gRPC's
    options of a call."""
    opened: Callable[..., Call] = channel.stream_stream(
        f"/{_SERVICE}/Exchange", request_serializer=to_wire, response_deserializer=to_learner
    )
    return opened


def serve(service: SyncerService, server: grpc.aio.Server) -> None:
    """Let `server` answer with `service`."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Exchange": grpc.stream_stream_rpc_method_handler(service.Exchange, request_deserializer=from_learner, response_serializer=to_wire),
        "Watch": grpc.unary_stream_rpc_method_handler(
            service.Watch, request_deserializer=WatchRequest.FromString, response_serializer=Report.SerializeToString
        ),
        "Tell": grpc.unary_unary_rpc_method_handler(
            service.Tell, request_deserializer=PartState.FromString, response_serializer=Told.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))


def take(channel: grpc.Channel) -> Callable[..., Call]:
    """Return a function that asks a peer for its state. Its arguments are a `StateWanted`, and gRPC's options of a call."""
    opened: Callable[..., Call] = channel.unary_stream(
        f"/{_PEER}/Take", request_serializer=StateWanted.SerializeToString, response_deserializer=to_taker
    )
    return opened


def serve_peer(
    take: Callable[[StateWanted, grpc.ServicerContext], Iterator[StateMessage | DataChunk]],
    server: grpc.Server,
) -> None:
    """Let `server` answer learners that take this learner's state."""
    handler = grpc.unary_stream_rpc_method_handler(take, request_deserializer=StateWanted.FromString, response_serializer=to_wire)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_PEER, {"Take": handler}),))
