"""One minimum-cost flow for all jobs: which job gets how many units on which kind of slices. Pure.

See docs/decisions/0208-one-flow.md.
"""

from diloco_operator.allotment.flow.checks import checks
from diloco_operator.allotment.flow.problem import FlowClass, FlowHeld, FlowJob, FlowPlan, FlowPool, FlowProblem, PoolPlan
from diloco_operator.allotment.flow.solution import solve

__all__ = ["FlowClass", "FlowHeld", "FlowJob", "FlowPlan", "FlowPool", "FlowProblem", "PoolPlan", "checks", "solve"]
