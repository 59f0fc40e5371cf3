"""The ranks of a unit as side channels in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from builders.exchange import WAIT_TIMEOUT, Place
from builders.ports import held_port
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.pieces import Piece, deal
from diloco.protocol.tls import TlsFiles
from diloco.ranks.channel import RankIdentity, SideChannel
from diloco.ranks.follower import Follower
from diloco.ranks.leader import Leader
from diloco.ranks.messages import pieces_to_wire
from diloco.ranks.ranks_pb2 import RankHello, RankWelcome

LAYOUT = Layout([TensorSpec("w", (8, 4))])


@dataclass
class Ended:
    """What a rank would have ended its process with."""

    told: Future[tuple[int, str]] = field(default_factory=Future)

    def __call__(self, status: int, message: str) -> None:
        if not self.told.done():
            self.told.set_result((status, message))

    def result(self) -> tuple[int, str]:
        return self.told.result(WAIT_TIMEOUT)


class Unit:
    """The ranks of unit `u`. They exist once they are asked for; the leader listens from then on."""

    def __init__(self, place: Place, ranks: int, files: TlsFiles | None = None) -> None:
        self.place = place
        self.ranks = ranks
        self.files = files or place.certificates.learner("u")
        self.ends = [Ended() for _ in range(ranks)]
        self._port = held_port()
        self.port = int(self._port)

    @cached_property
    def leader(self) -> Leader:
        return Leader(self.me(0), self.files, "127.0.0.1", self.port, layout=LAYOUT, session=b"session", end=self.ends[0])

    def me(self, rank: int) -> RankIdentity:
        return RankIdentity(self.place.job.uid, "u", 1, rank, self.ranks)

    def follower(self, rank: int, files: TlsFiles | None = None) -> Follower:
        return Follower(self.me(rank), files or self.files, "127.0.0.1", self.port, self.ends[rank])

    def hello(self, rank: int, owned: list[Piece] | None = None, /, **changes: Any) -> RankHello:
        hello = RankHello(
            job_uid=self.place.job.uid,
            unit="u",
            attempt=1,
            rank=rank,
            ranks=self.ranks,
            framework="numpy",
            fingerprint=LAYOUT.fingerprint,
            data_rank=rank,
            data_ranks=self.ranks,
            dtypes={spec.name: "float32" for spec in LAYOUT.tensors},
            owned=pieces_to_wire(deal(LAYOUT.tensors, self.ranks)[rank] if owned is None else owned),
        )
        for name, value in changes.items():
            setattr(hello, name, value)
        return hello

    def meets(self, channel: SideChannel[Any], hello: RankHello | None = None, timeout: float = WAIT_TIMEOUT) -> Future[RankWelcome]:
        """What the meeting brings this rank; it waits on a thread of its own."""
        return in_background(lambda: channel.meet(hello or self.hello(channel.me.rank), timeout))


def in_background[T](call: Callable[[], T]) -> Future[T]:
    """What `call` returns or raises, also SystemExit."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
