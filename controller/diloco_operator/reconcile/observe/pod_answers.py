"""What the API server said of the pods of a pool: whether units of other jobs may leave for it, and when to ask again. Pure.

See docs/decisions/0206-before-units-leave.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from diloco.protocol.backoff import exponential

from diloco_operator.reconcile.config import OperatorConfig
from diloco_operator.reconcile.observe.rejected_writes import RejectedWrite, is_known, retry_at
from diloco_operator.timeouts import RECONCILE


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """The last answer. After a create that succeeded there is none: what it used is not there for the next one."""

    at: float
    """Seconds since the epoch."""
    generation: int
    """metadata.generation of the job at that time: of a changed spec nothing is known."""
    rejected: RejectedWrite | None = None
    """None: the pod was admitted."""
    in_vain: int = 0
    """Creates in a row that were refused although a dry run had admitted the same pod: units of others may have left for them."""


def admits(answer: PodAnswer | None, generation: int, now: float) -> bool:
    """Return whether the pods of the pool are known to be admitted."""
    if answer is None or answer.generation != generation or answer.rejected is not None:
        return False
    return now < answer.at + RECONCILE.admission


def refusal(answer: PodAnswer | None, generation: int) -> RejectedWrite | None:
    """Return why the pods of the present spec were refused last; None: they are not known to be."""
    if answer is None or answer.generation != generation or answer.rejected is None or not is_known(answer.rejected):
        return None
    return answer.rejected


def ask_at(answer: PodAnswer | None, generation: int, config: OperatorConfig) -> float:
    """Return when a dry run may be tried next, in seconds since the epoch. The pause doubles with every refusal in a row."""
    if answer is None or answer.generation != generation:
        return 0.0
    if answer.rejected is None:
        return answer.at + RECONCILE.admission
    pause = exponential(RECONCILE.in_vain, RECONCILE.in_vain_max, answer.in_vain) if answer.in_vain else 0.0
    return max(retry_at(answer.rejected, config), answer.at + pause)
