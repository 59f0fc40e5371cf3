from __future__ import annotations

from diloco.contract import MOST_PARTS
from diloco.protocol.diloco_pb2 import PartState
from diloco.syncer.reporting.part_states import PartStates


def test_of_more_parts_than_a_job_has_those_that_were_told_last_are_kept() -> None:
    states = PartStates()
    for number in range(MOST_PARTS):
        states.tell(f"part-{number:02}", PartState(state="Queued"), now=float(number))
    states.tell("part-00", PartState(state="Training"), now=20.0)
    states.tell("part-99", PartState(state="Queued"), now=21.0)
    found = {each.part: (each.state.state, each.seconds_since_told) for each in states.reports(now=30.0)}
    assert len(found) == MOST_PARTS
    assert "part-01" not in found
    assert (found["part-00"], found["part-02"], found["part-99"]) == (("Training", 10.0), ("Queued", 28.0), ("Queued", 9.0))
