"""A problem in whole numbers, which HiGHS solves several times for different goals. It runs in one thread, so equal problems have equal
solutions, unless a solve runs out of time.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping

type Terms = Mapping[int, int]
"""Variable -> its factor."""
type TimeLimit = Callable[[], float]
"""Returns the seconds that the next solve may take. 0: nothing is searched."""
SECONDS = 10.0
"""A solve ends after this time with the best solution so far, so that no problem holds up an allotment for ever."""
LARGE, NEAR = 1500, 2
"""With `LARGE` variables or more, whole numbers are tried only within `NEAR` of the best fractions. For 5,000 hosts and 200 jobs this takes
5 seconds instead of 31."""
EXACT, ENOUGH = 1e-6, 1e-3
"""A solution is good enough if no other is better by more than this share of it: `EXACT` for small problems, `ENOUGH` for large ones."""


class SolveStatus(enum.Enum):
    """How a solve ended."""

    FEASIBLE = enum.auto()
    """There is a solution: the best one, or the best within the time limit."""
    INFEASIBLE = enum.auto()
    """There is no solution."""
    UNDECIDED = enum.auto()
    """Time ran out before one was found. There may be one."""


def same_limit() -> float:
    return SECONDS


class Integers:
    """A problem: variables are whole numbers, and rows are sums of them that stay between two bounds."""

    def __init__(self, time_limit: TimeLimit = same_limit) -> None:
        # Not at the top of the module: the import takes a quarter of a second, and most allotments and commands never need it.
        import highspy

        self._highspy = highspy
        self._solver = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in (("output_flag", False), ("threads", 1)):
            self._solver.setOptionValue(option, value)
        self._solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self._time_limit = time_limit
        self._seconds = 0.0
        """The time limit of the present solve."""
        self._goal: Terms = {}
        self._lower: list[int] = []
        self._upper: list[int] = []
        self.values: list[int] = []
        """Variable -> its value in the last solution."""
        self.gap = 0.0
        """How far the worst solution so far may be from the best one, as a share of that. 1 if a solve was undecided."""

    def variable(self, upper: int, lower: int = 0) -> int:
        """Return the number of a new variable between these bounds."""
        self._solver.addVar(lower, upper)
        number = self._solver.getNumCol() - 1
        self._solver.changeColIntegrality(number, self._highspy.HighsVarType.kInteger)
        self._lower.append(lower)
        self._upper.append(upper)
        self.values.append(lower)
        return number

    def bound(self, variable: int, lower: int, upper: int) -> None:
        self._lower[variable], self._upper[variable] = lower, upper
        self._solver.changeColBounds(variable, lower, upper)

    def at_least(self, variable: int, lower: int) -> None:
        """Raise the lower bound of the variable."""
        self.bound(variable, max(lower, self._lower[variable]), self._upper[variable])

    def row(self, terms: Terms, least: float = -math.inf, most: float = math.inf) -> int:
        """Return the number of a new row, which keeps the sum of these terms between the bounds."""
        self._solver.addRow(least, most, len(terms), list(terms), [float(factor) for factor in terms.values()])
        return self._solver.getNumRow() - 1

    def include(self, row: int, variable: int) -> None:
        """Add the variable to the sum of the row, with factor 1."""
        self._solver.changeCoeff(row, variable, 1.0)

    def limit(self, row: int, least: float = -math.inf, most: float = math.inf) -> None:
        self._solver.changeRowBounds(row, least, most)

    def sum_of(self, terms: Terms) -> int:
        """Return the sum of the terms in the last solution."""
        return sum(factor * self.values[variable] for variable, factor in terms.items())

    def solve(self, goal: Terms | None = None, gap: float = EXACT) -> SolveStatus:
        """Find the solution with the largest goal, or any if the goal is None. If none is found, `values` stay.

        Args:
            gap: how far a solution of a large problem may be below the best one, as a share of the best.
        """
        for variable in self._goal:
            self._solver.changeColCost(variable, 0.0)
        self._goal = goal or {}
        for variable, factor in self._goal.items():
            self._solver.changeColCost(variable, float(factor))
        self._seconds = self._time_limit()
        if self._seconds <= 0:
            status = SolveStatus.UNDECIDED
        elif goal is None or len(self.values) < LARGE:
            status = self._run(EXACT)
        else:
            status = self._run_large(gap)
        if status is SolveStatus.UNDECIDED:
            self.gap = 1.0
        return status

    def _run_large(self, gap: float) -> SolveStatus:
        fractions = self._fractions()
        for variable, value in enumerate(fractions):
            lower, upper = math.floor(value) - NEAR, math.ceil(value) + NEAR
            self._solver.changeColBounds(variable, max(lower, self._lower[variable]), min(upper, self._upper[variable]))
        status = self._run(gap)
        for variable in range(len(fractions)):
            self._solver.changeColBounds(variable, self._lower[variable], self._upper[variable])
        # There may be no whole numbers near the fractions: then they are looked for everywhere.
        return status if status is SolveStatus.FEASIBLE else self._run(gap)

    def _fractions(self) -> list[float]:
        """Return the best solution if variables need not be whole numbers."""
        self._solver.setOptionValue("solve_relaxation", True)
        self._begin()
        self._solver.run()
        self._solver.setOptionValue("solve_relaxation", False)
        return [round(value, 6) for value in self._solver.getSolution().col_value]

    def _run(self, gap: float) -> SolveStatus:
        self._solver.setOptionValue("mip_rel_gap", gap)
        self._begin()
        self._solver.run()
        info = self._solver.getInfo()
        if info.primal_solution_status != self._highspy.SolutionStatus.kSolutionStatusFeasible:
            # Variables are bounded, so the second status means infeasible, too.
            infeasible = (self._highspy.HighsModelStatus.kInfeasible, self._highspy.HighsModelStatus.kUnboundedOrInfeasible)
            return SolveStatus.INFEASIBLE if self._solver.getModelStatus() in infeasible else SolveStatus.UNDECIDED
        self.values = [round(value) for value in self._solver.getSolution().col_value]
        if self._goal and info.mip_gap > EXACT:
            # The gap of HiGHS is a share of the solution, so it is infinite if that is worth nothing.
            self.gap = max(self.gap, min(info.mip_gap, 1.0))
        return SolveStatus.FEASIBLE

    def _begin(self) -> None:
        # The clock of the solver goes on from one solve to the next.
        self._solver.setOptionValue("time_limit", self._solver.getRunTime() + self._seconds)


def added(*terms: Iterable[int]) -> dict[int, int]:
    """Return the terms of the sum of all these variables."""
    return {variable: 1 for variables in terms for variable in variables}
