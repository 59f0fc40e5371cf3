"""A new process takes the state of a peer before its first step. On the training thread, from boundary to boundary.

1. It has all parameters from the syncer: the versions of that moment are t_s of the paper.
2. It asks the syncer for a donor (`Recovery` in its Alive, phase WANTED) that has no fewer steps behind its state than what its unit has
   stored itself, and the donor for its state.
3. It trains once the copy is whole, see `process_copy`. When the donor fails, it begins again with another one.
4. When no donor is left, or MOST_ROUNDS have failed, it takes what its unit has stored itself; and without that it trains from the
   syncer's parameters.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from diloco.learner.inner_state import steps_behind
from diloco.learner.peers import Model
from diloco.protocol.diloco_pb2 import Donor, Recovery
from diloco.protocol.state_parts import StateError
from diloco.recovery.copying import CopyFailed
from diloco.recovery.held import Held
from diloco.recovery.process_copy import End
from diloco.recovery.whole_state import UnitCopy, WholeState

_log = logging.getLogger(__name__)

MOST_ROUNDS = 4
"""Donors that are asked for."""
NAME_SECONDS = 60.0
"""How long the syncer may take to name a donor: others may be served before."""


class Taker:
    """See the module. Made for one process, which takes state once."""

    def __init__(
        self,
        state: WholeState,
        model: Model,
        came: Callable[[], None],
        tell: Callable[[], None],
        started: float,
        now: Callable[[], float] = time.monotonic,
        unit: str = "",
        *,
        stores: bool = False,
    ) -> None:
        """
        Args:
            came: called on other threads when there is something to do at a boundary
            tell: called when `message` has changed
            started: when the process joined, on `now`
            now: seconds
            unit: this process's
            stores: the job's units store their states
        """
        self._state = state
        self._model = model
        self._came = came
        self._stores = stores
        self._unit = unit
        self._tell = tell
        self._now = now
        self._asked_at = self._named_at = started
        self._message = Recovery()
        self._stored_steps = 0
        self._not_taken = ""
        """Why what this unit has stored could not be taken."""
        self._copy: UnitCopy | None = None
        self._donor: Donor | None = None
        self._no_donor = ""
        """Why there is no donor."""
        self._touched = False
        """Parameters of a copy are in the model."""

    @property
    def message(self) -> Recovery:
        """How far it is, for the syncer: replaced as a whole."""
        return self._message

    @property
    def begun(self) -> bool:
        """It has the syncer's parameters, and what follows has begun."""
        return self._message.phase != Recovery.PHASE_UNSPECIFIED

    @property
    def over(self) -> bool:
        """Nothing more is awaited."""
        return self._message.phase == Recovery.OVER

    def begin(self, parameters_seconds: float, start_seconds: float, *, wanted: bool, why: str, stored_steps: int = 0) -> None:
        """Begin: the job's parameters are there. `wanted`: a donor may have something; otherwise `why` says why not. `stored_steps`: local
        steps behind what the unit has stored, than which no donor shall have fewer; 0: nothing is known of it."""
        self._stored_steps = stored_steps
        self._say(start_seconds=start_seconds, parameters_seconds=parameters_seconds)
        self._asked_at = self._now()
        if wanted:
            self._next_round()
        else:
            self._say(phase=Recovery.OVER, why=why)

    def named(self, donor: Donor) -> None:
        """Take the syncer's answer. One to an earlier round counts for nothing."""
        if self._message.phase != Recovery.WANTED or donor.round != self._message.round:
            return
        if not donor.unit:
            self._take_stored(donor, donor.why or "no unit can give its state")
            return
        _log.info("takes the state of unit %s, attempt %d", donor.unit, donor.attempt)
        self._donor = donor
        self._begin_copy(donor.unit, donor.attempt, lambda: self._state.copy_of_peer(donor, self._came), stored=False)

    def _take_stored(self, donor: Donor, why: str) -> None:
        """Take what this unit has stored, if it stores anything. `donor`: none, and the reason is `why`."""
        if not self._stores:
            self._give_up(f"{why}; {self._not_taken}" if self._not_taken else why)
            return
        self._donor, self._no_donor = None, why
        self._restore_parameters()
        self._begin_copy(self._unit, 0, lambda: self._state.copy_of_newest(donor.former, self._came), stored=True)

    def _begin_copy(self, unit: str, attempt: int, open_copy: Callable[[], UnitCopy], *, stored: bool) -> None:
        self._named_at = self._now()
        self._state.begin()
        self._say(phase=Recovery.COPYING, unit=unit, attempt=attempt, stored=stored, donor_seconds=self._named_at - self._asked_at)
        self._copy = open_copy()

    def boundary(self, held: Held, *, restarted: bool) -> None:
        """Do what is due. `restarted`: the syncer has started again, so that outer steps count anew."""
        if not self.begun or self.over:
            return
        if restarted:
            self._fail("the syncer has started again", blame=False)
        elif self._message.phase == Recovery.WANTED and self._now() - self._round_at > NAME_SECONDS:
            self._take_stored(Donor(), f"the syncer has named no donor for {NAME_SECONDS:.0f} s")
        elif self._copy is not None:
            try:
                self._go_on(self._copy, held)
            except StateError as error:
                self._fail(str(error))

    def stepped(self, first_step_seconds: float) -> None:
        """Note that the first step is done."""
        self._say(first_step_seconds=first_step_seconds)

    def cancel(self) -> None:
        """End: the process leaves, or the job is over."""
        if self._copy is not None:
            self._end_copy(self._copy)
        if not self.over:
            self._say(phase=Recovery.OVER, why="the process left before")

    def _go_on(self, copy: UnitCopy, held: Held) -> None:
        end: End | None = copy.go_on(held)
        if isinstance(end, CopyFailed):
            self._fail(end.why)
        elif end is not None:
            self._state.finish(end.rest)
            self._model.overwritten()
            self._finished(copy, max(held.versions) if end.t is None else end.t, steps_behind(end.rest))

    def _end_copy(self, copy: UnitCopy) -> None:
        copy.cancel()
        self._touched = self._touched or copy.changed_parameters
        self._copy = None

    def _finished(self, copy: UnitCopy, t: int, steps: int) -> None:
        self._copy = None
        now = self._now()
        begun = copy.begun_at or self._named_at
        self._say(
            phase=Recovery.OVER,
            why="",
            t=t,
            steps=steps,
            bytes=copy.bytes,
            wait_seconds=max(0.0, begun - self._named_at),
            copy_seconds=now - begun,
        )
        _log.info("has the state of unit %s: %.1f MiB in %.2f s", self._message.unit, copy.bytes / 2**20, now - begun)

    def _fail(self, why: str, *, blame: bool = True) -> None:
        """End this round. `blame`: the donor is not to be named again."""
        failed = []
        stored = self._message.stored
        if self._copy is not None:
            self._end_copy(self._copy)
        if self._donor is not None:
            _log.warning("no state from unit %s: %s", self._donor.unit, why)
            failed = [self._donor.unit] if blame else []
            why = f"unit {self._donor.unit}: {why}"
            self._donor = None
        self._say(failed=[*self._message.failed, *failed], why=why, unit="", attempt=0, stored=False)
        if stored and blame and self._stored_steps:
            # Donors with fewer steps than that were passed over.
            self._stores, self._stored_steps, self._not_taken = False, 0, why
            self._next_round()
        elif stored and blame:
            self._give_up(f"{self._no_donor}; {why}")
        elif self._message.round >= MOST_ROUNDS:
            self._take_stored(Donor(), why)
        else:
            self._next_round()

    def _next_round(self) -> None:
        self._round_at = self._now()
        self._say(phase=Recovery.WANTED, round=self._message.round + 1, steps=self._stored_steps)

    def _give_up(self, why: str) -> None:
        _log.warning("begins with the parameters of the syncer and an optimizer without state: %s", why)
        self._restore_parameters()
        self._state.begin()
        self._say(phase=Recovery.OVER, why=why, unit="", attempt=0, stored=False, steps=0)

    def _restore_parameters(self) -> None:
        """Put the syncer's parameters in the place of those of a copy that was torn."""
        if self._touched:
            self._model.take_parameters()
            self._touched = False

    def _say(self, **changes: object) -> None:
        message = Recovery()
        message.CopyFrom(self._message)
        for name, value in changes.items():
            if name == "failed":
                del message.failed[:]
                message.failed.extend(value)  # type: ignore[arg-type]
            else:
                setattr(message, name, value)
        self._message = message
        self._tell()
