import threading

from diloco.learner.outbox import Outbox
from diloco.protocol.diloco_pb2 import Bye, Chunk, FromLearner, Hello, Progress, WorkWanted


def kinds(outbox: Outbox) -> list[str]:
    return [str(message.WhichOneof("message")) for message in outbox]


def chunk() -> FromLearner:
    return FromLearner(chunk=Chunk())


def test_hello_is_first_and_bye_last_and_metadata_overtakes_fragments() -> None:
    outbox = Outbox(FromLearner(hello=Hello()))
    outbox.transfer(iter([chunk(), chunk()]))
    outbox.progress(Progress())
    outbox.post(FromLearner(work_wanted=WorkWanted()))
    outbox.finish(FromLearner(bye=Bye()))
    assert kinds(outbox) == ["hello", "work_wanted", "progress", "chunk", "chunk", "bye"]


def test_only_the_newest_progress_is_sent() -> None:
    outbox = Outbox(FromLearner(hello=Hello()))
    for step in (1, 2, 3):
        outbox.progress(Progress(local_step=step))
    outbox.finish()
    assert [message.progress.local_step for message in outbox if message.HasField("progress")] == [3]


def test_metadata_goes_between_two_chunks_of_a_fragment() -> None:
    outbox = Outbox(FromLearner(hello=Hello()))

    def chunks() -> object:
        yield chunk()
        outbox.progress(Progress())
        yield chunk()
        yield chunk()

    outbox.transfer(chunks())  # type: ignore[arg-type]
    outbox.finish()
    assert kinds(outbox) == ["hello", "chunk", "chunk", "progress", "chunk"]


def test_a_fragment_is_sent_although_there_is_new_progress_after_every_message() -> None:
    """As on a busy machine, where a local step takes less time than the sending of one message."""
    outbox = Outbox(FromLearner(hello=Hello()))
    outbox.transfer(iter([chunk(), chunk()]))
    sent = []
    for _, message in zip(range(6), outbox, strict=False):
        sent.append(message.WhichOneof("message"))
        outbox.progress(Progress())
    assert sent == ["hello", "progress", "chunk", "progress", "chunk", "progress"]


def test_nothing_is_sent_on_a_stream_that_is_over() -> None:
    outbox = Outbox(FromLearner(hello=Hello()))
    outbox.post(FromLearner(work_wanted=WorkWanted()))
    outbox.transfer(iter([chunk()]))
    outbox.abandon()
    assert kinds(outbox) == []


def test_a_stream_that_is_over_lets_its_sender_go() -> None:
    outbox = Outbox(FromLearner(hello=Hello()))
    taken: list[str] = []
    reader = threading.Thread(target=lambda: taken.extend(kinds(outbox)))
    reader.start()
    outbox.abandon()
    reader.join(10)
    assert not reader.is_alive()
    assert taken in ([], ["hello"])
