"""Streams that begin with something else than Hello, or with nothing, end, and nobody else notices."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from builders.exchange import WAIT_TIMEOUT, LocalSyncer, Place, job_file, training, until
from builders.scripted_learner import ScriptedLearner
from diloco.protocol.channel import Keepalive
from diloco.protocol.diloco_pb2 import Bye, Chunk, FromLearner, Progress, Refused, ToLearner, WorkWanted
from diloco.syncer.config import Timeouts


def a_place(path: Path) -> Place:
    return Place(path, job_file(training(100_000)))


def open_streams(syncer: LocalSyncer) -> int:
    found: int = syncer.call(lambda: len(list(syncer.syncer.engine._job.streams)))
    return found


@pytest.mark.parametrize(
    "first",
    [
        FromLearner(),
        FromLearner(progress=Progress(local_step=1)),
        FromLearner(chunk=Chunk(kind=Chunk.SEED, data=b"abcd", total=4)),
        FromLearner(work_wanted=WorkWanted(samples=1)),
        FromLearner(bye=Bye()),
    ],
    ids=["nothing", "progress", "chunk", "work", "bye"],
)
def test_a_stream_whose_first_message_is_no_hello_is_refused_and_ends(tmp_path: Path, first: FromLearner) -> None:
    with LocalSyncer(a_place(tmp_path)) as syncer, ScriptedLearner(syncer, unit="good") as good:
        good.hello().hear("welcome")
        with ScriptedLearner(syncer, unit="bad") as bad:
            refused = bad.say(first).hear("refused").refused
            assert (refused.code, refused.message) == (Refused.PROTOCOL, "the first message must be Hello")
            assert bad.status() is grpc.StatusCode.OK
        until(lambda: open_streams(syncer) == 1, "the streams that are left")
        good.want(1).hear("work")


@pytest.mark.slow
def test_a_connection_that_never_shakes_hands_is_closed_and_holds_no_descriptor(tmp_path: Path) -> None:
    """A stranger who opened 1,500 of them had taken all descriptors of the process, so no record could be written."""
    with LocalSyncer(a_place(tmp_path), timeouts=Timeouts(keepalive=Keepalive(0.5, 0.5))) as syncer:
        host, port = syncer.address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as idle:
            idle.settimeout(WAIT_TIMEOUT)
            assert idle.recv(1) == b""
        with ScriptedLearner(syncer, unit="good") as good:
            good.hello().hear("welcome")


def the_end_of(syncer: LocalSyncer, first: bytes | None) -> tuple[list[ToLearner], grpc.StatusCode, str]:
    """What a stream gets, and how it ends, that begins with these bytes, or says nothing."""
    out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    if first is not None:
        out.put(first)
    place = syncer.place
    with place.certificates.channel(syncer.address, place.certificates.learner("bad")) as channel:
        stream: Callable[..., Iterator[ToLearner]] = channel.stream_stream(
            "/diloco.v1.Syncer/Exchange", request_serializer=lambda raw: raw, response_deserializer=ToLearner.FromString
        )
        call = stream(iter(out.get, None), timeout=WAIT_TIMEOUT)
        heard: list[ToLearner] = []
        try:
            heard += call
        except grpc.RpcError:
            pass
        finally:
            out.put(None)
        return heard, call.code(), call.details()  # type: ignore[attr-defined]


def test_a_stream_whose_first_message_cannot_be_parsed_is_refused_and_ends(tmp_path: Path) -> None:
    with LocalSyncer(a_place(tmp_path)) as syncer:
        heard, code, _ = the_end_of(syncer, b"\x0a\xff\xff\xff\xff\x0f")
        assert [message.refused.code for message in heard] == [Refused.PROTOCOL]
        assert "a message could not be read: DecodeError" in heard[0].refused.message
        assert code is grpc.StatusCode.OK
        until(lambda: open_streams(syncer) == 0, "the stream to be forgotten")


HELLO_TIMEOUT = 1.0


def joined(syncer: LocalSyncer) -> ScriptedLearner:
    """A learner that opens its stream again, as learners do, if this machine was too slow for the first one."""

    def try_once() -> ScriptedLearner | None:
        raw = ScriptedLearner(syncer)
        try:
            raw.hello().hear("welcome")
        except grpc.RpcError:
            raw.cut()
            return None
        return raw

    found: ScriptedLearner = until(try_once, "a stream whose Hello comes in time")
    return found


def test_a_stream_that_says_nothing_ends_to_be_opened_again_and_one_that_has_joined_may_be_silent(tmp_path: Path) -> None:
    timeouts = Timeouts(reconnect_window=WAIT_TIMEOUT, farewell=WAIT_TIMEOUT, hello=HELLO_TIMEOUT)
    with LocalSyncer(a_place(tmp_path), timeouts) as syncer:
        heard, code, why = the_end_of(syncer, None)
        assert (heard, code) == ([], grpc.StatusCode.UNAVAILABLE)
        assert "no Hello has come within 1 s" in why
        until(lambda: open_streams(syncer) == 0, "the stream to be forgotten")
        with joined(syncer) as raw:
            assert the_end_of(syncer, None)[1] is grpc.StatusCode.UNAVAILABLE  # so its own time for a Hello is over
            raw.want(1).hear("work")
