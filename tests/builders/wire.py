"""Both ends of the service `Syncer` with messages as protobuf has them: for peers that tests and benchmarks play. `diloco.protocol.rpc` has
the program's own ends, which hand the bytes of chunks on without a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from diloco.protocol.diloco_pb2 import DESCRIPTOR, FromLearner, PartState, Report, Told, ToLearner, WatchRequest

_SYNCER = DESCRIPTOR.services_by_name["Syncer"].full_name


def watch(channel: grpc.Channel) -> Callable[..., Any]:
    """The syncer's reports: call the result with a `WatchRequest` and gRPC's options of a call, and iterate over `Report`."""
    opened: Callable[..., Any] = channel.unary_stream(
        f"/{_SYNCER}/Watch", request_serializer=WatchRequest.SerializeToString, response_deserializer=Report.FromString
    )
    return opened


def exchange(channel: grpc.Channel | grpc.aio.Channel) -> Callable[..., Any]:
    """A learner's stream: call the result with an iterator of `FromLearner` and gRPC's options of a call, and iterate over `ToLearner`."""
    opened: Callable[..., Any] = channel.stream_stream(
        f"/{_SYNCER}/Exchange", request_serializer=FromLearner.SerializeToString, response_deserializer=ToLearner.FromString
    )
    return opened


def tell(channel: grpc.Channel) -> Callable[..., Any]:
    """What the operator of a part says: call the result with a `PartState` and gRPC's options of a call."""
    opened: Callable[..., Any] = channel.unary_unary(
        f"/{_SYNCER}/Tell", request_serializer=PartState.SerializeToString, response_deserializer=Told.FromString
    )
    return opened


def serve(
    server: grpc.Server | grpc.aio.Server,
    *,
    watch: Callable[[WatchRequest, Any], Any] | None = None,
    exchange: Callable[[Any, Any], Any] | None = None,
    tell: Callable[[PartState, Any], Any] | None = None,
) -> None:
    """Let a server answer for a syncer. `watch` yields `Report`, `exchange` reads `FromLearner` and yields `ToLearner`, `tell` returns
    `Told`; what is left out is UNIMPLEMENTED."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    if watch is not None:
        handlers["Watch"] = grpc.unary_stream_rpc_method_handler(
            watch, request_deserializer=WatchRequest.FromString, response_serializer=Report.SerializeToString
        )
    if tell is not None:
        handlers["Tell"] = grpc.unary_unary_rpc_method_handler(
            tell, request_deserializer=PartState.FromString, response_serializer=Told.SerializeToString
        )
    if exchange is not None:
        handlers["Exchange"] = grpc.stream_stream_rpc_method_handler(
            exchange, request_deserializer=FromLearner.FromString, response_serializer=ToLearner.SerializeToString
        )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SYNCER, handlers),))
