"""The part of a unit's state that one process owns. The process gives it to peers, stores it, and opens the copies that it takes.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc

from diloco.algorithm.fragments import Fragment
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece
from diloco.contract import learner_host_name
from diloco.learner.config import LearnerConfig
from diloco.learner.inbox import InboxEvent
from diloco.learner.incarnations import Incarnations
from diloco.learner.inner_state import InnerState
from diloco.learner.stored_parts import PartsOfProcess
from diloco.learner.unit_plan import UnitPlan
from diloco.protocol.channel import Keepalive, client_options
from diloco.protocol.diloco_pb2 import Donor, PieceMap, StateWanted
from diloco.protocol.state_parts import cut, pieces_to_message
from diloco.recovery.adopted_versions import AdoptedVersions
from diloco.recovery.copying import Copy, Found, PeersCopy, StoredCopy, newest
from diloco.recovery.server import PeerServer
from diloco.recovery.state_donor import StateDonor
from diloco.snapshots.stored_state import Block, UnitFolder, folder_of, writer_of


class ProcessState:
    """Its server runs until `close`."""

    def __init__(
        self,
        config: LearnerConfig,
        layout: Layout,
        fragments: Sequence[Fragment],
        inner: InnerState,
        owned: Sequence[Piece],
        incarnations: Incarnations,
        *,
        rank: int = 0,
        alone: bool = True,
    ) -> None:
        """
        Args:
            owned: what it gives, stores and takes, in the order of the layout
            incarnations: the syncer's incarnations that this process has met
            alone: the unit has no other process
        """
        self.inner = inner
        self.fragment_of = {tensor.name: index for index, fragment in enumerate(fragments) for tensor in fragment.tensors}
        self.adopted = AdoptedVersions(len(fragments))
        """What this process has adopted."""
        stage_rest = inner.stage_rest if alone else None
        self.state_donor = StateDonor(layout, inner, owned, stage_rest, config.job.uid, incarnations.known, alone=alone)
        self._config = config
        self._layout = layout
        self._owned = owned
        self._parts = cut(owned)
        self._incarnations = incarnations
        self._rank = rank
        self._server = PeerServer(self.state_donor, config.pod_ip, config.tls, Keepalive())

    @property
    def address(self) -> str:
        """host:port where peers take what this process owns. Empty if it gives nothing."""
        return self._server.address

    def boundary(self, events: Sequence[InboxEvent], plan: UnitPlan) -> bool:
        """Note what came before this boundary, and what is done at it. True if the syncer has started again."""
        return self.adopted.boundary(events, plan)

    def warm_up(self) -> None:
        """Do now what would make the first reading slow."""
        self.inner.warm_up(self._parts)

    def store(self, name: str, done: Callable[[Sequence[Block], str], None] = lambda blocks, error: None) -> PartsOfProcess:
        """Begin to write this process's part of the stored state `name`. `done` is called at the end, see `PartsOfProcess`."""
        return PartsOfProcess(self.inner, self._parts, lambda: writer_of(self._config.job, self._config.unit, name, self._rank), done)

    def copy_of_peer(self, donor: Donor, on_arrival: Callable[[], None]) -> Copy:
        """Begin to copy a donor's state. `on_arrival` is called on other threads when there is something to take."""
        job, fragments = self._config.job, len(self.adopted.versions)
        addresses = list(donor.rank_addresses) or [donor.address]
        options = client_options(Keepalive(), learner_host_name(job.name, job.namespace, donor.unit, donor.attempt))

        def open_channel(address: str) -> grpc.Channel:
            return grpc.secure_channel(address, self._config.tls.read().channel_credentials(), options=options)

        copy = PeersCopy(addresses, self._wanted(donor), self._layout, fragments, open_channel, on_arrival)
        copy.start()
        return copy

    def copy_of_newest(self, former: Sequence[str], on_arrival: Callable[[], None]) -> StoredCopy:
        """Begin to copy the newest state that the unit has stored in this job, or else in the first former job that has one."""
        return self._copy_of_stored(lambda: newest(self._folder_of, former), on_arrival)

    def copy_of_stored(self, former: str, name: str, on_arrival: Callable[[], None]) -> StoredCopy:
        """Begin to copy the stored state `name`. `former` is as in `Found`."""

        def find() -> Found:
            folder = self._folder_of(former)
            return Found(folder, folder.state(name), former)

        return self._copy_of_stored(find, on_arrival)

    def _wanted(self, donor: Donor) -> StateWanted:
        return StateWanted(
            job_uid=self._config.job.uid,
            unit=self._config.unit,
            attempt=self._config.attempt,
            grant=donor.grant,
            fingerprint=self._layout.fingerprint,
            inner_state=self.inner.kind,
            incarnation=self._incarnations.name(self.adopted.epoch),
            versions=self.adopted.versions,
            hears_waiting=True,
            pieces=PieceMap(pieces=pieces_to_message(self._layout, self._owned)),
            rank=self._rank,
            without_rest=self._rank != 0,
        )

    def _copy_of_stored(self, find: Callable[[], Found], on_arrival: Callable[[], None]) -> StoredCopy:
        copy = StoredCopy(find, self._config.unit, self.inner.kind, self._layout, self._owned, on_arrival, with_rest=self._rank == 0)
        copy.start()
        return copy

    def _folder_of(self, former: str) -> UnitFolder:
        return folder_of(self._config.job, self._config.unit, former)

    def close(self) -> None:
        """Give nothing more."""
        self._server.close()
