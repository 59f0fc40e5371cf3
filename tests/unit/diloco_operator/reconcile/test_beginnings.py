"""What a unit's process began with, and what it waits for until then."""

from __future__ import annotations

from builders import timelines as t
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.stage import Stage
from builders.timelines import at, given, has, timelines, unit
from diloco_operator.report import Recovery, RecoveryPhase, UnitPhase

WANTED, COPYING, OVER = RecoveryPhase
JOINING, CONTRIBUTING = UnitPhase.JOINING, UnitPhase.CONTRIBUTING


@t.scene
def one_unit() -> Stage:
    """It trains."""
    return Stage(a_job().with_restarts(5, "0s").with_pool(max=1).with_training(quorum=1), a_tpu_node("tpu-0")).train()


def recovery(
    phase: RecoveryPhase, unit: str = "", why: str = "", mebibytes: int = 0, stored_at: int | None = None, steps: int = 0
) -> Recovery:
    """The program took 3 s to begin, the copy, if there was one, 1.5 s; the other phases hardly any time."""
    return Recovery(phase, unit, why, stored_at, steps, mebibytes << 20, 3.0, 0.01, 0.02, 0.0, 1.5 if unit else 0.0, 0.04)


BACK = (t.exits(1), t.reconciled, t.pods_run)

test_beginnings = timelines(
    a_unit_that_took_the_state_of_a_peer_says_so=given(
        one_unit(),
        at(0, *BACK, t.reported(JOINING, recovery=recovery(WANTED)), unit(state="Joining", reason="TakingParameters")),
        at(0, unit(message="connected, waits until a unit can give it the optimizer's state", beganWith=None)),
        at(1, t.reported(JOINING, recovery=recovery(WANTED, why="v6e-1 left"))),
        at(1, unit(message="connected, waits until a unit can give it the optimizer's state; before, v6e-1 left")),
        at(2, t.reported(JOINING, recovery=recovery(COPYING, "v6e-0"))),
        at(2, unit(message="connected, takes the optimizer's state of unit v6e-0", beganWith=None)),
        at(3, t.reported(CONTRIBUTING, recovery=recovery(OVER, "v6e-0", mebibytes=64)), unit(state="Training", message="")),
        at(3, unit(beganWith="the state of v6e-0 (64.0 MiB); program 3.0 s, copy 1.5 s")),
    ),
    a_unit_that_took_what_it_had_stored_itself_says_of_when=given(
        one_unit(),
        at(0, *BACK, t.reported(JOINING, recovery=recovery(COPYING, "v5p-0", stored_at=240)), unit(state="Joining")),
        at(0, unit(message="connected, takes the optimizer's state that it had stored")),
        at(1, t.reported(CONTRIBUTING, recovery=recovery(OVER, "v5p-0", mebibytes=64, stored_at=240, steps=340))),
        at(1, unit(beganWith=has("that it had stored after outer step 240 (64.0 MiB, 340 local steps behind it); program 3.0 s"))),
        at(1, unit(state="Training")),
    ),
    a_unit_that_found_no_peer_says_why=given(
        one_unit(),
        at(0, *BACK, t.reported(CONTRIBUTING, recovery=recovery(OVER, why="no other unit trains"))),
        at(0, unit(beganWith=has("the parameters of the syncer, and an optimizer without state: no other unit trains; program 3.0 s"))),
    ),
    another_attempt_begins_anew=given(
        one_unit(),
        at(0, t.reported(CONTRIBUTING, recovery=recovery(OVER, "v6e-0")), unit(beganWith=has("the state of v6e-0"))),
        at(1, t.exits(1), t.reconciled, t.pods_run, unit(beganWith=None)),
    ),
)
