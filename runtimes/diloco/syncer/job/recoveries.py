"""Names donors to units that take the state of a peer, and tells both. Only the engine's task uses it.

A unit says in its Alive how far it is, and says it again on each new stream. If it asks again in the same round, it gets the same answer.
So nothing is lost with a stream, and a restarted syncer answers anew.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from diloco.protocol.diloco_pb2 import Alive, Donor, Give, Recovery, ToLearner
from diloco.syncer.job.donors import Answer, Candidate, Donors, Taking
from diloco.syncer.job.parts import JobParts
from diloco.syncer.reporting.unit_stats import Phase
from diloco.syncer.streams.learner_stream import LearnerStream
from diloco.syncer.streams.sessions import UnitSession
from diloco.wording import one_line

_log = logging.getLogger(__name__)

_MOST_TEXT = 300
"""Characters that are kept of each text with which a unit describes its recovery."""
_MOST_FAILED = 16


class Recoveries:
    """The recoveries of one job. `now` is in seconds on one clock."""

    def __init__(
        self,
        donors: Donors,
        job: JobParts,
        former: Sequence[str],
        awaited: Callable[[], bool],
    ) -> None:
        """
        Args:
            former: see `RestoredState`
            awaited: returns whether units that trained before this process began may come back
        """
        self._donors = donors
        self._job = job
        self._former = former
        self._sessions_may_return = awaited
        self._asked: set[str] = set()
        """Units that have asked this process for a donor. They have lost their state, so they are not expected to become donors."""

    def heard(self, stream: LearnerStream, session: UnitSession, alive: Alive, now: float) -> bool:
        """Note how far a unit's recovery is. True if what reports say of it has changed."""
        if not alive.HasField("recovery"):
            return False
        recovery = alive.recovery
        recovery.why = one_line(recovery.why, _MOST_TEXT)
        recovery.unit = one_line(recovery.unit, _MOST_TEXT)
        failed = [one_line(name, _MOST_TEXT) for name in recovery.failed[:_MOST_FAILED]]
        del recovery.failed[:]
        recovery.failed.extend(failed)
        stats = self._job.unit_stats.of(session.unit)
        recovery.not_stored = one_line(recovery.not_stored, _MOST_TEXT)
        before = stats.recovery
        changed = before is None or (before.phase, before.not_stored) != (recovery.phase, recovery.not_stored)
        stats.recovery = recovery
        failed_ones = frozenset(recovery.failed)
        taking = Taking(
            session.unit,
            session.holder,
            stream.inner_state,
            stream.locality,
            recovery.round,
            failed_ones,
            recovery.steps,
            recovery.why,
            stream.cluster,
        )
        if recovery.phase in (Recovery.WANTED, Recovery.COPYING):
            self._asked.add(session.unit)
        if recovery.phase == Recovery.WANTED:
            if (answer := self._donors.asks(taking)) is not None:
                self._tell(stream, taking, answer)
        elif recovery.phase == Recovery.COPYING:
            self._donors.copies(taking, Candidate(recovery.unit, recovery.attempt, (), stream.inner_state))
        elif recovery.phase == Recovery.OVER:
            self._donors.ends(session.unit)
        return changed

    @property
    def not_stored(self) -> str:
        """Why a unit could not store its newest state. Empty if all could."""
        for _, session in self._job.streams.joined():
            recovery = self._job.unit_stats.of(session.unit).recovery
            if recovery is not None and recovery.not_stored:
                return f"unit {session.unit} could not store its state at spec.training.checkpoint.uri: {recovery.not_stored}"
        return ""

    def joined(self, stream: LearnerStream, session: UnitSession) -> None:
        """Tell a unit on its new stream again whom it gives its state to. The earlier message may be lost with the old stream."""
        for taking, answer in self._donors.grants_of(session.unit):
            if answer.donor is not None and answer.donor.attempt == session.attempt:
                _allow(stream, taking, answer, self._attempt(taking))

    def ended(self, unit: str) -> None:
        self._donors.ends(unit)

    def look(self, now: float) -> None:
        """Answer the waiting takers that can be answered by now."""
        if not self._donors.waiting:
            return
        joined = {session.unit: (stream, session) for stream, session in self._job.streams.joined()}
        able = [
            Candidate(unit, session.attempt, stream.addresses, stream.inner_state, stream.locality, self._steps(unit), stream.cluster)
            for unit, (stream, session) in sorted(joined.items())
            if self._job.unit_stats.of(unit).phase is Phase.CONTRIBUTING
        ]
        kinds = [stream.inner_state for stream, _ in joined.values()]
        contributing = {candidate.unit for candidate in able}
        # A joined unit that has not asked for a donor has its state, and may give it as soon as it contributes.
        coming = any(stream.addresses and unit not in contributing | self._asked for unit, (stream, _) in joined.items())
        awaited = coming or self._sessions_may_return()
        for taking, answer in self._donors.name(able, kinds, self._job.exchanges.t, now, awaited=awaited):
            if taking.unit in joined:
                self._tell(joined[taking.unit][0], taking, answer)
            if answer.donor is not None:
                _log.info("unit %s gives its state to unit %s", answer.donor.unit, taking.unit)
                self._job.unit_stats.of(answer.donor.unit).given += 1
                _allow(joined[answer.donor.unit][0], taking, answer, self._attempt(taking))

    def _steps(self, unit: str) -> int:
        """Return the local steps behind a unit's state: the steps of its process, and those that it began with once its Alive says them."""
        stats = self._job.unit_stats.of(unit)
        return stats.local_step + (stats.recovery.steps if stats.recovery is not None else 0)

    def _attempt(self, taking: Taking) -> int:
        return self._job.unit_stats.of(taking.unit).attempt

    def _tell(self, stream: LearnerStream, taking: Taking, answer: Answer) -> None:
        message = Donor(round=taking.round, why=answer.why, grant=answer.grant)
        if (donor := answer.donor) is not None:
            message.unit, message.attempt = donor.unit, donor.attempt
            if len(donor.addresses) == 1:
                message.address = donor.addresses[0]
            else:
                message.rank_addresses.extend(donor.addresses)
        else:
            message.former.extend(self._former)
        stream.outgoing.urgent(ToLearner(donor=message))


def _allow(donor: LearnerStream, taking: Taking, answer: Answer, attempt: int) -> None:
    donor.outgoing.urgent(ToLearner(give=Give(unit=taking.unit, attempt=attempt, grant=answer.grant)))
