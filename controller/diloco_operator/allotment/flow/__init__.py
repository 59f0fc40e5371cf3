"""One minimum-cost flow for all jobs: how many units each job gets on each kind of slices. Pure.

See docs/decisions/0207-allotment.md.
"""

from diloco_operator.allotment.flow.checks import Answer, answer, checks
from diloco_operator.allotment.flow.problem import FlowClass, FlowHeld, FlowJob, FlowPlan, FlowPool, FlowProblem, PoolPlan
from diloco_operator.allotment.flow.successors import solve, units_with_successors

__all__ = [
    "Answer",
    "FlowClass",
    "FlowHeld",
    "FlowJob",
    "FlowPlan",
    "FlowPool",
    "FlowProblem",
    "PoolPlan",
    "answer",
    "checks",
    "solve",
    "units_with_successors",
]
