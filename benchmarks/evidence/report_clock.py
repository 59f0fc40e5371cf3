"""The paper's outer clock, with which its ablation of quorum and grace can be repeated: another policy of the coordinator of jobs."""

from __future__ import annotations

from diloco.algorithm.members import Member, Members


class ReportClock:
    """The paper's: an outer step is due once the quorum has reported a new local step. Those that report by the end of the grace window
    take part, and no one else. A learner that has reported for a step whose quorum is missing rests: K = M is a barrier at each step."""

    ready = True
    overdue = False

    def __init__(self) -> None:
        self.worked = 0.0

    def add(self, unit: str, steps: int, counting: int) -> None:
        self.worked += steps / max(1, counting)

    def forget(self, unit: str) -> None:
        pass

    def exhausted(self, unit: str) -> bool:
        return True

    def spend(self) -> None:
        pass

    def waits_for(self, members: Members, fragment: int, begin: float, end: float) -> bool:
        return members.fresh < members.counting

    def asks(self, member: Member, fragment: int) -> bool:
        return member.counts and member.fresh and member.steps[fragment] > 0
