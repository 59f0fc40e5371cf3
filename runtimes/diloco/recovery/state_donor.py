"""A process gives what it owns of its unit's state to a peer, and trains on.

Each process of the taker asks the processes of the donor that own something of what it owns itself. This process stages nothing before it
has adopted the versions that the taker's process holds (t_s of the paper).

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import grpc

from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece, by_tensor, overlap
from diloco.contract import learner_identity
from diloco.learner.inner_state import InnerState, StagedRest
from diloco.protocol.diloco_pb2 import Give, StateWanted
from diloco.protocol.piece_maps import MOST_RANKS
from diloco.protocol.state_parts import StateError, pieces_from_message
from diloco.recovery.adopted_versions import AdoptedVersions
from diloco.recovery.state_transfer import Refused, StateTransfer

GRANT_SECONDS = 5.0
"""How long a peer waits here for the syncer's message that names it: the two come over different streams."""
MOST_GRANTS = 1024
"""Units that may be known as takers. Beyond that the oldest grant is forgotten."""


class StateDonor:
    """The donor's side in one process. The training thread calls `at_boundary`, threads of the connection and the server the rest."""

    def __init__(
        self,
        layout: Layout,
        state: InnerState,
        owned: Sequence[Piece],
        stage_rest: Callable[[], StagedRest] | None,
        job_uid: str,
        epoch_of: Callable[[bytes], int | None],
        now: Callable[[], float] = time.perf_counter,
        *,
        alone: bool = True,
    ) -> None:
        """
        Args:
            owned: what this process gives, in the order of the layout
            epoch_of: returns the number of an incarnation of the syncer. None if this process has not met it
            now: seconds, to measure short times with
            alone: the unit has no other process
        """
        self._layout = layout
        self._state = state
        self._owned = owned
        self.stage_rest = stage_rest
        """Reads the small rest of the whole unit. None in a rank that is not the leader."""
        self._job_uid = job_uid
        self._epoch_of = epoch_of
        self._now = now
        self._alone = alone
        self._changed = threading.Condition()
        self._grants: dict[str, Give] = {}
        self._served: dict[str, set[int]] = {}
        """For each taker, its ranks that have come with the present grant. Each rank may come once."""
        self._transfers: list[tuple[StateTransfer, StateWanted]] = []
        """All are for one taker. The one that waited longest for a boundary comes first."""
        self._epoch = 0
        """The number of the syncer's incarnation that the taker is connected to."""
        self._closed = False

    def allow(self, give: Give) -> None:
        """Allow this attempt of a unit to take the state. The syncer names it again on each new stream, which changes nothing."""
        with self._changed:
            before = self._grants.pop(give.unit, None)
            if before is None or (before.attempt, before.grant) != (give.attempt, give.grant):
                self._served[give.unit] = set()
            self._grants[give.unit] = give
            while len(self._grants) > MOST_GRANTS:
                oldest = next(iter(self._grants))
                del self._grants[oldest], self._served[oldest]
            self._changed.notify_all()

    def begin(self, wanted: StateWanted, identity: str) -> StateTransfer:
        """Admit a process of a peer. `identity` is from its certificate. Waits for its grant, GRANT_SECONDS at most. Raises Refused."""
        if wanted.job_uid != self._job_uid or identity != learner_identity(wanted.job_uid, wanted.unit, wanted.attempt):
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                f"the taker says that it is attempt {wanted.attempt} of {wanted.unit}; its certificate says {identity or 'no identity'}",
            )
        with self._changed:
            if not self._changed.wait_for(lambda: self._allows(wanted) or self._closed, GRANT_SECONDS) or self._closed:
                raise Refused(
                    grpc.StatusCode.PERMISSION_DENIED, f"the syncer has not named attempt {wanted.attempt} of unit {wanted.unit} as a taker"
                )
            if wanted.fingerprint != self._layout.fingerprint or len(wanted.versions) == 0 or wanted.inner_state != self._state.kind:
                raise Refused(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"the donor's state is {self._state.kind} of another model, or of another kind than {wanted.inner_state}",
                )
            epoch = self._epoch_of(wanted.incarnation)
            if epoch is None:
                raise Refused(grpc.StatusCode.UNAVAILABLE, "the donor has not met the syncer since this has started again")
            self._transfers = [(transfer, request) for transfer, request in self._transfers if not transfer.over]
            other = next((request for _, request in self._transfers if (request.unit, request.grant) != (wanted.unit, wanted.grant)), None)
            if other is not None:
                raise Refused(grpc.StatusCode.UNAVAILABLE, f"the donor gives its state to unit {other.unit} now")
            transfer = self._transfer(wanted)
            self._served[wanted.unit].add(wanted.rank)
            self._epoch = epoch
            self._transfers.append((transfer, wanted))
            return transfer

    def _allows(self, wanted: StateWanted) -> bool:
        give = self._grants.get(wanted.unit)
        named = give is not None and (give.attempt, give.grant) == (wanted.attempt, wanted.grant)
        return named and wanted.rank < MOST_RANKS and wanted.rank not in self._served[wanted.unit]

    def _transfer(self, wanted: StateWanted) -> StateTransfer:
        if not wanted.HasField("pieces") and not self._alone:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "the taker's version knows of no donors of several ranks")
        pieces = self._owned
        if wanted.HasField("pieces"):
            try:
                pieces = overlap(self._owned, by_tensor(pieces_from_message(self._layout, wanted.pieces.pieces)))
            except StateError as error:
                raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        rest = None if wanted.without_rest else self.stage_rest
        if rest is None and not wanted.without_rest:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "the small rest of a unit's state is given by its leader only")
        receiver = f"rank {wanted.rank} of unit {wanted.unit}" if wanted.rank else f"unit {wanted.unit}"
        return StateTransfer(self._layout, self._state, pieces, receiver, rest, hears_waiting=wanted.hears_waiting)

    @property
    def busy(self) -> bool:
        """A peer is taking this process's state."""
        return any(not transfer.over for transfer, _ in self._transfers)

    def at_boundary(self, adopted: AdoptedVersions, step_seconds: float, *, readable: bool) -> None:
        """Stage what fits into the time that this boundary may take.

        Args:
            adopted: the versions that this process has adopted
            step_seconds: how long the last local step took
            readable: the state is that after the last local step that was counted
        """
        with self._changed:
            transfers = [(transfer, wanted) for transfer, wanted in self._transfers if not transfer.over]
        if not transfers:
            return
        if self._epoch != adopted.epoch:
            for transfer, _ in transfers:
                transfer.end("the syncer has started again: the donor's outer steps are not the taker's")
            return
        for transfer, wanted in transfers:
            if not readable or not adopted.are_as_new_as(wanted.versions):
                continue
            time_is_over = transfer.stage(adopted.versions, step_seconds, self._now)
            with self._changed:
                # To the end of the list, so that all processes of the taker get parts in turn.
                self._transfers = sorted(self._transfers, key=lambda entry: entry[0] is transfer)
            if time_is_over:
                return

    def close(self) -> None:
        """End all transfers and refuse new ones: this process leaves, and its taker must find another donor."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            transfers = list(self._transfers)
        for transfer, _ in transfers:
            transfer.end("the donor leaves")
