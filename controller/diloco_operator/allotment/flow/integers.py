"""A problem in whole numbers, solved by HiGHS several times with other goals. One thread: equal problems have equal solutions, unless time
is over before the best is known.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

type Terms = Mapping[int, int]
"""Variable -> its factor."""
SECONDS = 10.0
"""After so long a solve ends with the best that it has found, so that no problem holds an allotment for ever."""
LARGE, NEAR = 1500, 2
"""With so many variables whole numbers are looked for no further than this from the best fractions: 5,000 hosts and 200 jobs then take 5
seconds in place of 31."""
EXACT, ENOUGH = 1e-6, 1e-3
"""A solution is good enough if no other can be better by more than this share; `ENOUGH`: of a large problem."""


class Integers:
    """Variables are whole numbers. Rows are sums of them that stay between two bounds."""

    def __init__(self) -> None:
        # Here: it takes a quarter of a second, and most allotments and commands never need it.
        import highspy

        self._highspy = highspy
        self._solver = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in (("output_flag", False), ("threads", 1)):
            self._solver.setOptionValue(option, value)
        self._solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self._goal: Terms = {}
        self._lower: list[int] = []
        self._upper: list[int] = []
        self.values: list[int] = []
        """The last solution."""
        self.gap = 0.0
        """How far the worst of all solutions may be from the best, as a share of it."""

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
        """Keep the variable between these bounds from now on."""
        self._lower[variable], self._upper[variable] = lower, upper
        self._solver.changeColBounds(variable, lower, upper)

    def at_least(self, variable: int, lower: int) -> None:
        """Raise the lower bound of the variable."""
        self.bound(variable, max(lower, self._lower[variable]), self._upper[variable])

    def row(self, terms: Terms, least: float = -math.inf, most: float = math.inf) -> int:
        """Return the number of a new row: the sum of these terms stays between the bounds."""
        self._solver.addRow(least, most, len(terms), list(terms), [float(factor) for factor in terms.values()])
        return self._solver.getNumRow() - 1

    def include(self, row: int, variable: int) -> None:
        """Add the variable to the sum of the row."""
        self._solver.changeCoeff(row, variable, 1.0)

    def limit(self, row: int, least: float = -math.inf, most: float = math.inf) -> None:
        """Keep the row between these bounds from now on."""
        self._solver.changeRowBounds(row, least, most)

    def sum_of(self, terms: Terms) -> int:
        """Return what the terms come to in the last solution."""
        return sum(factor * self.values[variable] for variable, factor in terms.items())

    def solve(self, goal: Terms | None = None, gap: float = EXACT) -> bool:
        """Make the goal as large as it can be; None: find any solution. `gap`: what is enough for a large problem. Returns False if there
        is no solution, or none was found in time: the last one stays."""
        for variable in self._goal:
            self._solver.changeColCost(variable, 0.0)
        self._goal = goal or {}
        for variable, factor in self._goal.items():
            self._solver.changeColCost(variable, float(factor))
        if goal is None or len(self.values) < LARGE:
            return self._run(EXACT)
        fractions = self._fractions()
        for variable, value in enumerate(fractions):
            lower, upper = math.floor(value) - NEAR, math.ceil(value) + NEAR
            self._solver.changeColBounds(variable, max(lower, self._lower[variable]), min(upper, self._upper[variable]))
        found = self._run(gap)
        for variable in range(len(fractions)):
            self._solver.changeColBounds(variable, self._lower[variable], self._upper[variable])
        return found or self._run(gap)

    def _fractions(self) -> list[float]:
        """Return the best solution in any numbers."""
        self._solver.setOptionValue("solve_relaxation", True)
        self._begin()
        self._solver.run()
        self._solver.setOptionValue("solve_relaxation", False)
        return [round(value, 6) for value in self._solver.getSolution().col_value]

    def _run(self, gap: float) -> bool:
        self._solver.setOptionValue("mip_rel_gap", gap)
        self._begin()
        self._solver.run()
        info = self._solver.getInfo()
        if info.primal_solution_status != self._highspy.SolutionStatus.kSolutionStatusFeasible:
            return False
        self.values = [round(value) for value in self._solver.getSolution().col_value]
        if self._goal and info.mip_gap > EXACT:
            self.gap = max(self.gap, info.mip_gap)
        return True

    def _begin(self) -> None:
        self._solver.setOptionValue("time_limit", self._solver.getRunTime() + SECONDS)  # its clock goes on from one solve to the next


def added(*terms: Iterable[int]) -> dict[int, int]:
    """Return the sum of all these variables."""
    return {variable: 1 for found in terms for variable in found}
