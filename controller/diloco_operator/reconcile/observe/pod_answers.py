"""Whether the API server admits the pods of a pool, so that units of other jobs may leave for it, and when to ask it again. Pure.

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
    """The last answer. A create that succeeds erases it: the quota that it used is missing for the next pod."""

    at: float
    """Seconds since the epoch."""
    generation: int
    """metadata.generation of the job at that time. The answer says nothing about a changed spec."""
    rejected: RejectedWrite | None = None
    """None if the pod was admitted."""
    in_vain: int = 0
    """Creates in a row that were refused although a dry run had admitted the same pod. Units of other jobs may have left for them."""


def admits(answer: PodAnswer | None, generation: int, now: float) -> bool:
    """Whether the pods of the pool are known to be admitted."""
    if answer is None or answer.generation != generation or answer.rejected is not None:
        return False
    return now < answer.at + RECONCILE.admission


def refusal(answer: PodAnswer | None, generation: int) -> RejectedWrite | None:
    """Why the pods of the present spec were refused last. None if they are not known to be refused."""
    if answer is None or answer.generation != generation or answer.rejected is None or not is_known(answer.rejected):
        return None
    return answer.rejected


def ask_at(answer: PodAnswer | None, generation: int, config: OperatorConfig) -> float:
    """When a dry run may be tried next, in seconds since the epoch. The pause doubles with every refusal in a row."""
    if answer is None or answer.generation != generation:
        return 0.0
    if answer.rejected is None:
        return answer.at + RECONCILE.admission
    pause = exponential(RECONCILE.in_vain, RECONCILE.in_vain_max, answer.in_vain) if answer.in_vain else 0.0
    return max(retry_at(answer.rejected, config), answer.at + pause)
