from diloco.algorithm.codec import Coding
from diloco.protocol.diloco_pb2 import Chunk, Done, ToLearner, Work
from diloco.protocol.framing import CHUNK_BYTES
from diloco.syncer.outgoing import Outgoing, Version


def version(t: int, base: int, fragment: int = 0, delta: bytes = b"dd", full: bytes = b"ffff") -> Version:
    return Version(fragment, t, base, Coding.BFLOAT16_DELTA, delta, lambda: full)


async def sent(outgoing: Outgoing) -> list[ToLearner]:
    outgoing.close()
    return [message async for message in outgoing.messages()]


def described(messages: list[ToLearner]) -> list[str]:
    """`kind fragment@t coding` of chunks and pulls, the kind alone of the others."""
    lines = []
    for message in messages:
        which = str(message.WhichOneof("message"))
        if which == "chunk":
            chunk = message.chunk
            lines.append(f"{chunk.fragment}@{chunk.t} {Chunk.Coding.Name(chunk.coding)}")
        elif which == "pull":
            lines.append(f"pull {message.pull.fragment}@{message.pull.t}")
        else:
            lines.append(which)
    return lines


async def test_a_learner_that_holds_the_base_gets_the_delta_and_another_the_whole() -> None:
    up_to_date, behind, fresh = Outgoing(), Outgoing(), Outgoing()
    up_to_date.holds(0, 4)
    behind.holds(0, 2)
    for outgoing in (up_to_date, behind, fresh):
        outgoing.broadcast(version(6, base=4))
        outgoing.broadcast(version(7, base=0, fragment=1))
    assert described(await sent(up_to_date)) == ["0@6 BFLOAT16_DELTA", "1@7 FLOAT32"]
    assert described(await sent(behind)) == ["0@6 FLOAT32", "1@7 FLOAT32"]
    assert described(await sent(fresh)) == ["0@6 FLOAT32", "1@7 FLOAT32"]


async def test_versions_follow_each_other_as_deltas_once_the_learner_holds_one() -> None:
    outgoing = Outgoing()
    outgoing.broadcast(version(1, base=0))
    stream = outgoing.messages()
    assert (await anext(stream)).chunk.coding == Chunk.FLOAT32
    outgoing.broadcast(version(2, base=1))
    assert (await anext(stream)).chunk.coding == Chunk.BFLOAT16_DELTA


async def test_what_waits_for_a_slow_learner_is_bounded_and_ends_with_the_newest_whole_value() -> None:
    outgoing = Outgoing()
    outgoing.holds(0, 0)
    for t in range(1, 100):
        outgoing.broadcast(version(t, base=t - 1))
        outgoing.pull(0, t)
    assert len(outgoing) == 2
    assert described(await sent(outgoing)) == ["0@99 FLOAT32", "pull 0@99"]


async def test_a_pull_stays_behind_the_broadcast_that_its_answer_is_coded_against() -> None:
    outgoing = Outgoing()
    outgoing.broadcast(version(1, base=0))
    outgoing.pull(0, 2)
    outgoing.post(ToLearner(done=Done(t=2)))
    assert described(await sent(outgoing)) == ["0@1 FLOAT32", "pull 0@2", "done"]


async def test_work_overtakes_a_large_fragment_between_two_chunks() -> None:
    outgoing = Outgoing()
    outgoing.broadcast(version(1, base=0, full=bytes(3 * CHUNK_BYTES)))
    stream = outgoing.messages()
    await anext(stream)
    outgoing.urgent(ToLearner(work=Work(end=5)))
    outgoing.close()
    assert described([message async for message in stream]) == ["work", "0@1 FLOAT32", "0@1 FLOAT32"]


async def test_a_refusal_need_not_wait_for_what_is_queued() -> None:
    outgoing = Outgoing()
    outgoing.broadcast(version(1, base=0))
    outgoing.close(ToLearner(done=Done()), at_once=True)
    assert described([message async for message in outgoing.messages()]) == ["done"]


async def test_learners_share_one_coded_buffer() -> None:
    payload = memoryview(b"dd")
    shared = Version(0, 1, 0, Coding.BFLOAT16_DELTA, payload, lambda: b"ffff")
    queues = [Outgoing(), Outgoing()]
    for outgoing in queues:
        outgoing.holds(0, 0)
        outgoing.broadcast(shared)
    assert all(outgoing._ordered[0].payload is payload for outgoing in queues)  # type: ignore[union-attr]
