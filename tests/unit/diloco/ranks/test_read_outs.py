"""What a rank has read out of its model, until its counters are known."""

from __future__ import annotations

import numpy as np
from diloco.algorithm.codec import Coding
from diloco.learner.push_header import PushCounts
from diloco.protocol.diloco_pb2 import Chunk
from diloco.ranks.member import ReadOuts
from diloco.ranks.orders import ReadOut

EPOCH = 3


class Values:
    """Staged values, of which a test sees whether they were let go."""

    def __init__(self) -> None:
        self.released = 0

    def wait(self) -> np.ndarray:
        return np.zeros(1, np.float32)

    def release(self) -> None:
        self.released += 1


def counted(fragment: int, t: int) -> PushCounts:
    return PushCounts(fragment, t, steps=4, tokens=64, samples_done=8, tokens_done=128, steps_done=9)


def test_what_was_read_out_is_sent_once_with_the_counters_of_its_exchange() -> None:
    reads, values = ReadOuts(Coding.INT4_DELTA), Values()
    reads.put(ReadOut(1, 7, EPOCH), values)
    assert (bool(reads), reads.take(EPOCH)) == (True, []), "its counters are not known"
    reads.count(counted(1, 7))
    header = Chunk(kind=Chunk.PUSH, fragment=1, t=7, coding=Chunk.INT4_DELTA, steps=4, tokens=64)
    header.samples_done, header.tokens_done, header.steps_done = 8, 128, 9
    assert reads.take(EPOCH) == [(header, values)]
    assert (bool(reads), reads.take(EPOCH), values.released) == (False, [], 0)


def test_counters_may_be_known_before_this_rank_comes_to_the_boundary() -> None:
    reads, values = ReadOuts(Coding.FLOAT32), Values()
    reads.count(counted(1, 7))
    assert reads.take(EPOCH) == []
    reads.put(ReadOut(1, 7, EPOCH), values)
    [(_, sent)] = reads.take(EPOCH)
    assert sent is values


def test_counters_of_another_exchange_are_not_those_of_what_was_read_out() -> None:
    reads, newer = ReadOuts(Coding.FLOAT32), Values()
    reads.put(ReadOut(1, 9, EPOCH), newer)
    reads.count(counted(1, 7))
    assert reads.take(EPOCH) == []
    reads.count(counted(1, 9))
    [(header, _)] = reads.take(EPOCH)
    assert header.t == 9


def test_a_newer_read_of_a_fragment_takes_the_place_of_the_older_one() -> None:
    reads, older, newer = ReadOuts(Coding.FLOAT32), Values(), Values()
    reads.put(ReadOut(0, 5, EPOCH), older)
    reads.put(ReadOut(0, 7, EPOCH), newer)
    assert (older.released, newer.released) == (1, 0)
    reads.count(counted(0, 5))
    assert reads.take(EPOCH) == []


def test_what_another_state_of_the_syncer_asked_for_is_let_go() -> None:
    reads, values = ReadOuts(Coding.FLOAT32), Values()
    reads.put(ReadOut(0, 5, EPOCH), values)
    reads.count(counted(0, 5))
    assert (reads.take(EPOCH + 1), values.released, bool(reads)) == ([], 1, False)


def test_at_the_end_everything_is_let_go() -> None:
    reads, values = ReadOuts(Coding.FLOAT32), [Values(), Values()]
    for fragment, one in enumerate(values):
        reads.put(ReadOut(fragment, 5, EPOCH), one)
    reads.release()
    assert ([one.released for one in values], bool(reads)) == ([1, 1], False)
