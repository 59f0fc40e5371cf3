"""A stream over a link that falls silent while nothing is sent: only pings can tell."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from builders.exchange import WAIT_TIMEOUT, Place
from builders.scripted_syncer import ScriptedSyncer
from builders.severed_link import link_to
from builders.wire import exchange
from diloco import contract
from diloco.protocol.channel import Keepalive, client_options
from diloco.protocol.diloco_pb2 import FromLearner, Hello


@pytest.mark.slow
async def test_a_quiet_stream_over_a_silent_link_ends_after_one_ping_that_is_not_answered(place: Place, syncer: ScriptedSyncer) -> None:
    """gRPC alone would wait for the answer for a minute, whatever the keepalive's time-out."""
    options = client_options(Keepalive(0.5, 0.5), contract.syncer_host_name(place.job.name, place.job.namespace))
    credentials = place.certificates.learner("a-0").read().channel_credentials()
    async with (
        link_to("127.0.0.1", int(syncer.address.rpartition(":")[2])) as link,
        grpc.aio.secure_channel(f"127.0.0.1:{link.port}", credentials, options=options) as channel,
    ):
        call = exchange(channel)()
        await call.write(FromLearner(hello=Hello(unit="a-0")))
        stream = await asyncio.to_thread(syncer.accept)
        link.silence()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await asyncio.wait_for(call.read(), WAIT_TIMEOUT)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        stream.end()
