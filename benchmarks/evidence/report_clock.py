"""The paper's outer clock, for repeating its ablation of quorum and grace. The coordinator takes it in place of our own clock."""

from __future__ import annotations

from diloco.algorithm.members import Member, Members


class ReportClock:
    """An outer step is due once the quorum has reported a new local step. The learners that report by the end of the grace window take
    part, and no others. A learner that has reported rests until the quorum is there, so K = M is a barrier at each step."""

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
