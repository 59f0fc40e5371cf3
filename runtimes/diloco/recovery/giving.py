"""A learner gives its state to a peer, and trains on.

Nothing is staged before the unit has adopted what the peer holds (t_s of the paper).

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import grpc

from diloco.algorithm.layout import Layout
from diloco.contract import learner_identity
from diloco.learner.inner_state import InnerState
from diloco.protocol.diloco_pb2 import Give, StateWanted
from diloco.recovery.gift import Gift, Refused
from diloco.recovery.held import Held

GRANT_SECONDS = 5.0
"""How long a peer may be sooner here than the syncer's word of it."""
MOST_GRANTS = 1024
"""Units that may be known as takers."""


class Giver:
    """One process's end. `at_boundary` belongs to the training thread, the rest to those of the connection and the server."""

    def __init__(
        self,
        layout: Layout,
        state: InnerState,
        job_uid: str,
        epoch_of: Callable[[bytes], int | None],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`epoch_of`: the number of an incarnation that this process has met. `now`: seconds, to measure short times with."""
        self._layout = layout
        self._state = state
        self._job_uid = job_uid
        self._epoch_of = epoch_of
        self._now = now
        self._changed = threading.Condition()
        self._grants: dict[str, Give] = {}
        self._gift: Gift | None = None
        self._wanted = StateWanted()
        """What its taker holds."""
        self._epoch = 0
        """The number of the incarnation that its taker is connected to."""
        self._closed = False

    def allow(self, give: Give) -> None:
        """Allow this attempt of a unit to take the state, as the syncer says."""
        with self._changed:
            self._grants.pop(give.unit, None)
            self._grants[give.unit] = give
            while len(self._grants) > MOST_GRANTS:
                del self._grants[next(iter(self._grants))]
            self._changed.notify_all()

    def begin(self, wanted: StateWanted, identity: str) -> Gift:
        """Admit a peer whose certificate says `identity` and who wants the state. Waits GRANT_SECONDS at most. Raises Refused."""
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
            if self._gift is not None and not self._gift.over:
                raise Refused(grpc.StatusCode.UNAVAILABLE, f"the donor gives its state to {self._gift.receiver} now")
            del self._grants[wanted.unit]
            self._wanted, self._epoch = wanted, epoch
            self._gift = gift = Gift(self._layout, self._state, f"unit {wanted.unit}", hears_waiting=wanted.hears_waiting)
            return gift

    def _allows(self, wanted: StateWanted) -> bool:
        give = self._grants.get(wanted.unit)
        return give is not None and (give.attempt, give.grant) == (wanted.attempt, wanted.grant)

    @property
    def busy(self) -> bool:
        """Whether a peer takes this process's state."""
        return self._gift is not None and not self._gift.over

    def at_boundary(self, held: Held, step_seconds: float, *, readable: bool) -> None:
        """Stage what fits into the time that this boundary may take. `readable`: the state is as after the last local step that was
        counted."""
        gift = self._gift
        if gift is None or gift.over:
            return
        if self._epoch != held.epoch:
            gift.end("the syncer has started again: the donor's outer steps are not the taker's")
            return
        if readable and held.reach(self._wanted.versions):
            gift.stage(held.versions, step_seconds, self._now)

    def close(self) -> None:
        """Refuse all from now on: this process leaves, and who takes from it must take from another one."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._gift is not None:
            self._gift.end("the donor leaves")
