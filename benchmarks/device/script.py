"""What comes from the syncer in the adapters' part, by a script: each program meets the same at the same steps.

Two fragments are read, one after the other, and then the first one is adopted. No other step does anything for the job: it is quiet.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from builders.scripted_connection import ScriptedSession
from diloco.learner.inbox import Leased, PullWanted
from diloco.learner.store import Float32Array

STEPS: Final = 20
BATCH: Final = 2
READS: Final = {4: 0, 7: 1}
"""By step, the fragment that is read behind it."""
ADOPTED_AT: Final = 14
"""The step behind which fragment 0 is adopted."""
EQUAL: Final = ADOPTED_AT - 1
"""Steps before that: after each of them the parameters are the same with and without a session."""
QUIET: Final = tuple(step for step in range(2, ADOPTED_AT) if step not in READS)
"""Steps that move nothing, without the first one, in which everything is done for the first time."""
HALF: Final = np.float32(0.5)
"""What was read, times this, is what is adopted."""


def seeds(job: ScriptedSession) -> None:
    """Let the program seed the job with its own parameters."""
    job.comes(job.welcome(seed_wanted=True), Leased(0, 4 * STEPS * BATCH))
    job.session._wait_for_parameters()


def comes_before(job: ScriptedSession, step: int) -> None:
    """Send what is there at the boundary behind this step, from 1."""
    if (fragment := READS.get(step)) is not None:
        job.comes(PullWanted(1, fragment, 4 + step))
    if step == ADOPTED_AT:
        job.comes(job.broadcast_of(0, 4 + step, adopted(job)))


def read(job: ScriptedSession) -> dict[int, Float32Array]:
    """Return what was read of each fragment, float32 [its size]."""
    return {header.fragment: staged.wait() for _, header, staged in job.connection.pushed}


def adopted(job: ScriptedSession) -> Float32Array:
    """Return the values of fragment 0 that are adopted, float32 [its size]."""
    return read(job)[0] * HALF
