"""A learner whose training loop goes step by step in the test's thread, over a real connection to a scripted syncer."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import numpy as np
from builders.exchange import WAIT_TIMEOUT, Place, connection_of, solo, until, weights
from builders.scripted_syncer import ScriptedStream, ScriptedSyncer
from builders.training_loop import BATCH, TrainingLoop
from diloco.learner.arrays import ArrayStore
from diloco.learner.leave import Leave
from diloco.learner.work import AHEAD_BATCHES
from diloco.protocol.diloco_pb2 import FromLearner, Progress
from diloco.session.session import Session

AHEAD = AHEAD_BATCHES * BATCH


class Learner(TrainingLoop):
    """A session and its training loop, step by step in the test's thread."""

    def __init__(self, place: Place, syncer: ScriptedSyncer) -> None:
        self.arrays = weights(-1.0)
        store = ArrayStore(self.arrays, embeddings=["w0"])
        environment = place.of_learner(syncer.address, "u")
        self.entered: list[Session] = []
        """The session, from before it has the job's parameters."""
        entered = self.entered

        class Recorded(Session):
            def _wait_for_parameters(self) -> None:
                entered.append(self)
                super()._wait_for_parameters()

        def join() -> None:
            try:
                self._joined.set_result(Recorded.join(store, framework="numpy", environment=environment))
            except Leave as leave:
                self._joined.set_exception(leave)

        self._joined: Future[Session] = Future()
        threading.Thread(target=join, daemon=True).start()
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        if self._session is None:
            self._session = self.begin(self._joined.result(WAIT_TIMEOUT))
        return self._session

    def wait_for(self, kind: type[object], count: int = 1) -> None:
        """Wait until `count` events of this kind wait for the next step."""
        inbox = solo(self.session)._inbox
        until(lambda: sum(isinstance(event, kind) for event in list(inbox._events)) >= count, f"{count} {kind.__name__}")

    def is_over(self) -> None:
        """Wait for the end of the connection's thread, which so opens no stream any more."""
        thread = connection_of(self.session)._thread
        thread.join(WAIT_TIMEOUT)
        assert not thread.is_alive()

    def end(self) -> None:
        """Let the session go, whatever became of the test."""
        for session in self.entered:
            solo(session).drain()
            connection_of(session).close(None)


def joined(learner: Learner, syncer: ScriptedSyncer, steps: int = 1000) -> ScriptedStream:
    """Join at outer step 4 of `steps`, where all parameters were 5, with 100 samples leased. Return the learner's first stream."""
    stream = syncer.accept().welcome(t=4, steps=steps).broadcast_all(4, weights(5.0)).lease(0, 100)
    assert learner.session.t == 4
    return stream


def values(learner: Learner) -> set[float]:
    """The different values that the model's parameters have."""
    return {float(value) for array in learner.arrays.values() for value in np.unique(array)}


def of_fragment(learner: Learner, syncer: ScriptedSyncer, index: int) -> set[float]:
    return {float(value) for tensor in syncer.fragments[index].tensors for value in np.unique(learner.arrays[tensor.name])}


def progress(stream: ScriptedStream) -> Progress:
    return stream.hear("progress").progress


def newest_progress(stream: ScriptedStream, local_step: int) -> Progress:
    """The progress of this local step; the ones before may have been replaced by it."""
    while (found := progress(stream)).local_step < local_step:
        pass
    assert found.local_step == local_step
    return found


def kinds(messages: list[FromLearner]) -> list[str | None]:
    return [message.WhichOneof("message") for message in messages]
