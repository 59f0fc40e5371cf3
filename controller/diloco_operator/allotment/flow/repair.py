"""One slice is lost: the solved flow is repaired along one or two cheapest paths, in place of solving all anew. Pure.

The result is as good as that of a new solve: only what the lost slice carried must find another way, and each cheapest path keeps the flow
optimal (Ford and Fulkerson; Busacker and Gowen).

See docs/decisions/0208-one-flow.md.
"""

from __future__ import annotations

from dataclasses import replace

from diloco_operator.allotment.flow.minima import fits_alone
from diloco_operator.allotment.flow.model import PoolKey
from diloco_operator.allotment.flow.problem import FlowHeld, FlowJob, FlowPool
from diloco_operator.allotment.flow.residual import SINK, SOURCE, Arc
from diloco_operator.allotment.flow.solution import Solution


def prepare(solution: Solution) -> None:
    """Find the prices of the solved network, which make repairs fast. They stay from one repair to the next."""
    _open(solution)
    solution.lend()


def lose_free(solution: Solution, class_: str) -> bool:
    """One slice of this class that no unit of the problem had is gone. False: who has a minimum changes, so all must be solved anew, and
    the solution is of no use any more."""
    _open(solution)
    model = solution.model
    if any(class_ in classes for (_, (_, displaces)), classes in model.choices.items() if not displaces):
        return False  # units that take only what is free have less of it
    return _shrink(solution, class_) and _finish(solution)


def lose_held(solution: Solution, job: str, pool: str, class_: str) -> bool:
    """One unit has lost its slice of this class, and wants another. False: as for `lose_free`."""
    _open(solution)
    model, network = solution.model, solution.model.network
    arcs = model.jobs[job]
    before, after = arcs.job, without_unit(arcs.job, pool, class_)
    own = next(each for each in before.pools if each.name == pool)
    size = own.size_in(model.hubs[class_])
    if size != 1 or job not in solution.minima.met or job in solution.minima.missing:
        return False
    if not own.scavenged and before.runs:
        same = before.protected + before.missing == after.protected + after.missing
        if (
            own.has <= own.min or not same or any(each.settling for each in own.held)
        ):  # its pool's minimum, or another one, must find a new unit
            return False
    stay, kept = model.stays[job, pool], model.kept[(job, pool), class_]
    held = None if own.scavenged else arcs.held
    for arc in (stay, kept, held):
        if arc is not None:
            network.upper[arc] -= 1
    if held is not None and arcs.new is not None and before.most_new is not None:
        network.upper[arcs.new] += 1
    network.lower[kept] = min(network.lower[kept], network.upper[kept])
    if network.flow[kept] <= network.upper[kept]:  # it was to leave
        if not _shrink(solution, class_):
            return False
        _want_one_more(solution, (job, pool))
    elif not _narrow(solution, class_):
        return False
    else:
        start = network.tails[kept]
        lost = [kept, model.sinks[class_, size]]
        if held is not None and after.protected < before.protected:
            start = arcs.firm  # all units that it has are of its minimum: the one that is lost becomes a new one
            network.lower[held] = after.protected
            lost += [stay, held]
        for arc in lost:
            network.add(arc, -1)
        _want_one_more(solution, (job, pool))
        found = network.cheapest(start, SINK)
        if found is None:
            return False
        network.push(found[1])
        if held is not None and arcs.new is not None:
            network.lower[arcs.new] += before.protected - after.protected
    _move_fewer(solution, (job, pool), own)
    arcs.job = after
    return _finish(solution)


def _open(solution: Solution) -> None:
    solution.take_back()
    if not solution.model.network.priced:
        solution.model.network.price()


def _move_fewer(solution: Solution, key: PoolKey, pool: FlowPool) -> None:
    """No more units can leave their slices for others than have some."""
    network = solution.model.network
    arc = solution.model.movers.get(key)
    if arc is None or network.upper[arc] < pool.has:
        return
    network.upper[arc] -= 1
    if network.flow[arc] > network.upper[arc]:
        network.add(arc, -1)
        found = network.cheapest(SOURCE, network.heads[arc])
        assert found is not None, "what one unit less takes, another may take, or none"
        network.push(found[1])


def without_unit(job: FlowJob, pool: str, class_: str) -> FlowJob:
    """The job after one unit of this pool has lost its slice of this class: it wants one more."""
    scavenged = next(each.scavenged for each in job.pools if each.name == pool)

    def less(each: FlowPool) -> FlowPool:
        if each.name != pool:
            return each
        held = (_less(some) if some.class_ == class_ else some for some in each.held)
        return replace(each, held=tuple(some for some in held if some.units), wanted=each.wanted + 1, moving=min(each.moving, each.has - 1))

    most_new = job.most_new + 1 if job.most_new is not None and not scavenged else job.most_new
    return replace(job, pools=tuple(less(each) for each in job.pools), admitted=job.runs, most_new=most_new)


def _less(held: FlowHeld) -> FlowHeld:
    return replace(held, units=held.units - 1, settling=min(held.settling, held.units - 1))


def _narrow(solution: Solution, class_: str) -> bool:
    """The class has one slice less. False: units of several sizes use it, so how they share it must be decided anew."""
    model = solution.model
    sizes = [size for name, size in model.sinks if name == class_]
    if len(sizes) > 1:
        return False
    index = next(index for index, each in enumerate(model.classes) if each.name == class_)
    model.classes[index] = replace(model.classes[index], room=model.classes[index].room - 1)
    for size in sizes:
        model.network.upper[model.sinks[class_, size]] = model.classes[index].room // size
    return True


def _shrink(solution: Solution, class_: str) -> bool:
    """The class has one slice less, and what took the last one goes elsewhere, or waits."""
    network = solution.model.network
    if not _narrow(solution, class_):
        return False
    for (name, _), sink in solution.model.sinks.items():
        if name == class_ and network.flow[sink] > network.upper[sink]:
            network.add(sink, -1)
            found = network.cheapest(network.tails[sink], SINK)
            if found is None:
                return False
            network.push(found[1])
    return True


def _want_one_more(solution: Solution, key: PoolKey) -> None:
    """The pool may have one more new unit, if that is worth more than what it displaces."""
    model, network = solution.model, solution.model.network
    limits = model.limits.get(key)
    if not limits:
        return
    for arc in limits:
        network.upper[arc] += 1
    limit = limits[0]
    found = network.cheapest(network.heads[limit], network.tails[limit])
    if found is not None and network.costs[limit] + found[0] < 0:
        network.push([Arc(limit, forward=True), *found[1]])


def _finish(solution: Solution) -> bool:
    waiting = solution.minima.waiting
    if waiting and not fits_alone(solution.model.jobs[waiting].job, solution.model.classes):
        return False
    solution.lend()
    return True
