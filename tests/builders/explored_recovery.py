"""How the takers of an explored job find their donors, and get their state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from builders.explored_defects import broken
from builders.explored_process import FRAGMENTS, Process
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import whole
from diloco.protocol.diloco_pb2 import Donor, Recovery
from diloco.protocol.incoming_state import ArraysReceived
from diloco.recovery.copying import CopyDone
from diloco.syncer.job.donors import Answer, Candidate, Donors, Taking

KIND = "of a test"


class ExploredRecovery:
    """The syncer's part, and the donors'."""

    def __init__(self, processes: Mapping[str, Process], layout: Layout, interval: int, now: Callable[[], float]) -> None:
        """`processes`: the newest one of each unit, as it changes."""
        self._processes, self._layout, self._interval, self._now = processes, layout, interval, now
        self._donors = Donors(interval, lambda: b"", None)

    def restart(self) -> None:
        """The syncer begins anew, and knows of no taker."""
        self._donors = Donors(self._interval, lambda: b"", self._now())

    def ends(self, unit: str) -> None:
        """The unit's session is over."""
        self._donors.ends(unit)

    def name_donors(self, t: int) -> None:
        """The syncer, at outer step `t`, hears how far each taker is, and names donors that are free."""
        joined = {unit: process for unit, process in self._processes.items() if process.joined}
        for unit, process in joined.items():
            said = process.taker.message
            taking = Taking(unit, process.session, KIND, "", said.round, frozenset(said.failed))
            if process.copying:
                self._donors.copies(taking, Candidate(said.unit, said.attempt, (said.unit,), KIND))
            elif said.phase == Recovery.WANTED and (answer := self._donors.asks(taking)) is not None:
                self._tell(process, answer)
            elif process.taker.over:
                self._donors.ends(unit)
        candidates = [Candidate(unit, one.attempt, (unit,), KIND) for unit, one in joined.items() if one.ready]
        for taking, answer in self._donors.name(candidates, [KIND], t, self._now()):
            self._tell(self._processes[taking.unit], answer)

    def _tell(self, process: Process, answer: Answer) -> None:
        donor = answer.donor
        if donor is None:
            process.taker.named(Donor(round=answer.round, why=answer.why))
            return
        others = [one for one in self._processes.values() if one is not process and one.joined and one.copying]
        if any(one.taker.message.unit == donor.unit for one in others):
            raise broken(f"one taker: {donor.unit} is named to {process.unit}, and gives to another unit")
        process.taker.named(Donor(round=answer.round, unit=donor.unit, attempt=donor.attempt))

    def give(self, unit: str) -> None:
        """The donor of this unit stages its next part, once it is as new as the taker; at last the small rest."""
        copy = self._processes[unit].copy
        if copy is None:
            return
        donor = self._processes[copy.donor]
        if not donor.ready or not donor.adopted.are_as_new_as(self._processes[unit].adopted.versions):
            return
        copy.heard_at = self._now()
        if copy.parts < FRAGMENTS:
            arrays = donor.state.arrays([whole(self._layout.tensors[copy.parts])])
            copy.events.append(ArraysReceived(arrays, list(donor.adopted.versions), donor.state.stage(arrays).wait()))
        elif copy.parts == FRAGMENTS:
            copy.events.append(CopyDone({"steps": donor.state.steps}))
        copy.parts += 1
