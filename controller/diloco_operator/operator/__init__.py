"""The running operator: caches, reconciles, workers. It decides nothing itself (`reconcile` does) and writes only what a plan says."""

from diloco_operator.operator.reconciler import DecisionOptions
from diloco_operator.operator.run import Operator, RunConfig

__all__ = ["DecisionOptions", "Operator", "RunConfig"]
