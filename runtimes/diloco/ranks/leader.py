"""The leader's end of the side channel. It hears all other ranks, finds out which of them is lost, and tells the rest.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

from google.protobuf.message import DecodeError

from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece, PieceError, check_cover
from diloco.contract import Exit
from diloco.protocol.tls import TlsError, TlsFiles
from diloco.ranks.channel import LEFT_EARLY, TELL_TIMEOUT, TICK, Outbound, RankIdentity, SideChannel, end_process
from diloco.ranks.liveness import SILENCE, Cause, Silence, Verdict
from diloco.ranks.meeting import absent, disagreement
from diloco.ranks.messages import pieces_from_wire
from diloco.ranks.ranks_pb2 import End, FromLeader, Left, RankHello, RankWelcome, StateSaid, ToLeader
from diloco.ranks.stream import MOST_MEETING_BYTES, Stream, StreamError
from diloco.wording import plural

_log = logging.getLogger(__name__)

_SPARE_STRANGERS = 64
"""Connections, beyond one for each rank, that may wait for their peers to prove their identity. When one more comes, the oldest is closed:
a silent stranger grows old, a rank proves itself at once."""
_HERE_TIMEOUT = 10.0
"""How long a process of this unit may take to say which rank it is, seconds."""


class Leader(SideChannel[ToLeader]):
    """Listens from `__init__` on."""

    def __init__(
        self,
        me: RankIdentity,
        tls: TlsFiles,
        host: str,
        port: int,
        *,
        layout: Layout,
        session: bytes,
        end: Callable[[int, str], None] = end_process,
    ) -> None:
        """Listen at `host` and `port`; port 0 takes a free one. Raises OSError if that fails.

        `session`: the session that all ranks name to the syncer.
        """
        super().__init__(me, tls, end)
        self._layout = layout
        self._session = session
        self._listener = _listen(host, port)
        self.port: int = self._listener.getsockname()[1]
        self._strangers: dict[asyncio.Task[None], None] = {}
        """Connections whose peers have not proved their identity, the oldest first."""
        self._streams: dict[int, Stream] = {}
        self._listening: set[asyncio.Task[None]] = set()
        self._hellos: dict[int, RankHello] = {}
        self._checking: asyncio.Task[None] | None = None
        self._owned: Sequence[Sequence[Piece]] = ()
        self._verdict = Verdict()
        self._left: set[int] = set()
        self.wanted: Callable[[int], None] = lambda batches: None
        """Called on the channel's thread when a rank wants this many batches, counted from the beginning."""
        self.state_said: Callable[[int, StateSaid], None] = lambda rank, said: None
        """Called on the channel's thread when a rank answers an order about the unit's state."""

    def say(self, message: FromLeader, rank: int | None = None) -> None:
        """Send a message to one rank, or to all others, with the next `send`. Never waits; messages keep their order."""
        with self._saying:
            self._outbound.append((message.SerializeToString(), rank))

    @property
    def data_ranks(self) -> list[int]:
        """Which part of the unit's batch each rank trains. Known after the meeting."""
        return [self._hellos[rank].data_rank for rank in range(self.me.ranks)]

    def take_owned(self) -> Sequence[Sequence[Piece]]:
        """Return the pieces of each rank and forget them, after the meeting. The pieces of many ranks take 100 MB."""
        owned, self._owned = self._owned, ()
        return owned

    @property
    def inner_states(self) -> Sequence[str]:
        """The kind of each rank's inner state. Known after the meeting."""
        return [self._hellos[rank].inner_state for rank in range(self.me.ranks)]

    @property
    def peer_addresses(self) -> list[str]:
        """Where each rank gives what it owns of the state. Empty if one of them gives nothing. Known after the meeting."""
        addresses = [self._hellos[rank].peer_address for rank in range(self.me.ranks)]
        return addresses if all(addresses) else []

    def take_held(self) -> Sequence[Sequence[Piece]]:
        """Return the pieces that each rank stores and forget them, after the meeting."""
        held = [pieces_from_wire(self._hellos[rank].held) for rank in range(self.me.ranks)]
        for hello in self._hellos.values():
            hello.ClearField("held")
        return held

    def wait_until_left(self, seconds: float) -> bool:
        """Wait at most `seconds` until all other ranks have left. True if they have."""
        with self.changed:
            return self.changed.wait_for(lambda: len(self._left) == self.me.ranks - 1, seconds)

    def _begin(self, hello: RankHello, deadline: float) -> None:
        self._hellos[0] = hello
        self._deadline = deadline

    # --- the meeting ----------------------------------------------------------------------------------------------------

    async def _main(self) -> None:
        self._silence = Silence(self._loop.time(), TICK)
        accepting = self._loop.create_task(self._accept())
        self._all_there()
        while not self._over or self._streams:
            self._judge_silence()
            self._end_if_due()
            self._say_alive()
            await asyncio.sleep(TICK)
        accepting.cancel()

    async def _accept(self) -> None:
        try:
            while True:
                try:
                    raw, address = await self._loop.sock_accept(self._listener)
                except OSError as error:  # no descriptor is left, or the connection broke before it was taken
                    _log.warning("the leader of unit %s could not take a connection: %s", self.me.unit, error)
                    self._drop_oldest()
                    await asyncio.sleep(TICK)
                    continue
                while len(self._strangers) >= _SPARE_STRANGERS + self.me.ranks:
                    self._drop_oldest()
                task = self._loop.create_task(self._serve(raw, address[0]))
                self._strangers[task] = None
                task.add_done_callback(lambda done: self._strangers.pop(done, None))
                await asyncio.sleep(0)  # while connections wait, `sock_accept` returns at once, and nothing else would get a turn
        finally:
            self._listener.close()

    def _drop_oldest(self) -> None:
        """Close the connection that has waited longest for its peer to prove its identity."""
        if (oldest := next(iter(self._strangers), None)) is not None:
            del self._strangers[oldest]
            oldest.cancel()

    async def _serve(self, raw: socket.socket, where: str) -> None:
        raw.setblocking(False)
        try:
            stream = await Stream.accept(raw, self._tls, self.me.identity)
        except (StreamError, TlsError) as error:
            _log.warning("a connection to the leader of unit %s from %s was refused: %s", self.me.unit, where, error)
            return
        # The peer has proved its identity. From now on new connections must not push it out.
        self._strangers.pop(cast("asyncio.Task[None]", asyncio.current_task()), None)
        try:
            async with asyncio.timeout(_HERE_TIMEOUT):
                message = ToLeader.FromString(await stream.read(MOST_MEETING_BYTES))
            if not message.HasField("hello"):
                raise StreamError("it said something else")
        except (StreamError, DecodeError, TimeoutError) as error:
            _log.warning("a connection to the leader of unit %s from %s did not say its rank: %s", self.me.unit, where, error)
            stream.cut()
            return
        hello = message.hello
        rank = hello.rank
        if why := disagreement(self._hellos[0], hello) or (
            f"two processes say that they are {self.me.name(rank)}" if rank in self._hellos else ""
        ):
            stream.write(FromLeader(end=End(rank=rank, status=Exit.RANK_LOST, message=why)).SerializeToString())
            self._end(Cause(rank, why), why)
            await stream.close()
            return
        self._hellos[rank] = hello
        self._streams[rank] = stream
        self._silence.heard(rank)
        stream.write(b"")  # tells the rank that it is accepted
        listening = self._loop.create_task(self._listen(rank, stream))
        self._listening.add(listening)
        listening.add_done_callback(self._listening.discard)
        listening.add_done_callback(lambda _: self._streams.pop(rank, None))
        self._all_there()

    def _all_there(self) -> None:
        if len(self._hellos) == self.me.ranks and not self._over:
            self._checking = self._loop.create_task(self._check())

    async def _check(self) -> None:
        """End the meeting if the pieces make up the model. A thread checks that, because it takes seconds for many ranks."""
        try:
            self._owned = await asyncio.to_thread(self._checked_pieces)
        except PieceError as error:
            why = f"the ranks of unit {self.me.unit} do not make up the model: {error}"
            self._end(Cause(0, why), why, Exit.REFUSED_LAYOUT)
            return
        for hello in self._hellos.values():
            hello.ClearField("owned")
        # The unit may have ended while the pieces were checked. Ranks that were told so must not begin.
        if not self._over:
            welcome = RankWelcome(session=self._session)
            self._say_now(FromLeader(welcome=welcome))
            self._welcome.set_result(welcome)

    def _checked_pieces(self) -> list[list[Piece]]:
        owned = [pieces_from_wire(self._hellos[rank].owned) for rank in range(self.me.ranks)]
        check_cover(self._layout, owned)
        return owned

    # --- after it -------------------------------------------------------------------------------------------------------

    async def _listen(self, rank: int, stream: Stream) -> None:
        try:
            while True:
                message = ToLeader.FromString(await stream.read())
                self._silence.heard(rank)
                match message.WhichOneof("message"):
                    case "failed":
                        self._verdict.raised(rank, f"ended: {message.failed.reason}")
                    case "left":
                        if message.left.early:
                            self._verdict.left_early(rank, LEFT_EARLY)
                        with self.changed:
                            self._left.add(rank)
                            self.changed.notify_all()
                        return
                    case "wants":
                        self.wanted(message.wants.batches)
                    case "state":
                        self.state_said(rank, message.state)
                    case "version_received" | "stepped" | "draining" | "reads":
                        self._put(rank, message)
        except (StreamError, DecodeError) as error:
            self._verdict.lost(rank, f"is lost: {error}")
            self._end_if_due()
        finally:
            self._silence.forget(rank)
            await stream.close()

    def _judge_silence(self) -> None:
        """Count the ranks as lost that were silent for too long."""
        for rank in self._silence.lost(self._loop.time()):
            self._verdict.lost(rank, f"is lost: nothing was heard of it for {SILENCE:.0f} s: its process or its host is frozen, or cut off")

    def _end_if_due(self) -> None:
        """End the unit if one of its ranks is lost or has failed, or if not all have come in time."""
        if self._over:
            return
        cause = self._verdict.look()
        if cause is not None:
            self._end(cause, f"{self.me.name(cause.rank)} {cause.why}. This process ends, and with it the unit")
        elif (missing := absent(self.me.ranks, self._hellos)) and time.monotonic() > self._deadline:
            why = f"unit {self.me.unit} waited for {missing} in vain: {plural(self.me.ranks, 'rank')} must start, with one leader address"
            self._end(Cause(0, why), why)

    def _say_alive(self) -> None:
        """Send signs of life to the others, until the unit ends."""
        if not self._over:
            for stream in self._streams.values():
                stream.sign_of_life()

    def _end(self, cause: Cause, message: str, status: Exit = Exit.RANK_LOST) -> None:
        """End the unit: tell all, then end this process."""
        if self._over:
            return
        self._over = True
        end = End(rank=cause.rank, status=status, message=message)
        self._say_now(FromLeader(end=end))
        closing = self._loop.create_task(self._close_all())
        closing.add_done_callback(lambda _: self._finish(cause, end))

    async def _close_all(self) -> None:
        """Wait until the others have closed their ends, which they do once they have read the reason; then close what is left.

        If this end closed first, a peer that writes would get an error, and would lose what it has not read yet: the reason.
        """
        if self._listening:
            await asyncio.wait(self._listening, timeout=TELL_TIMEOUT)
        for stream in self._streams.values():
            stream.cut()

    def _write(self, messages: Sequence[Outbound]) -> None:
        for to_rank, stream in self._streams.items():
            if own := [raw for raw, rank in messages if rank in (None, to_rank)]:
                stream.write(*own)

    def _say_now(self, message: FromLeader) -> None:
        self._write([(message.SerializeToString(), None)])

    def _tell_failure(self, text: str) -> None:
        self._verdict.raised(0, f"ended: {text}")

    def _tell_leaving(self, gone: threading.Event, early: bool) -> None:
        self._over = True
        self._say_now(FromLeader(left=Left(early=early)))
        closing = self._loop.create_task(self._close_all())
        closing.add_done_callback(lambda _: gone.set())


def _listen(host: str, port: int) -> socket.socket:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = addresses[0]
    listener = socket.create_server(address[:2], family=family, backlog=128)
    listener.setblocking(False)
    return listener
