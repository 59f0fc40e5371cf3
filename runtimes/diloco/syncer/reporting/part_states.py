"""What the operators of parts have said about them, kept for reports. Pure.

It is in no snapshot: each says it again to a new process of the syncer.

See docs/decisions/0288-state-of-a-part.md.
"""

from __future__ import annotations

from diloco.contract import MOST_PARTS
from diloco.protocol.diloco_pb2 import PartReport, PartState


class PartStates:
    def __init__(self) -> None:
        self._told: dict[str, tuple[PartState, float]] = {}
        """Part -> its state and when it was told. The one that was told last is the last."""

    def tell(self, part: str, state: PartState, now: float) -> None:
        self._told.pop(part, None)
        self._told[part] = state, now
        if len(self._told) > MOST_PARTS:  # certificates of parts that the job had before count until they expire
            del self._told[next(iter(self._told))]

    def reports(self, now: float) -> list[PartReport]:
        return [PartReport(part=part, state=state, seconds_since_told=now - at) for part, (state, at) in sorted(self._told.items())]
