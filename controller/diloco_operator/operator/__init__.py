"""The operator as it runs: caches, passes, workers. Decides nothing itself (`reconcile` does), and writes only what a plan says."""

from diloco_operator.operator.run import Operator, RunConfig

__all__ = ["Operator", "RunConfig"]
