"""A follower's end of the side channel.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from diloco.contract import Exit
from diloco.protocol.backoff import exponential
from diloco.protocol.tls import TlsError, TlsFiles
from diloco.ranks.channel import LEFT_EARLY, TELL_TIMEOUT, TICK, Outbound, RankIdentity, SideChannel, end_process, reason
from diloco.ranks.liveness import SILENCE, Cause, Silence
from diloco.ranks.ranks_pb2 import End, Failed, FromLeader, Left, RankHello, ToLeader
from diloco.ranks.stream import Stream, StreamError

_FIRST_DELAY, _LONGEST_DELAY = 0.05, 1.0
"""Seconds between two attempts to connect."""


class Follower(SideChannel[FromLeader]):
    """Connects to the leader at `host`:`port`, and tries again until the leader listens."""

    def __init__(self, me: RankIdentity, tls: TlsFiles, host: str, port: int, end: Callable[[int, str], None] = end_process) -> None:
        super().__init__(me, tls, end)
        self._address = host, port
        self._stream: Stream | None = None
        self._gone = threading.Event()
        """Set once the leader knows that this rank leaves."""
        self._leader_left_early = False

    def say(self, message: ToLeader) -> None:
        """Send a message to the leader with the next `send`. Never waits; messages keep their order."""
        with self._saying:
            self._outbound.append((message.SerializeToString(), None))

    def failed(self, error: BaseException | str) -> None:
        if self._leader_left_early and not self._has_left and os.getpid() == self._process:
            text = error if isinstance(error, str) else reason(error)
            self._end_process(Exit.RANK_LOST, f"{self.me.name(0)} {LEFT_EARLY}. This process ended: {text}")
        super().failed(error)

    def _write(self, messages: Sequence[Outbound]) -> None:
        if self._stream is not None:
            self._stream.write(*(raw for raw, _ in messages))

    def _begin(self, hello: RankHello, deadline: float) -> None:
        self._hello = hello
        self._deadline = deadline

    async def _main(self) -> None:
        connected = await self._connect()
        if connected is None:
            return
        stream, message = connected
        self._stream = stream
        self._silence = Silence(self._loop.time(), TICK)
        self._silence.heard(0)
        watch = asyncio.create_task(self._watch(stream))
        why = ""
        try:
            async with asyncio.timeout_at(self._loop.time() + max(0.0, self._deadline - time.monotonic())):
                while not message.WhichOneof("message"):
                    message = FromLeader.FromString(await stream.read())
                    self._silence.heard(0)
        except (StreamError, DecodeError) as error:
            why = str(error)
        except TimeoutError:
            why = "not all ranks came in time, and the leader did not say so"
        if why:
            self._lost(why)
        elif self._handle(message):
            await self._listen(stream)
        watch.cancel()
        await stream.close()
        self._gone.set()

    async def _connect(self) -> tuple[Stream, FromLeader] | None:
        """Return the connection, and the first message of a leader that has accepted this rank. None if none did until the deadline.

        A leader that refuses this rank's certificate just closes the connection. That is tried again, because a renewed certificate may be
        on its way.
        """
        failures = 0
        host, port = self._address
        while True:
            try:
                return await self._introduce(await Stream.connect(host, port, self._tls, self.me.identity))
            except (StreamError, TlsError) as error:
                failures += 1
                if time.monotonic() > self._deadline:
                    self._lost(f"{self.me.name(self.me.rank)} found no leader at {host}:{port} ({error})")
                    return None
            await asyncio.sleep(exponential(_FIRST_DELAY, _LONGEST_DELAY, failures))

    async def _introduce(self, stream: Stream) -> tuple[Stream, FromLeader]:
        stream.write(ToLeader(hello=self._hello).SerializeToString())
        try:
            async with asyncio.timeout(SILENCE):
                return stream, FromLeader.FromString(await stream.read())
        except (StreamError, DecodeError, TimeoutError) as error:
            stream.cut()
            raise StreamError(f"the leader did not take this rank: {error or 'no answer'}") from error

    async def _listen(self, stream: Stream) -> None:
        while True:
            try:
                message = FromLeader.FromString(await stream.read())
            except (StreamError, DecodeError) as error:
                self._lost(str(error))
                return
            self._silence.heard(0)
            if not self._handle(message):
                return

    def _handle(self, message: FromLeader) -> bool:
        """Handle a message. False if it is the leader's last one."""
        match message.WhichOneof("message"):
            case "welcome":
                self._welcome.set_result(message.welcome)
            case "end":
                self._finish(Cause(message.end.rank, message.end.message), message.end)
                return False
            case "left":
                self._over = True
                self._leader_left_early = message.left.early
                self._judged.set()
                return False
            case "order" | "deal" | "cut" | "drop" | "counted" | "state":
                self._put(0, message)
        return True

    async def _watch(self, stream: Stream) -> None:
        """Send signs of life to the leader, and see whether it sends any."""
        while not self._over:
            stream.sign_of_life()
            if self._silence.lost(self._loop.time()):
                self._lost("nothing is heard of it any more: its process or its host is frozen, or cut off")
                return
            await asyncio.sleep(TICK)

    def _lost(self, why: str) -> None:
        if self._over:
            return
        message = f"{self.me.name(0)} is lost: {why}. This process ends, and with it the unit"
        self._finish(Cause(0, why), End(status=Exit.RANK_LOST, message=message))

    def _tell_failure(self, text: str) -> None:
        if self._stream is None or self._over:
            self._judged.set()
        else:
            self._stream.write(ToLeader(failed=Failed(reason=text)).SerializeToString())

    def _tell_leaving(self, gone: threading.Event, early: bool) -> None:
        self._over = True
        if self._stream is None:
            gone.set()
            return
        self._gone = gone
        self._stream.write(ToLeader(left=Left(early=early)).SerializeToString())
        # The leader closes the connection once it has read that. If this end closed it first, what the leader still writes would break it.
        self._loop.call_later(TELL_TIMEOUT, self._stream.cut)
