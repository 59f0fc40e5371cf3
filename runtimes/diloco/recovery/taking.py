"""A new process takes the state of a peer before its first step, on the training thread, from boundary to boundary.

1. It gets all parameters from the syncer. Their versions at that moment are t_s of the paper.
2. It asks the syncer for a donor (`Recovery` in its Alive, phase WANTED). The donor must have at least as many local steps behind its state
   as the state that the unit itself has stored. Then it asks the donor for its state.
3. It trains once the copy is whole, see `process_copy`. If the donor fails, it asks for another one.
4. If no donor is left, or MOST_ROUNDS have failed, it takes the state that the unit has stored. Without one it trains from the syncer's
   parameters with an empty optimizer.

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
from diloco.recovery.adopted_versions import AdoptedVersions
from diloco.recovery.copying import CopyFailed
from diloco.recovery.process_copy import End
from diloco.recovery.whole_state import UnitCopy, WholeState

_log = logging.getLogger(__name__)

MOST_ROUNDS = 4
"""How many donors the process asks for, one after the other."""
NAME_SECONDS = 60.0
"""How long the syncer may take to name a donor. Other takers may come first."""


class Taker:
    """Takes state once, for a unit that has just begun."""

    def __init__(
        self,
        state: WholeState,
        model: Model,
        on_arrival: Callable[[], None],
        tell: Callable[[], None],
        started: float,
        now: Callable[[], float] = time.monotonic,
        unit: str = "",
        *,
        stores: bool = False,
    ) -> None:
        """
        Args:
            on_arrival: called on other threads when there is something to do at a boundary
            tell: called when `message` has changed
            started: when the process joined, on `now`
            stores: the job's units store their states
        """
        self._state = state
        self._model = model
        self._on_arrival = on_arrival
        self._stores = stores
        self._unit = unit
        self._tell = tell
        self._now = now
        self._asked_at = self._named_at = started
        self._message = Recovery()
        self._stored_steps = 0
        self._not_taken = ""
        """Why the unit's stored state could not be taken."""
        self._copy: UnitCopy | None = None
        self._donor: Donor | None = None
        self._no_donor = ""
        """Why there is no donor."""
        self._touched = False
        """Parameters of a torn copy are in the model."""

    @property
    def message(self) -> Recovery:
        """How far the taking is, for the syncer. Each change makes a new message, so other threads may read it."""
        return self._message

    @property
    def begun(self) -> bool:
        """The process has the syncer's parameters, and `begin` was called."""
        return self._message.phase != Recovery.PHASE_UNSPECIFIED

    @property
    def over(self) -> bool:
        """The state was taken or given up, and the process may train."""
        return self._message.phase == Recovery.OVER

    def begin(self, parameters_seconds: float, start_seconds: float, *, wanted: bool, why: str, stored_steps: int = 0) -> None:
        """Begin to take state. The process has the job's parameters.

        Args:
            parameters_seconds: from joining until it had the parameters
            start_seconds: how long the process took to start
            wanted: a donor may have state that is worth taking
            stored_steps: local steps behind the state that the unit has stored. A donor must have as many. 0 if nothing is known of it
        """
        self._stored_steps = stored_steps
        self._report(start_seconds=start_seconds, parameters_seconds=parameters_seconds)
        self._asked_at = self._now()
        if wanted:
            self._next_round()
        else:
            self._report(phase=Recovery.OVER, why=why)

    def named(self, donor: Donor) -> None:
        """Take the syncer's answer. An answer to an earlier round is ignored."""
        if self._message.phase != Recovery.WANTED or donor.round != self._message.round:
            return
        if not donor.unit:
            self._take_stored(donor, donor.why or "no unit can give its state")
            return
        _log.info("takes the state of unit %s, attempt %d", donor.unit, donor.attempt)
        self._donor = donor
        self._begin_copy(donor.unit, donor.attempt, lambda: self._state.copy_of_peer(donor, self._on_arrival), stored=False)

    def _take_stored(self, donor: Donor, why: str) -> None:
        """Take the state that this unit has stored. If it stores none, give up.

        Args:
            donor: the syncer's answer, which names no donor but the `former` jobs
            why: why there is no donor
        """
        if not self._stores:
            self._give_up(f"{why}; {self._not_taken}" if self._not_taken else why)
            return
        self._donor, self._no_donor = None, why
        self._restore_parameters()
        self._begin_copy(self._unit, 0, lambda: self._state.copy_of_newest(donor.former, self._on_arrival), stored=True)

    def _begin_copy(self, unit: str, attempt: int, open_copy: Callable[[], UnitCopy], *, stored: bool) -> None:
        self._named_at = self._now()
        self._state.begin()
        self._report(phase=Recovery.COPYING, unit=unit, attempt=attempt, stored=stored, donor_seconds=self._named_at - self._asked_at)
        self._copy = open_copy()

    def boundary(self, adopted: AdoptedVersions, *, restarted: bool) -> None:
        """Do what is due at a step boundary. `restarted`: the syncer has started again, so versions cannot be compared with the copy's."""
        if not self.begun or self.over:
            return
        if restarted:
            self._fail("the syncer has started again", blame=False)
        elif self._message.phase == Recovery.WANTED and self._now() - self._round_at > NAME_SECONDS:
            self._take_stored(Donor(), f"the syncer has named no donor for {NAME_SECONDS:.0f} s")
        elif self._copy is not None:
            try:
                self._go_on(self._copy, adopted)
            except StateError as error:
                self._fail(str(error))

    def stepped(self, first_step_seconds: float) -> None:
        """Report how long the first step took."""
        self._report(first_step_seconds=first_step_seconds)

    def cancel(self) -> None:
        """Take nothing more: the process leaves, or the job is over."""
        if self._copy is not None:
            self._end_copy(self._copy)
        if not self.over:
            self._report(phase=Recovery.OVER, why="the process left before")

    def _go_on(self, copy: UnitCopy, adopted: AdoptedVersions) -> None:
        end: End | None = copy.go_on(adopted)
        if isinstance(end, CopyFailed):
            self._fail(end.why)
        elif end is not None:
            self._state.finish(end.rest)
            self._model.overwritten()
            self._finished(copy, max(adopted.versions) if end.t is None else end.t, steps_behind(end.rest))

    def _end_copy(self, copy: UnitCopy) -> None:
        copy.cancel()
        self._touched = self._touched or copy.changed_parameters
        self._copy = None

    def _finished(self, copy: UnitCopy, t: int, steps: int) -> None:
        self._copy = None
        now = self._now()
        begun = copy.begun_at or self._named_at
        self._report(
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
        """End this round. `blame`: it was the donor's fault, and the syncer shall not name it again."""
        failed_donor = ""
        stored = self._message.stored
        if self._copy is not None:
            self._end_copy(self._copy)
        if self._donor is not None:
            _log.warning("no state from unit %s: %s", self._donor.unit, why)
            if blame:
                failed_donor = self._donor.unit
            why = f"unit {self._donor.unit}: {why}"
            self._donor = None
        self._report(failed_donor, why=why, unit="", attempt=0, stored=False)
        if stored and blame and self._stored_steps:
            # The syncer has passed over donors with fewer steps than the stored state. Now they are better than nothing.
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
        self._report(phase=Recovery.WANTED, round=self._message.round + 1, steps=self._stored_steps)

    def _give_up(self, why: str) -> None:
        _log.warning("begins with the parameters of the syncer and an optimizer without state: %s", why)
        self._restore_parameters()
        self._state.begin()
        self._report(phase=Recovery.OVER, why=why, unit="", attempt=0, stored=False, steps=0)

    def _restore_parameters(self) -> None:
        """Put the syncer's parameters back where a torn copy has overwritten them."""
        if self._touched:
            self._model.take_parameters()
            self._touched = False

    def _report(self, failed_donor: str = "", **fields: str | float) -> None:
        """Send the syncer the message with these fields changed, and one more failed donor if there is one."""
        message = Recovery()
        message.CopyFrom(self._message)
        if failed_donor:
            message.failed.append(failed_donor)
        for name, value in fields.items():
            setattr(message, name, value)
        self._message = message
        self._tell()
