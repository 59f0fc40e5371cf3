"""The two ends of `Syncer.Exchange` with messages as `chunks` reads and writes them, in the place of the generated ones.

See docs/decisions/0154-chunks-past-protobuf.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import grpc

from diloco.protocol.chunks import DataChunk, from_learner, to_learner, to_wire
from diloco.protocol.diloco_pb2 import DESCRIPTOR, FromLearner, Report, ToLearner, WatchRequest

_SERVICE = DESCRIPTOR.services_by_name["Syncer"].full_name

type ExchangeContext = grpc.aio.ServicerContext[FromLearner | DataChunk, ToLearner | DataChunk]
type WatchContext = grpc.aio.ServicerContext[WatchRequest, Report]
type Call = Any
"""A `grpc.Call` that yields `ToLearner | DataChunk`."""


class SyncerService(Protocol):
    """What a syncer's service implements, see diloco.proto."""

    async def Exchange(self, requests: AsyncIterator[FromLearner | DataChunk], context: ExchangeContext) -> None: ...  # noqa: N802
    async def Watch(self, request: WatchRequest, context: WatchContext) -> None: ...  # noqa: N802


def exchange(channel: grpc.Channel | grpc.aio.Channel) -> Callable[..., Call]:
    """Opens a learner's stream: call the result with an iterator of `FromLearner | DataChunk | bytes`, and gRPC's options of a call."""
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
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
