import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from builders.chunks import as_from_learner
from builders.exchange import WAIT_TIMEOUT
from diloco.contract import HEARTBEAT
from diloco.learner.outbox import Outbox
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Alive, Bye, Chunk, FromLearner, Hello, Progress, Taken, WorkWanted
from diloco.protocol.framing import split
from diloco.protocol.window import ACKNOWLEDGED_BYTES, FIRST_BYTES, HOLD_SECONDS

TAU = 2


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outbox(clock: Clock) -> Outbox:
    return Outbox(FromLearner(hello=Hello()), TAU, clock)


def a_chunk(count: int) -> DataChunk:
    """A whole payload."""
    return next(split(Chunk(), bytes(count)))


def push(outbox: Outbox, fragment: int, t: int, chunks: int = 2) -> None:
    header = Chunk(kind=Chunk.PUSH, fragment=fragment, t=t)
    outbox.push(header, of_push(fragment, t, chunks), lambda: None)


def of_push(fragment: int, t: int, chunks: int = 2) -> Iterator[DataChunk]:
    for i in range(chunks):
        yield DataChunk(Chunk(kind=Chunk.PUSH, fragment=fragment, t=t, total=chunks, offset=i), memoryview(b"x"))


def seeds(chunks: int = 2) -> Iterator[DataChunk]:
    for i in range(chunks):
        yield DataChunk(Chunk(kind=Chunk.SEED, total=chunks, offset=i), memoryview(b"x"))


def described(sent: FromLearner | bytes) -> str:
    """`push fragment@t`, with `cancelled` where it is; the kind alone of other messages."""
    message = as_from_learner(sent)
    if not message.HasField("chunk"):
        return str(message.WhichOneof("message"))
    chunk = message.chunk
    return "seed" if chunk.kind == Chunk.SEED else f"push {chunk.fragment}@{chunk.t}{' cancelled' if chunk.cancelled else ''}"


def rest(outbox: Outbox) -> list[str]:
    outbox.finish()
    return [described(message) for message in outbox]


def take(outbox: Outbox, count: int = 1) -> list[str]:
    """The next messages, each of which is sent before the next is taken."""
    taken = []
    for _ in range(count):
        message = outbox.take()
        assert message is not None
        outbox.sent()
        taken.append(described(message))
    return taken


# --- lanes --------------------------------------------------------------------------------------------------------------


def test_hello_is_first_then_what_was_posted_the_newest_progress_and_fragments_and_bye_is_last(outbox: Outbox) -> None:
    push(outbox, 0, 1)
    for number in (1, 2):
        outbox.progress(Progress(local_step=number))
        outbox.post(FromLearner(work_wanted=WorkWanted(samples=number)))
    outbox.finish(FromLearner(bye=Bye()))
    sent = [as_from_learner(message) for message in outbox]
    assert [described(x) for x in sent] == ["hello", "work_wanted", "work_wanted", "progress", "push 0@1", "push 0@1", "bye"]
    assert [sent[1].work_wanted.samples, sent[2].work_wanted.samples, sent[3].progress.local_step] == [1, 2, 2]


def test_a_fragment_is_sent_although_there_is_new_progress_after_every_message(outbox: Outbox) -> None:
    """As on a busy machine, where a local step takes less time than the sending of one message."""
    push(outbox, 0, 1)
    sent = []
    for _, message in zip(range(6), outbox, strict=False):
        sent.append(described(message))
        outbox.progress(Progress())
    assert sent == ["hello", "progress", "push 0@1", "progress", "push 0@1", "progress"]


def test_nothing_passes_what_separates_pushes(outbox: Outbox) -> None:
    """Seeds today, markers later: what was added before is sent before, what was added after is sent after."""
    push(outbox, 0, 1, chunks=1)
    outbox.seed(seeds(1))
    push(outbox, 1, 2, chunks=1)
    assert rest(outbox) == ["hello", "push 0@1", "seed", "push 1@2"]


# --- a link that is too slow --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [0, TAU])
@pytest.mark.parametrize("under_way", [False, True], ids=["none is under way", "one is under way"])
def test_the_newest_pushes_wait_for_the_exchanges_that_can_be_open(clock: Clock, overlap: int, under_way: bool) -> None:
    """A push under way is for one of these, and is sent to its end first; without overlap one waits beside it."""
    outbox = Outbox(FromLearner(hello=Hello()), overlap, clock)
    first = ["hello"]
    if under_way:
        push(outbox, 0, 1)
        take(outbox, 2)
        first = ["push 0@1"]
    for t in range(2, overlap + 4):
        push(outbox, t, t, chunks=1)
    most = max(overlap, 1) if under_way else overlap + 1
    assert outbox.pushes == most + under_way
    assert rest(outbox) == [*first, *(f"push {t}@{t}" for t in range(overlap + 3, overlap + 3 - most, -1))]


def test_a_newer_push_of_a_fragment_replaces_the_older_one(outbox: Outbox) -> None:
    push(outbox, 0, 1)
    push(outbox, 0, 5, chunks=1)
    assert rest(outbox) == ["hello", "push 0@5"]


@pytest.mark.parametrize(
    ("hear", "kept"),
    [
        (lambda outbox: outbox.merged(0, 3), ["push 1@4"]),
        (lambda outbox: outbox.clock(3 + TAU), ["push 1@4", "push 0@3"]),
        (lambda outbox: outbox.clock(3 + TAU + 1), ["push 1@4"]),
        (lambda outbox: outbox.merged(2, 3 + TAU + 1), ["push 1@4"]),
        (lambda outbox: outbox.all_merged(), []),
    ],
    ids=["its fragment is merged", "the clock is within its overlap", "the clock is past it", "so is a value", "the job ends"],
)
def test_a_push_is_dropped_once_its_exchange_is_over(outbox: Outbox, hear: Callable[[Outbox], None], kept: list[str]) -> None:
    """The exchange of step 3 is merged before step 6 at the latest."""
    push(outbox, 0, 3, chunks=1)
    push(outbox, 1, 4, chunks=1)
    hear(outbox)
    assert rest(outbox) == ["hello", *kept]


def test_the_clock_of_a_stream_does_not_go_back(outbox: Outbox) -> None:
    outbox.clock(9)
    outbox.clock(4)
    push(outbox, 0, 5, chunks=1)
    assert rest(outbox) == ["hello"]


def test_a_push_whose_exchange_is_over_is_not_queued(outbox: Outbox) -> None:
    outbox.merged(0, 3)
    push(outbox, 0, 3)
    outbox.all_merged()
    push(outbox, 1, 9)
    assert outbox.pushes == 0
    assert rest(outbox) == ["hello"]


@pytest.mark.parametrize(
    ("hear", "following"),
    [(lambda outbox: outbox.merged(0, 3), []), (lambda outbox: push(outbox, 0, 5, chunks=1), ["push 0@5"])],
    ids=["it is merged", "a newer pull of its fragment came"],
)
def test_a_transfer_under_way_is_cancelled_when_its_exchange_is_over(
    outbox: Outbox, hear: Callable[[Outbox], None], following: list[str]
) -> None:
    outbox.may_cancel()
    push(outbox, 0, 3)
    push(outbox, 1, 2, chunks=1)
    take(outbox, 2)
    hear(outbox)
    assert rest(outbox) == ["push 0@3 cancelled", *following, "push 1@2"]


def test_an_older_syncer_gets_every_transfer_whole_that_has_begun(outbox: Outbox) -> None:
    """It would take the cancellation for a broken payload and refuse the unit."""
    push(outbox, 0, 3, chunks=3)
    push(outbox, 1, 2)
    take(outbox, 2)
    outbox.clock(9)
    assert rest(outbox) == ["push 0@3", "push 0@3"]


def test_a_transfer_of_which_everything_is_sent_is_not_cancelled(outbox: Outbox) -> None:
    outbox.may_cancel()
    push(outbox, 0, 3)
    take(outbox, 3)
    outbox.merged(0, 3)
    assert rest(outbox) == []


def test_a_push_that_has_not_begun_is_not_cancelled(outbox: Outbox) -> None:
    outbox.may_cancel()

    def coded_too_late() -> Iterator[DataChunk]:
        outbox.merged(0, 3)
        yield from of_push(0, 3, chunks=1)

    outbox.push(Chunk(kind=Chunk.PUSH, fragment=0, t=3), coded_too_late(), lambda: None)
    assert rest(outbox) == ["hello", "push 0@3"], "its only chunk was being made when the exchange ended"


@pytest.mark.parametrize("under_way", [False, True])
def test_the_values_of_a_dropped_push_are_freed(outbox: Outbox, under_way: bool) -> None:
    outbox.may_cancel()
    values = np.zeros(8, np.float32)
    kept = weakref.ref(values)

    def chunks(values: np.ndarray) -> Iterator[DataChunk]:
        for i in range(2):
            yield DataChunk(Chunk(kind=Chunk.PUSH, t=3, total=values.nbytes, offset=16 * i), memoryview(values[:4]).cast("B"))

    outbox.push(Chunk(kind=Chunk.PUSH, t=3), chunks(values), lambda: None)
    del values
    take(outbox, 2 if under_way else 1)
    assert kept() is not None
    outbox.merged(0, 3)
    if under_way:
        assert take(outbox) == ["push 0@3 cancelled"]
    assert kept() is None


def a_push_waits_on_a_link_of_two_seconds(outbox: Outbox, clock: Clock) -> None:
    """A transfer takes 2 s, an exchange lives 3 s after the answer is ready. The push of step 3 has waited for 0.9 s."""
    take(outbox)
    push(outbox, 0, 1, chunks=1)
    assert outbox.take() is not None
    clock.now = 2.0
    outbox.sent()
    clock.now = 2.1
    push(outbox, 2, 3, chunks=1)
    clock.now = 3.0
    outbox.clock(1 + TAU + 1)


def test_a_push_that_cannot_arrive_in_time_any_more_is_left_out(outbox: Outbox, clock: Clock) -> None:
    a_push_waits_on_a_link_of_two_seconds(outbox, clock)
    clock.now = 3.5
    # Of the 3 s of the push of step 3, 1.4 s are over, 2 s are needed.
    assert outbox.take() is None
    assert outbox.pushes == 0, "its values are not kept"


def test_at_the_end_of_the_job_no_push_is_left_out(outbox: Outbox, clock: Clock) -> None:
    """The next answer, for which a push is left out, does not come."""
    outbox.ends_at(3 + TAU)
    a_push_waits_on_a_link_of_two_seconds(outbox, clock)
    clock.now = 3.5
    assert take(outbox) == ["push 2@3"]


def test_a_push_that_can_still_arrive_in_time_is_sent(outbox: Outbox, clock: Clock) -> None:
    a_push_waits_on_a_link_of_two_seconds(outbox, clock)
    assert take(outbox) == ["push 2@3"]


def test_every_push_is_ended_once_whatever_becomes_of_it(outbox: Outbox) -> None:
    """Then its memory is used for another one."""
    outbox.may_cancel()
    ended: list[int] = []

    def add(fragment: int, t: int) -> None:
        outbox.push(Chunk(kind=Chunk.PUSH, fragment=fragment, t=t), of_push(fragment, t), lambda: ended.append(t))

    add(0, 1)
    take(outbox, 3)
    assert ended == [1], "all of it is sent"
    add(1, 2)
    take(outbox)
    add(1, 7)
    take(outbox)
    assert ended == [1, 2], "cancelled under way"
    take(outbox)
    for t in (8, 9):
        add(t, t)
    outbox.merged(9, 9)
    assert ended == [1, 2, 9], "over before it began"
    add(10, 10)
    add(11, 11)
    assert ended == [1, 2, 9, 8], "too many wait"
    add(9, 3)
    assert ended == [1, 2, 9, 8, 3], "over when it came"
    outbox.abandon()
    assert sorted(ended) == [1, 2, 3, 7, 8, 9, 10, 11]


def test_a_push_that_cannot_be_coded_is_ended_too_and_says_why(outbox: Outbox) -> None:
    def chunks() -> Iterator[DataChunk]:
        raise RuntimeError("the device is full")
        yield

    ended: list[int] = []
    outbox.push(Chunk(kind=Chunk.PUSH, t=1), chunks(), lambda: ended.append(1))
    take(outbox)
    with pytest.raises(RuntimeError, match="the device is full") as raised:
        outbox.take()
    outbox.abandon()
    assert (outbox.failure, ended) == (raised.value, [1])


# --- the end of a stream ------------------------------------------------------------------------------------------------


def test_nothing_is_sent_on_a_stream_that_is_over(outbox: Outbox) -> None:
    outbox.post(FromLearner(work_wanted=WorkWanted()))
    push(outbox, 0, 1)
    outbox.abandon()
    assert rest(outbox) == []


def test_a_stream_that_is_over_lets_its_sender_go(outbox: Outbox) -> None:
    taken: list[str] = []
    reader = threading.Thread(target=lambda: taken.extend(described(x) for x in outbox))
    reader.start()
    outbox.abandon()
    reader.join(WAIT_TIMEOUT)
    assert not reader.is_alive()
    assert taken in ([], ["hello"])


def test_what_was_taken_stays_as_it_is_once_the_push_has_ended(outbox: Outbox) -> None:
    """The memory that the chunks were cut from is used again at once, while gRPC still has the last chunk to send."""
    values, ended = bytearray(b"aabb"), threading.Event()
    outbox.push(Chunk(kind=Chunk.PUSH, t=1), split(Chunk(kind=Chunk.PUSH, t=1), values, 2), ended.set)
    take(outbox)
    messages = [outbox.take(), outbox.take()]
    assert ended.is_set()
    values[:] = b"xxxx"
    assert [as_from_learner(message).chunk.data for message in messages if message is not None] == [b"aa", b"bb"]


# --- the window ---------------------------------------------------------------------------------------------------------


def large_push(outbox: Outbox, fragment: int, t: int) -> None:
    """Twice the first window."""
    header = Chunk(kind=Chunk.PUSH, fragment=fragment, t=t)
    outbox.push(header, split(header, bytes(2 * FIRST_BYTES)), lambda: None)


def take_data(outbox: Outbox) -> int:
    """Take chunks until there is none: bytes of data."""
    count = 0
    while (message := outbox.take()) is not None:
        outbox.sent()
        count += len(as_from_learner(message).chunk.data)
    return count


@pytest.fixture
def full(outbox: Outbox) -> Outbox:
    """The window is full with the first part of a push."""
    take(outbox)
    outbox.may_cancel()
    outbox.acknowledges()
    large_push(outbox, 0, 1)
    assert FIRST_BYTES <= take_data(outbox) < 1.5 * FIRST_BYTES
    return outbox


def test_a_syncer_that_does_not_acknowledge_gets_everything_at_once(outbox: Outbox) -> None:
    large_push(outbox, 0, 1)
    assert take_data(outbox) == 2 * FIRST_BYTES


def test_small_messages_pass_a_full_window(full: Outbox) -> None:
    full.post(FromLearner(work_wanted=WorkWanted()))
    full.progress(Progress())
    assert take(full, 2) == ["work_wanted", "progress"]
    full.progress(Progress())
    assert take(full) == ["progress"]


def test_the_end_of_a_transfer_passes_a_full_window_and_the_next_push_is_chosen_when_the_window_opens(full: Outbox) -> None:
    large_push(full, 1, 2)
    full.merged(0, 1)
    assert take(full) == ["push 0@1 cancelled"]
    assert full.take() is None
    large_push(full, 2, 3)
    full.taken(Taken(bytes=FIRST_BYTES))
    assert take(full) == ["push 2@3"]


def test_at_the_end_of_the_stream_what_is_queued_waits_for_the_window_and_is_sent(outbox: Outbox) -> None:
    take(outbox)
    outbox.acknowledges()
    large_push(outbox, 0, 1)
    count = take_data(outbox)
    outbox.finish(FromLearner(bye=Bye()))
    following = iter(outbox)
    sent: list[FromLearner] = []
    sender = threading.Thread(target=lambda: sent.append(as_from_learner(next(following))))
    sender.start()
    outbox.taken(Taken(bytes=count))
    sender.join(WAIT_TIMEOUT)
    for message in following:
        sent.append(as_from_learner(message))
        count += len(sent[-2].chunk.data)
        outbox.taken(Taken(bytes=count))
    assert [message.WhichOneof("message") for message in sent[-2:]] == ["chunk", "bye"]
    assert sent[-2].chunk.offset + len(sent[-2].chunk.data) == 2 * FIRST_BYTES


def test_a_push_takes_until_it_is_acknowledged(outbox: Outbox, clock: Clock) -> None:
    """gRPC takes it at once. It is there after 2 s, so the next one is left out: of its 3 s 1.5 s are over."""
    take(outbox)
    outbox.acknowledges()
    header = Chunk(kind=Chunk.PUSH, fragment=0, t=1)
    outbox.push(header, split(header, bytes(FIRST_BYTES // 2)), lambda: None)
    assert take_data(outbox) == FIRST_BYTES // 2
    clock.now = 2.0
    outbox.taken(Taken(bytes=FIRST_BYTES // 2))
    push(outbox, 2, 3, chunks=1)
    clock.now = 3.0
    outbox.clock(1 + TAU + 1)
    clock.now = 3.5
    assert outbox.take() is None
    assert outbox.pushes == 0


def test_chunks_that_came_are_acknowledged_before_the_next_chunk_is_sent(outbox: Outbox) -> None:
    take(outbox)
    outbox.took(a_chunk(ACKNOWLEDGED_BYTES))
    assert outbox.take() is None, "the syncer does not know the message"
    outbox.acknowledges()
    push(outbox, 0, 1)
    outbox.took(a_chunk(1))
    message = outbox.take()
    assert isinstance(message, FromLearner)
    assert message.taken.bytes == ACKNOWLEDGED_BYTES + 1
    outbox.sent()
    assert take(outbox) == ["push 0@1"]


# --- alive --------------------------------------------------------------------------------------------------------------


def of_alive_process(clock: Clock, pause: str = "") -> Outbox:
    return Outbox(FromLearner(hello=Hello()), TAU, clock, lambda: Alive(pause=pause))


def now_sent(outbox: Outbox) -> list[str]:
    sent = []
    while (message := outbox.take()) is not None:
        sent.append(described(message))
    return sent


def test_a_process_says_how_things_are_after_hello_and_then_only_when_it_says_nothing_else(clock: Clock) -> None:
    outbox = of_alive_process(clock, "evaluation")
    first, second = outbox.take(), outbox.take()
    assert [described(message) for message in (first, second) if message is not None] == ["hello", "alive"]
    assert as_from_learner(second or b"").alive.pause == "evaluation"
    for _ in range(4):  # steps of half a heartbeat say it as well
        clock.now += HEARTBEAT / 2
        outbox.progress(Progress())
        assert now_sent(outbox) == ["progress"]
    clock.now += HEARTBEAT
    assert now_sent(outbox) == ["alive"]
    clock.now += HEARTBEAT - 0.1
    assert now_sent(outbox) == []
    outbox.tell_alive()
    assert now_sent(outbox) == ["alive"], "a change is said at once"


def test_nothing_is_said_after_the_last_message(clock: Clock) -> None:
    outbox = of_alive_process(clock)
    now_sent(outbox)
    outbox.finish(FromLearner(bye=Bye()))
    clock.now += 3 * HEARTBEAT
    assert [described(message) for message in outbox] == ["bye"]


# --- acknowledgements beside other messages ---------------------------------------------------------------------------------


def following(outbox: Outbox) -> FromLearner:
    message = outbox.take()
    assert message is not None
    outbox.sent()
    return as_from_learner(message)


@pytest.fixture
def beside(outbox: Outbox) -> Outbox:
    """Its syncer reads acknowledgements beside other messages."""
    take(outbox)
    outbox.acknowledges(beside=True)
    return outbox


def test_an_acknowledgement_goes_beside_the_next_report(beside: Outbox) -> None:
    beside.took(a_chunk(ACKNOWLEDGED_BYTES))
    assert beside.take() is None
    beside.progress(Progress(local_step=7))
    message = following(beside)
    assert (message.progress.local_step, message.acknowledged.bytes) == (7, ACKNOWLEDGED_BYTES)
    assert beside.take() is None, "it has been said"


def test_an_acknowledgement_goes_beside_a_chunk(beside: Outbox) -> None:
    beside.took(a_chunk(ACKNOWLEDGED_BYTES))
    push(beside, 0, 1, chunks=1)
    assert following(beside).chunk.acknowledged.bytes == ACKNOWLEDGED_BYTES


def test_an_acknowledgement_beside_the_end_of_a_transfer_lies_in_its_chunk(beside: Outbox) -> None:
    """Where the receiver looks for it: what comes is a chunk like others."""
    beside.may_cancel()
    push(beside, 0, 1)
    take(beside)
    beside.took(a_chunk(ACKNOWLEDGED_BYTES))
    beside.merged(0, 1)
    message = following(beside)
    assert message.chunk.cancelled
    assert message.chunk.acknowledged.bytes == ACKNOWLEDGED_BYTES


def test_an_acknowledgement_beside_which_nothing_goes_is_sent_alone(beside: Outbox, clock: Clock) -> None:
    beside.took(a_chunk(ACKNOWLEDGED_BYTES))
    clock.now += HOLD_SECONDS
    message = following(beside)
    assert message.taken.bytes == ACKNOWLEDGED_BYTES
    assert message.taken.held == pytest.approx(HOLD_SECONDS)


def test_the_sending_thread_sends_it_although_nobody_adds_anything() -> None:
    outbox = Outbox(FromLearner(hello=Hello()), TAU)
    outbox.acknowledges(beside=True)
    messages = map(as_from_learner, outbox)
    assert next(messages).WhichOneof("message") == "hello"
    found: list[FromLearner] = []
    sender = threading.Thread(target=lambda: found.append(next(messages)))
    sender.start()
    outbox.took(a_chunk(ACKNOWLEDGED_BYTES))
    sender.join(WAIT_TIMEOUT)
    assert [message.taken.bytes for message in found] == [ACKNOWLEDGED_BYTES]
