"""The best placement by integer programming: what the flow is compared with. It knows the rules, and nothing of networks.

Lexicographic, as the rules are: each minimum in its turn, then the value of all that is placed. Every step is one call of HiGHS.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from diloco_operator.allotment.flow import FlowClass, FlowJob, FlowPlan, FlowPool, FlowProblem
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

type Terms = dict[str, float]
"""Variable -> its factor."""
WIDTHS = (1, 1, 2, 4, 8, 16, 32)
"""Widths of the segments in which a job's units beyond its minimum count; the eighth is the rest."""


@dataclass(slots=True)
class Best:
    """The best there is."""

    admitted: frozenset[str]
    missing: Mapping[str, int]
    kept_for_minimum: Mapping[str, int]
    """Job that waits -> units that it keeps from others, and room beside them that is too little for one."""
    objective: int


@dataclass(slots=True)
class Programme:
    """Variables are whole numbers of at least 0."""

    upper: dict[str, int] = field(default_factory=dict)
    rows: list[tuple[Terms, float, float]] = field(default_factory=list)

    def variable(self, name: str, upper: int) -> str:
        self.upper[name] = upper
        return name

    def row(self, terms: Terms, least: float = -np.inf, most: float = np.inf) -> None:
        self.rows.append((terms, least, most))

    def largest(self, terms: Terms, *, whole: bool = True) -> int | None:
        """The largest value of this sum; None: the rows contradict each other. Without `whole` variables are any numbers, and the value is
        rounded down: a bound, which is quick on large fleets."""
        if any(not row and not least <= 0 <= most for row, least, most in self.rows):
            return None  # an empty sum is 0
        if not self.upper:
            return 0
        places = {name: index for index, name in enumerate(self.upper)}
        cells = [(factor, number, places[name]) for number, (row, _, _) in enumerate(self.rows) for name, factor in row.items()]
        factors, rows, columns = zip(*cells, strict=True) if cells else ((), (), ())
        matrix = coo_array((factors, (rows, columns)), (len(self.rows), len(places)))
        costs = np.zeros(len(places))
        for name, factor in terms.items():
            costs[places[name]] -= factor
        least, most = np.array([row[1] for row in self.rows]), np.array([row[2] for row in self.rows])
        found = milp(
            costs,
            integrality=np.full(len(places), whole),
            bounds=Bounds(0, np.array(list(self.upper.values()), dtype=float)),
            constraints=[LinearConstraint(matrix, least, most)] if self.rows else [],
            options={"mip_rel_gap": 0.0},
        )
        if found.status == 2:
            return None
        assert found.status == 0, found.message
        if not whole:
            return math.floor(-float(found.fun) + 1e-6)
        values: dict[str, int] = {name: round(found.x[index]) for name, index in places.items()}
        return round(sum(factor * values[name] for name, factor in terms.items()))


class Rules:
    """What any placement must keep, and what each adds to its value."""

    def __init__(self, problem: FlowProblem) -> None:
        self.problem = problem
        self.programme = Programme()
        self.jobs = sorted(problem.jobs, key=lambda job: (-job.priority, job.created, job.key))
        self.takes: dict[str, Terms] = {class_.name: {} for class_ in problem.classes}
        """Class -> what takes its room."""
        self.not_displacing: dict[str, Terms] = {class_.name: {} for class_ in problem.classes}
        """Class -> what takes only the room that no unit has."""
        self.value: Terms = {}
        self.kept: dict[tuple[str, str], Terms] = {}
        self.new: dict[tuple[str, str], Terms] = {}
        for job in self.jobs:
            for pool in job.pools:
                self._place(job, pool)
            self.programme.row(self.units(job.key, job.pools), most=job.max)
        for class_ in problem.classes:
            self.programme.row(self.takes[class_.name], most=class_.room)
            held = sum(
                each.units * pool.size for job in self.jobs for pool in job.pools for each in pool.held if each.class_ == class_.name
            )
            self.programme.row(self.not_displacing[class_.name], most=class_.room - held)

    def _place(self, job: FlowJob, pool: FlowPool) -> None:
        kept, new = self.kept.setdefault((job.key, pool.name), {}), self.new.setdefault((job.key, pool.name), {})
        moves: Terms = {}
        for each in pool.held:
            name = self._in_class(f"{job.key} {pool.name} keeps {each.class_}", each.class_, each.units, pool.size)
            kept[name], self.value[name] = 1, each.value
            self.programme.row({name: 1}, least=each.settling)
        for class_ in self.problem.classes:
            if class_.hub in pool.values:
                name = self._in_class(f"{job.key} {pool.name} takes {class_.name}", class_.name, pool.wanted, pool.size)
                new[name], self.value[name] = 1, pool.values[class_.hub]
                if not pool.displaces:
                    self.not_displacing[class_.name][name] = pool.size
                name = self._in_class(f"{job.key} {pool.name} moves to {class_.name}", class_.name, pool.moving, pool.size)
                moves[name], self.value[name] = 1, 1
        self.programme.row(new, most=pool.wanted)
        self.programme.row(moves, most=min(pool.moving, sum(each.units for each in pool.held)))

    def _in_class(self, name: str, class_: str, upper: int, size: int) -> str:
        self.takes[class_][name] = size
        return self.programme.variable(name, upper)

    def of(self, job: str, pools: tuple[FlowPool, ...], counts: Mapping[tuple[str, str], Terms]) -> Terms:
        return {name: 1 for pool in pools for name in counts[job, pool.name]}

    def units(self, job: str, pools: tuple[FlowPool, ...]) -> Terms:
        return {**self.of(job, pools, self.kept), **self.of(job, pools, self.new)}


def best(problem: FlowProblem) -> Best:
    """The admission, then the largest value."""
    rules = Rules(problem)
    met: dict[str, int] = {}
    missing: dict[str, int] = {}
    runs = [job for job in rules.jobs if job.admitted or any(pool.held for pool in job.pools)]
    for job in runs:  # all that their minima need stays
        has = {pool.name: sum(each.units for each in pool.held) for pool in job.firm}
        met[job.key] = _staying(job)
        rules.programme.row(rules.of(job.key, job.firm, rules.kept), least=met[job.key])
        for pool in job.firm:
            rules.programme.row(rules.kept[job.key, pool.name], least=min(pool.min, has[pool.name]))
    for job in runs:  # then what is missing, of each pool and of the job
        has = {pool.name: sum(each.units for each in pool.held) for pool in job.firm}
        lacks = {pool.name: max(0, pool.min - has[pool.name]) for pool in job.firm}
        wanted = max(job.min - sum(has.values()), sum(lacks.values()))
        filled = _fill(rules, job, lacks, wanted)
        met[job.key] += filled
        if filled < wanted:
            missing[job.key] = wanted - filled
    kept_for_minimum: dict[str, int] = {}
    for job in rules.jobs:
        if job in runs:
            continue
        before = len(rules.programme.rows)
        least = max(job.min, sum(pool.min for pool in job.firm))
        rules.programme.row(rules.of(job.key, job.firm, rules.new), least=least)
        for pool in job.firm:
            rules.programme.row(rules.new[job.key, pool.name], least=pool.min)
        if rules.programme.largest({}) is not None:
            met[job.key] = least
            continue
        del rules.programme.rows[before:]
        may_start = least <= sum(pool.wanted for pool in job.firm) and all(pool.min <= pool.wanted for pool in job.firm)
        if job.fits and may_start and all(pool.keeps_for_minimum for pool in job.firm) and (kept := _keep_for_minimum(rules, job, least)):
            kept_for_minimum[job.key] = kept
        else:
            rules.programme.row(rules.units(job.key, job.pools), most=0)
    objective = rules.programme.largest(_objective(rules, met, set(kept_for_minimum)))
    assert objective is not None
    return Best(frozenset(met), missing, kept_for_minimum, objective)


def _staying(job: FlowJob) -> int:
    """Units of the minimum, which no other job may have leave."""
    has = sum(each.units for pool in job.firm for each in pool.held)
    own = 0
    for pool in job.firm:
        own += min(pool.min, sum(each.units for each in pool.held))
    return max(own, min(has, max(job.min, sum(pool.min for pool in job.firm))))


def _fill(rules: Rules, job: FlowJob, lacks: Mapping[str, int], wanted: int) -> int:
    """As many of the missing units as there are slices for; those of the pools' minima first. They stay."""
    filled = 0
    for pool in job.firm:
        if lacks[pool.name]:
            rules.programme.upper[name := f"{job.key} {pool.name} own"] = lacks[pool.name]
            rules.programme.row({**rules.new[job.key, pool.name], name: -1}, least=0)
            units = rules.programme.largest({name: 1}) or 0
            rules.programme.row({name: 1}, least=units, most=units)
            filled += units
    rest = wanted - sum(lacks.values())
    if wanted:
        rules.programme.upper[name := f"{job.key} rest"] = rest
        rules.programme.row({**rules.of(job.key, job.firm, rules.new), name: -1}, least=filled)
        units = rules.programme.largest({name: 1}) or 0
        rules.programme.row({name: 1}, least=units, most=units)
        filled += units
    return filled


def _keep_for_minimum(rules: Rules, job: FlowJob, least: int, room: int | None = None) -> int:
    """Keep as much of the minimum as there are slices for, and of classes in which it lacks units what is left of each if that is less than
    one of them; or what takes so much room. Returns units, and the room beside them."""
    programme = rules.programme
    terms: Terms = {}
    takes: Terms = {}
    rest = least - sum(pool.min for pool in job.firm)
    others = [programme.variable(f"{job.key} {pool.name} rest", rest) for pool in job.firm]
    for pool, name in zip(job.firm, others, strict=True):
        programme.row({**rules.new[job.key, pool.name], name: -1}, most=pool.min)
        terms |= rules.new[job.key, pool.name]
        takes |= dict.fromkeys(rules.new[job.key, pool.name], pool.size)
    programme.row(dict.fromkeys(others, 1), most=rest)
    programme.row(rules.of(job.key, tuple(pool for pool in job.pools if pool.scavenged), rules.new), most=0)
    if room is not None:
        programme.row(takes, least=room, most=room)
        return room
    units = programme.largest(terms) or 0
    programme.row(terms, least=units, most=units)
    return units + _keep_rest(rules, job, least - units)


def _keep_rest(rules: Rules, job: FlowJob, units: int) -> int:
    programme = rules.programme
    rests: Terms = {}
    uses: Terms = {}
    for class_ in rules.problem.classes:
        size = max((pool.size for pool in job.firm if pool.wanted and class_.hub in pool.values), default=1)
        if size > min(_sizes(rules.problem, class_), default=size):  # smaller units would take it again and again
            rest = programme.variable(f"{job.key} rest of {class_.name}", size - 1)
            use = programme.variable(f"{job.key} uses rest of {class_.name}", 1)
            programme.row({rest: 1, use: 1 - size}, most=0)
            rules.takes[class_.name][rest] = 1  # the row of the class has these terms
            rests[rest] = uses[use] = 1
    programme.row(uses, most=units)
    room = programme.largest(rests) or 0
    programme.row(rests, least=room, most=room)
    return room


def _sizes(problem: FlowProblem, class_: FlowClass) -> Iterator[int]:
    for job in problem.jobs:
        for pool in job.pools:
            if class_.hub in pool.values or any(each.class_ == class_.name for each in pool.held):
                yield pool.size


def _objective(rules: Rules, met: Mapping[str, int], waiting: set[str]) -> Terms:
    """Values, less what shares cost, and the bonuses of priorities."""
    jobs = rules.problem.jobs
    terms = dict(rules.value)
    values = [value for job in jobs for pool in job.pools for value in (*pool.values.values(), *(each.value for each in pool.held))]
    ranks = sorted({(not pool.scavenged, job.priority) for job in jobs for pool in job.pools})
    step = (max(values, default=0) + 1000) * (2 * sum(len(job.pools) for job in jobs) + 1)
    for job in jobs:
        if job.key in waiting:
            continue
        for scavenged in (False, True):
            pools = tuple(pool for pool in job.pools if pool.scavenged is scavenged)
            if not pools:
                continue
            own = [value for pool in pools for value in (*pool.values.values(), *(each.value for each in pool.held))]
            units: Terms = rules.units(job.key, pools)
            for index, width in enumerate((*WIDTHS, job.max)):
                name = rules.programme.variable(f"{job.key} {scavenged} segment {index}", width)
                terms[name] = ranks.index((not scavenged, job.priority)) * step - min(125 * index, min(own, default=2) - 2)
                units[name] = -1
            least = 0 if scavenged else met.get(job.key, 0)
            rules.programme.row(units, least=least, most=least)
    return terms


def bound(problem: FlowProblem, plan: FlowPlan) -> int:
    """More than this no placement is worth that meets the minima which the plan meets, by linear programming."""
    rules = Rules(problem)
    met = {}
    for job in rules.jobs:
        if job.key in plan.kept_for_minimum:
            _keep_for_minimum(rules, job, max(job.min, sum(pool.min for pool in job.firm)), sum(plan.kept_for_minimum[job.key].values()))
        elif job.key not in plan.admitted:
            rules.programme.row(rules.units(job.key, job.pools), most=0)
        else:
            has = sum(each.units for pool in job.firm for each in pool.held)
            least = _staying(job)
            lacks = sum(max(0, pool.min - sum(each.units for each in pool.held)) for pool in job.firm)
            new = max(job.min - has, lacks) - plan.missing.get(job.key, 0)
            met[job.key] = least + new
            rules.programme.row(rules.of(job.key, job.firm, rules.kept), least=least)
            rules.programme.row(rules.of(job.key, job.firm, rules.new), least=new)
    found = rules.programme.largest(_objective(rules, met, set(plan.kept_for_minimum)), whole=False)
    assert found is not None
    return found


def value_of(problem: FlowProblem, plan: FlowPlan) -> int:
    """The value of a plan without slices that are kept for minima, from what it says of each unit."""
    rules = Rules(problem)
    for job in problem.jobs:
        for pool in job.pools:
            placed = plan.pools[job.key, pool.name]
            for word, counts in (("keeps", placed.staying), ("takes", placed.taken), ("moves to", placed.moved_to)):
                for name in rules.programme.upper:
                    if name.startswith(f"{job.key} {pool.name} {word} "):
                        count = counts.get(name.rpartition(" ")[2], 0)
                        rules.programme.row({name: 1}, least=count, most=count)
    met = {}
    for job in problem.jobs:
        if job.key in plan.admitted:
            has = sum(each.units for pool in job.firm for each in pool.held)
            least = _staying(job)
            lacks = sum(max(0, pool.min - sum(each.units for each in pool.held)) for pool in job.firm)
            met[job.key] = least + max(job.min - has, lacks) - plan.missing.get(job.key, 0)
    found = rules.programme.largest(_objective(rules, met, set()))
    assert found is not None, "the plan breaks a rule"
    return found
