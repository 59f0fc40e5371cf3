"""What both ends of a side channel have in common: the thread, the end of the process, and exceptions of the program.

The thread runs beside the training thread, so it can end the process even while the training thread hangs in a collective.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType

from diloco.contract import Exit, learner_identity
from diloco.learner.leave import leave
from diloco.protocol.tls import TlsFiles
from diloco.ranks.liveness import HEARTBEAT, Cause
from diloco.ranks.ranks_pb2 import End, FromLeader, RankHello, RankWelcome, ToLeader

type Outbound = tuple[bytes, int | None]
"""(message, the rank that it is for). None: for all others."""

_log = logging.getLogger(__name__)

TICK = HEARTBEAT / 2
"""Seconds between two checks for silent ranks."""
MEETING_TIMEOUT = 300.0
"""How long the ranks of a unit wait for each other at their start, seconds: hosts pull their images at different speeds."""
TELL_TIMEOUT = 0.3
"""How long a process that ends waits until the others have been told, seconds."""
JUDGE_TIMEOUT = 4.0
"""How long a program that raised waits for the leader's verdict, seconds. It comes within one unless the machine is busy."""
COUNTERS_TIMEOUT = 2.0
"""How long a draining unit waits for the counters of its last pushes, seconds."""
LEAVING_TIMEOUT = 15.0
"""How long the leader of a draining unit waits until the others have sent their last pushes and left, seconds."""
LEFT_EARLY = "left its training loop before the job was done, and the other ranks cannot go on without it"
_MOST_REASON = 2000
"""Characters of an exception's text that the other ranks get."""


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """Which rank of which unit this process is."""

    job_uid: str
    unit: str
    attempt: int
    rank: int
    ranks: int

    @property
    def identity(self) -> str:
        """The identity that the certificates of both ends of a connection must have."""
        return learner_identity(self.job_uid, self.unit, self.attempt)

    def name(self, rank: int) -> str:
        """Return text such as `rank 2 of unit u`."""
        return f"rank {rank}{' (the leader)' if rank == 0 else ''} of unit {self.unit}"


def end_process(status: int, message: str) -> None:
    """End this process at once, with one line on stderr. The training thread may hang in a collective, and hold any lock of Python's."""
    os.write(2, f"diloco: {message}\n".encode(errors="replace"))
    os._exit(status)


def reason(error: BaseException) -> str:
    """Return how the other ranks show an exception: type and message, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:_MOST_REASON] if text else type(error).__name__


class SideChannel[Heard: (ToLeader, FromLeader)](ABC):
    """One rank's end. The program's threads call the methods without an underscore; the others run on the channel's own thread."""

    def __init__(self, me: RankIdentity, tls: TlsFiles, end: Callable[[int, str], None] = end_process) -> None:
        """`end(status, message)` ends the process. The channel's thread calls it when another rank is lost."""
        self.me = me
        self._tls = tls
        self._end_process = end
        self.changed = threading.Condition()
        """Notified when a message for the program's thread has come."""
        self._mail: deque[tuple[int, Heard]] = deque()
        self._outbound: list[Outbound] = []
        """Messages that wait for the next `send`."""
        self._saying = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="diloco-ranks", daemon=True)
        self._over = False
        """The unit ends, or the loss of another rank no longer concerns this process."""
        self._has_left = False
        self._failed = False
        self._welcome: Future[RankWelcome] = Future()
        self._judged = threading.Event()
        """The verdict is in: the others know which rank ends the unit."""
        self._process = os.getpid()
        self._former_hook = sys.excepthook

    def meet(self, hello: RankHello, timeout: float = MEETING_TIMEOUT) -> RankWelcome:
        """Wait until all ranks have come, and return the session that they share. Called once.

        Raises Leave with `Exit.RANK_LOST` if the ranks do not agree, or one is lost or does not come in time, and with
        `Exit.REFUSED_LAYOUT` if their pieces do not make up the model. From now on the loss of a rank ends this process.
        """
        self._begin(hello, time.monotonic() + timeout)
        self._thread.start()
        sys.excepthook = self._excepthook
        atexit.register(self._at_exit)
        return self._welcome.result()

    def heard(self) -> list[tuple[int, Heard]]:
        """Return the messages since the last call, in order: (rank that sent it, message). Never waits."""
        with self.changed:
            mail, self._mail = list(self._mail), deque()
        return mail

    @property
    def has_mail(self) -> bool:
        """`heard` would return something."""
        with self.changed:
            return bool(self._mail)

    def send(self) -> None:
        """Send all messages that were said. Each call wakes the channel's thread once, so several messages should go together."""
        with self._saying:
            if self._outbound:
                messages, self._outbound = self._outbound, []
                self._post(lambda: self._write(messages))

    def failed(self, error: BaseException | str) -> None:
        """Tell the others that the program ends for this reason, and wait until they know. Does not return if the cause is the loss of
        another rank: then the process ends as all do."""
        if self._has_left or self._failed or os.getpid() != self._process:
            return
        self._failed = True
        text = error if isinstance(error, str) else reason(error)
        if self._thread.is_alive() and self._post(lambda: self._tell_failure(text)):
            self._judged.wait(JUDGE_TIMEOUT)
        self._release()

    def left(self, *, early: bool = False) -> None:
        """Leave: this rank has done its part. Its end is no loss, and the end of another rank no longer concerns it.

        `early`: the program has left its loop before the job was done, and the others may wait for it in vain.
        """
        if self._has_left or os.getpid() != self._process:
            return
        self._has_left = True
        self.send()
        gone = threading.Event()
        if self._thread.is_alive() and self._post(lambda: self._tell_leaving(gone, early)):
            gone.wait(1.0 + TELL_TIMEOUT)
        self._over = True
        self._release()

    @abstractmethod
    def _begin(self, hello: RankHello, deadline: float) -> None:
        """Prepare before the thread starts."""

    @abstractmethod
    async def _main(self) -> None:
        """Run until the other ranks no longer concern this process."""

    @abstractmethod
    def _write(self, messages: Sequence[Outbound]) -> None:
        """Send each message to its rank."""

    @abstractmethod
    def _tell_failure(self, text: str) -> None:
        """Tell the others that this rank's program failed. Must set `_judged` afterwards, unless the process ends."""

    @abstractmethod
    def _tell_leaving(self, gone: threading.Event, early: bool) -> None:
        """Tell the others that this rank leaves. Must set `gone` once they know. `early` is as in `left`."""

    def _finish(self, cause: Cause, end: End) -> None:
        """End this process, or the meeting if it is not over. Called once all reachable ranks know.

        A program that has raised itself is not ended: its own exception ends it.
        """
        self._over = True
        if not self._welcome.done():
            self._welcome.set_exception(leave(Exit(end.status), end.message))
        elif not (self._failed and cause.rank == self.me.rank):
            self._end_process(end.status, end.message)
        self._judged.set()

    def _put(self, rank: int, message: Heard) -> None:
        """Queue a message for the program's thread."""
        with self.changed:
            self._mail.append((rank, message))
            self.changed.notify_all()

    def _post(self, call: Callable[[], None]) -> bool:
        """Run `call` on the channel's thread. False if that has ended."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return False
        return True

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        except Exception as error:  # noqa: BLE001 - a mistake of any kind ends the unit
            # Without this thread a lost rank would go unnoticed, and the program's thread might wait for ever.
            _log.exception("the side channel of %s has failed", self.me.name(self.me.rank))
            if not self._over:
                why = f"{self.me.name(self.me.rank)} ends, as its side channel has failed: {reason(error)}"
                self._finish(Cause(self.me.rank, why), End(rank=self.me.rank, status=Exit.RANK_LOST, message=why))

    def _release(self) -> None:
        atexit.unregister(self._at_exit)
        if sys.excepthook == self._excepthook:
            sys.excepthook = self._former_hook

    def _excepthook(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        self._former_hook(kind, error, traceback)
        self.failed(error)

    def _at_exit(self) -> None:
        self.failed("its program ended and had not closed its session")
