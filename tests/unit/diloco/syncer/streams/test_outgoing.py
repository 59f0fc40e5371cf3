import asyncio
import weakref
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from builders.chunks import as_to_learner
from builders.exchange import WAIT_TIMEOUT
from diloco.algorithm.codec import Coding
from diloco.protocol.chunks import DataChunk, acknowledged_in, to_learner, to_wire
from diloco.protocol.diloco_pb2 import Chunk, Done, Taken, ToLearner, Work
from diloco.protocol.framing import LEAST_CHUNK_BYTES, split
from diloco.protocol.window import ACKNOWLEDGED_BYTES, FIRST_BYTES, HOLD_SECONDS
from diloco.syncer.streams.outgoing import CodedVersion, Outgoing

TAU = 2
VALUE = memoryview(bytes(16))
TWO_CHUNKS = memoryview(bytes(2 * LEAST_CHUNK_BYTES))


def a_chunk(count: int) -> DataChunk:
    """A whole payload."""
    return next(split(Chunk(), bytes(count)))


def version(t: int, base: int, fragment: int = 0, delta: bytes = b"dddd", value: memoryview = VALUE) -> CodedVersion:
    return CodedVersion(fragment, t, base, Coding.INT4_DELTA, delta, value)


def whole(t: int, fragment: int = 0, value: memoryview = VALUE) -> CodedVersion:
    return CodedVersion(fragment, t, -1, Coding.FLOAT32, b"", value)


async def sent(outgoing: Outgoing) -> list[str]:
    outgoing.close()
    return [described(message) async for message in outgoing.messages()]


async def take(stream: AsyncIterator[ToLearner | DataChunk], count: int) -> list[str]:
    return [described(await anext(stream)) for _ in range(count)]


async def rest(outgoing: Outgoing, stream: AsyncIterator[ToLearner | DataChunk]) -> list[str]:
    """All that follows on a stream that has begun."""
    outgoing.close()
    return [described(message) async for message in stream]


async def begun(outgoing: Outgoing, value: memoryview = TWO_CHUNKS) -> AsyncIterator[ToLearner | DataChunk]:
    """The stream of an outgoing after the first of the chunks of fragment 0, whose version 1 is sent whole."""
    outgoing.broadcast(whole(1, value=value))
    stream = outgoing.messages()
    assert await take(stream, 1) == ["whole 0@1"]
    return stream


def described(sent: ToLearner | DataChunk) -> str:
    """`delta fragment@t` or `whole fragment@t` of a chunk, `pull fragment@t`, the kind alone of other messages."""
    message = as_to_learner(sent)
    which = str(message.WhichOneof("message"))
    if which == "chunk":
        return f"{'whole' if message.chunk.coding == Chunk.FLOAT32 else 'delta'} {message.chunk.fragment}@{message.chunk.t}"
    return f"pull {message.pull.fragment}@{message.pull.t}" if which == "pull" else which


def holding(*fragments: int, t: int = 0) -> Outgoing:
    """To a learner that holds version `t` of these fragments."""
    outgoing = Outgoing()
    for fragment in fragments:
        outgoing.holds(fragment, t)
    return outgoing


# --- versions -----------------------------------------------------------------------------------------------------------


async def test_a_broadcast_says_its_base_and_which_merge_had_the_learners_contribution_last_and_a_whole_value_holds_all_bytes() -> None:
    value = memoryview(bytes(range(16)))
    outgoing = holding(0, t=4)
    outgoing.broadcast(version(6, base=4), merged=6)
    outgoing.broadcast(whole(7, fragment=1, value=value), merged=3)
    outgoing.close()
    delta, complete = [as_to_learner(message).chunk async for message in outgoing.messages()]
    assert (delta.base, delta.coding, delta.data, delta.merged) == (4, Chunk.INT4_DELTA, b"dddd", 6)
    assert (complete.fragment, complete.coding, complete.data, complete.merged) == (1, Chunk.FLOAT32, value.tobytes(), 3)


async def test_a_learner_that_holds_the_base_gets_the_delta_and_another_the_whole() -> None:
    up_to_date, behind, fresh = holding(0, t=4), holding(0, t=2), Outgoing()
    for outgoing in (up_to_date, behind, fresh):
        outgoing.broadcast(version(6, base=4))
    assert await sent(up_to_date) == ["delta 0@6"]
    assert await sent(behind) == ["whole 0@6"]
    assert await sent(fresh) == ["whole 0@6"]


async def test_a_delta_that_waits_keeps_no_whole_value_alive_and_a_whole_value_no_delta() -> None:
    """Many versions wait for a paused learner."""
    value, delta = np.zeros(8, np.float32), np.zeros(4, np.uint8)
    alive: list[weakref.ref[Any]] = [weakref.ref(value), weakref.ref(delta)]
    up_to_date, fresh = holding(0), Outgoing()
    for outgoing in (up_to_date, fresh):
        outgoing.broadcast(CodedVersion(0, 1, 0, Coding.INT4_DELTA, memoryview(delta), memoryview(value).cast("B")))
    assert [one() is not None for one in alive] == [True, True]
    del value
    del fresh, outgoing
    assert [one() is not None for one in alive] == [False, True]
    fresh = Outgoing()
    fresh.broadcast(CodedVersion(0, 1, 0, Coding.INT4_DELTA, memoryview(delta), VALUE))
    del delta, up_to_date
    assert [one() is not None for one in alive] == [False, False]
    assert await sent(fresh) == ["whole 0@1"]


async def test_deltas_wait_in_order_until_they_are_larger_than_one_whole_value() -> None:
    def after(versions: int) -> Outgoing:
        outgoing = holding(0)
        for t in range(1, versions + 1):
            outgoing.broadcast(version(t, base=t - 1))
        return outgoing

    outgoing = after(4)
    assert (len(outgoing), outgoing.waiting_bytes) == (4, 16)
    assert await sent(after(4)) == ["delta 0@1", "delta 0@2", "delta 0@3", "delta 0@4"]
    outgoing.broadcast(version(5, base=4))
    assert (len(outgoing), outgoing.waiting_bytes) == (1, 16)
    assert await sent(outgoing) == ["whole 0@5"]


async def test_a_whole_value_that_waits_is_replaced_by_the_newest() -> None:
    outgoing = Outgoing()
    for t in (1, 2, 3):
        outgoing.broadcast(version(t, base=t - 1))
    assert await sent(outgoing) == ["whole 0@3"]


async def test_deltas_follow_a_whole_value_that_is_under_way() -> None:
    stream = await begun(outgoing := Outgoing())
    outgoing.broadcast(version(2, base=1))
    assert await rest(outgoing, stream) == ["whole 0@1", "delta 0@2"]


async def test_what_waits_for_a_slow_learner_is_bounded() -> None:
    outgoing = holding(0)
    for t in range(1, 100):
        outgoing.broadcast(version(t, base=t - 1))
        outgoing.pull(0, t + 1, TAU)
        assert outgoing.waiting_bytes <= VALUE.nbytes
        assert len(outgoing) <= 4 + 1


async def test_learners_share_one_coded_buffer() -> None:
    payload = memoryview(bytearray(b"dddd"))
    shared = CodedVersion(0, 1, 0, Coding.INT4_DELTA, payload, VALUE)
    queues = [holding(0), holding(0)]
    for outgoing in queues:
        outgoing.broadcast(shared)
        outgoing.close()
    chunks = [message for outgoing in queues async for message in outgoing.messages()]
    assert all(isinstance(chunk, DataChunk) and memoryview(chunk.data).obj is payload.obj for chunk in chunks)
    assert len(chunks) == len(queues)


# --- which fragment is next ---------------------------------------------------------------------------------------------


async def test_what_is_up_to_date_and_what_is_behind_share_the_bytes() -> None:
    """A whole value has the bytes of four deltas: between two of them go four deltas."""
    outgoing = holding(*range(12))
    for fragment in (20, 21, 22):
        outgoing.broadcast(whole(1, fragment=fragment))
    for fragment in range(12):
        outgoing.broadcast(version(2 + fragment, base=0, fragment=fragment))
    kinds = [line.split()[0] for line in await sent(outgoing)]
    assert kinds == ["delta", "whole", *["delta"] * 4, "whole", *["delta"] * 4, "whole", *["delta"] * 3]


async def test_of_fragments_that_are_behind_the_one_that_waits_longest_is_first() -> None:
    outgoing = holding(0)
    outgoing.broadcast(whole(1, fragment=1))
    outgoing.broadcast(whole(2, fragment=2))
    outgoing.broadcast(whole(3, fragment=1))
    assert await sent(outgoing) == ["whole 1@3", "whole 2@2"]


# --- pulls --------------------------------------------------------------------------------------------------------------


async def test_a_pull_waits_for_what_its_answer_is_coded_against() -> None:
    outgoing = holding(0)
    outgoing.broadcast(version(1, base=0))
    outgoing.broadcast(version(2, base=1))
    outgoing.pull(0, 3, TAU)
    assert await sent(outgoing) == ["delta 0@1", "delta 0@2", "pull 0@3"]


async def test_a_pull_waits_for_the_end_of_the_transfer_of_its_fragment() -> None:
    stream = await begun(outgoing := Outgoing())
    outgoing.pull(0, 2, TAU)
    assert await rest(outgoing, stream) == ["whole 0@1", "pull 0@2"]


async def test_a_pull_does_not_wait_for_other_fragments() -> None:
    stream = await begun(outgoing := Outgoing())
    outgoing.broadcast(whole(2, fragment=1))
    outgoing.pull(2, 3, TAU)
    assert await rest(outgoing, stream) == ["pull 2@3", "whole 0@1", "whole 1@2"]


async def test_a_pull_whose_exchange_is_over_is_not_sent() -> None:
    outgoing = holding(0, 1, 2)
    outgoing.pull(0, 3, TAU)
    outgoing.broadcast(version(3, base=0))
    assert await sent(outgoing) == ["delta 0@3"], "merged without it"
    outgoing = holding()
    for fragment, t in ((0, 3), (1, 4), (2, 6)):
        outgoing.pull(fragment, t, TAU)
    assert await sent(outgoing) == ["pull 1@4", "pull 2@6"], "step 6 is taken once the exchange of step 3 is over"


# --- the other lanes ----------------------------------------------------------------------------------------------------


async def test_work_overtakes_a_large_fragment_between_two_chunks() -> None:
    stream = await begun(outgoing := Outgoing(), memoryview(bytes(3 * LEAST_CHUNK_BYTES)))
    outgoing.urgent(ToLearner(work=Work(end=5)))
    assert await rest(outgoing, stream) == ["work", "whole 0@1", "whole 0@1"]


async def test_nothing_passes_an_ordered_message_in_either_direction() -> None:
    """Done today, markers later. A delta before it does not carry the next one of its fragment past it."""
    outgoing = holding(0, 1, 2)
    outgoing.broadcast(version(1, base=0))
    outgoing.pull(1, 3, TAU)
    outgoing.post(ToLearner(done=Done()))
    outgoing.broadcast(version(4, base=1))
    outgoing.pull(2, 5, TAU)
    assert await sent(outgoing) == ["pull 1@3", "delta 0@1", "done", "pull 2@5", "delta 0@4"]


@pytest.mark.parametrize("under_way", [False, True])
async def test_a_refusal_need_not_wait_for_what_is_queued(under_way: bool) -> None:
    outgoing = Outgoing()
    outgoing.broadcast(whole(1, value=TWO_CHUNKS))
    stream = outgoing.messages()
    if under_way:
        await take(stream, 1)
    outgoing.urgent(ToLearner(work=Work()))
    outgoing.pull(1, 2, TAU)
    outgoing.close(ToLearner(done=Done()), at_once=True)
    assert [described(message) async for message in stream] == ["done"]


# --- the window ---------------------------------------------------------------------------------------------------------


async def full(outgoing: Outgoing) -> tuple[AsyncIterator[ToLearner | DataChunk], int]:
    """The stream once its window is full with chunks of one fragment, and how many bytes it has."""
    outgoing.acknowledges()
    outgoing.broadcast(whole(1, value=memoryview(bytes(2 * FIRST_BYTES))))
    stream, count = outgoing.messages(), 0
    while count < FIRST_BYTES:
        message = await anext(stream)
        assert isinstance(message, DataChunk)
        count += len(message.data)
    return stream, count


async def waits(following: asyncio.Future[ToLearner | DataChunk]) -> bool:
    for _ in range(5):  # passes of the event loop
        await asyncio.sleep(0)
    return not following.done()


async def test_small_messages_pass_a_full_window() -> None:
    outgoing = Outgoing()
    stream, _ = await full(outgoing)
    following = asyncio.ensure_future(anext(stream))
    assert await waits(following)
    outgoing.pull(3, 2, TAU)
    assert described(await following) == "pull 3@2"
    outgoing.took(a_chunk(ACKNOWLEDGED_BYTES))
    acknowledged = await anext(stream)
    assert isinstance(acknowledged, ToLearner)
    assert acknowledged.taken.bytes == ACKNOWLEDGED_BYTES
    outgoing.close(ToLearner(done=Done()), at_once=True)
    assert [described(message) async for message in stream] == ["done"], "a refusal does not wait for the window"


async def test_what_waits_for_the_window_is_still_replaced_by_something_newer() -> None:
    outgoing = Outgoing()
    stream, count = await full(outgoing)
    outgoing.broadcast(whole(2, fragment=1))
    following = asyncio.ensure_future(anext(stream))
    assert await waits(following)
    outgoing.broadcast(whole(3, fragment=1))
    outgoing.taken(Taken(bytes=count))
    outgoing.close()
    rest = [await following, *[message async for message in stream]]
    assert described(rest[-1]) == "whole 1@3"
    assert {described(message) for message in rest[:-1]} == {"whole 0@1"}


async def test_a_learner_that_does_not_acknowledge_gets_everything_at_once_and_no_acknowledgement() -> None:
    outgoing = Outgoing()
    outgoing.broadcast(whole(1, value=memoryview(bytes(2 * FIRST_BYTES))))
    outgoing.took(a_chunk(ACKNOWLEDGED_BYTES))
    assert set(await sent(outgoing)) == {"whole 0@1"}


# --- acknowledgements beside other messages ---------------------------------------------------------------------------------


async def test_an_acknowledgement_goes_beside_the_next_message_and_only_to_this_learner() -> None:
    first, second = Outgoing(), Outgoing()
    first.acknowledges(beside=True)
    done = ToLearner(done=Done(t=3))
    for outgoing in (first, second):
        outgoing.post(done)
    first.took(a_chunk(ACKNOWLEDGED_BYTES))
    said = acknowledged_in(await anext(first.messages()))
    assert said is not None
    assert said.bytes == ACKNOWLEDGED_BYTES
    assert acknowledged_in(await anext(second.messages())) is None


async def test_an_acknowledgement_goes_beside_a_broadcast_that_others_get_too() -> None:
    outgoing = Outgoing()
    outgoing.acknowledges(beside=True)
    outgoing.took(a_chunk(ACKNOWLEDGED_BYTES))
    outgoing.broadcast(whole(1))
    sent_ = await anext(outgoing.messages())
    came = acknowledged_in(to_learner(to_wire(sent_)))
    assert came is not None
    assert came.bytes == ACKNOWLEDGED_BYTES


async def test_an_acknowledgement_beside_which_nothing_goes_is_sent_alone() -> None:
    outgoing = Outgoing()
    outgoing.acknowledges(beside=True)
    stream = outgoing.messages()
    following = asyncio.ensure_future(anext(stream))
    outgoing.took(a_chunk(ACKNOWLEDGED_BYTES))
    assert await waits(following)
    message = await asyncio.wait_for(following, WAIT_TIMEOUT)
    assert isinstance(message, ToLearner)
    assert message.taken.bytes == ACKNOWLEDGED_BYTES
    assert message.taken.held >= HOLD_SECONDS
