"""A script in place of the syncer, for the part "adapters": each program gets the same messages at the same steps.

Two fragments are read, one after the other, and then the first is adopted. All other steps are quiet: they do nothing for the job.
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
"""Step -> the fragment that is read at its boundary."""
ADOPTED_AT: Final = 14
"""The step at whose boundary fragment 0 is adopted."""
EQUAL: Final = ADOPTED_AT - 1
"""Number of steps before the adoption. After each, the parameters must be the same with and without a session."""
QUIET: Final = tuple(step for step in range(2, ADOPTED_AT) if step not in READS)
"""Steps that move nothing. The first step is left out, because everything is done for the first time in it."""
HALF: Final = np.float32(0.5)
"""The adopted values are the values that were read, times this."""


def seeds(job: ScriptedSession) -> None:
    """Let the program seed the job with its own parameters."""
    job.comes(job.welcome(seed_wanted=True), Leased(0, 4 * STEPS * BATCH))
    job.session._wait_for_parameters()


def comes_before(job: ScriptedSession, step: int) -> None:
    """Send the messages that arrive before the boundary of this step. Steps count from 1."""
    if (fragment := READS.get(step)) is not None:
        job.comes(PullWanted(1, fragment, 4 + step))
    if step == ADOPTED_AT:
        job.comes(job.broadcast_of(0, 4 + step, adopted(job)))


def read(job: ScriptedSession) -> dict[int, Float32Array]:
    """Fragment -> the values that were read of it, float32 [size of the fragment]."""
    return {header.fragment: staged.wait() for _, header, staged in job.connection.pushed}


def adopted(job: ScriptedSession) -> Float32Array:
    """The adopted values of fragment 0, float32 [size of the fragment]."""
    return read(job)[0] * HALF
