"""The tables of a job, for terminals and pages alike. Pure.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco.wording import loss_text, plural
from diloco_operator.api.status import Condition, HostStatus, PartStatus, PoolStatus, Status, UnitStatus
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.placement.request import with_remedies

from diloco_cli.view_model import JobView
from diloco_cli.view_text import as_of, count, duration, figure_cells, figure_headings, hours_text, shortly, tokens_an_hour


@dataclass(frozen=True, slots=True)
class Since:
    """A cell with the time since `at`, which is in seconds since the epoch."""

    at: float


@dataclass(frozen=True, slots=True)
class Until:
    """A cell with the time until `at`, which is in seconds since the epoch. `NOTHING` afterwards."""

    at: float


type Value = str | Since | Until


@dataclass(frozen=True, slots=True)
class Table:
    head: Sequence[str]
    """Headings in capitals, as in kubectl."""
    rows: Sequence[Sequence[Value]]

    def without(self, *names: str) -> Table:
        kept = [number for number, name in enumerate(self.head) if name not in names]
        return Table([self.head[number] for number in kept], [[row[number] for number in kept] for row in self.rows])


NOTHING = "-"
"""A cell without a value."""
NOT_JOINED = "not joined"
"""State of a learner of which the syncer has not heard."""


def cell_text(value: Value, now: float) -> str:
    """A cell as a terminal shows it. `now` is in seconds since the epoch."""
    match value:
        case Since(at):
            return duration(max(0.0, now - at))
        case Until(at):
            return duration(at - now) if at > now else NOTHING
        case str():
            return value


def jobs_table(views: Sequence[JobView], now: float) -> Table:
    """A row for each job: its state, progress and speed, and why it is in this state. `now` is in seconds since the epoch."""
    head = ("NAMESPACE", "JOB", "STATE", "TOKENS/S", "UNITS", "STEP", "LOSS", "GOODPUT", "ENDS IN", "WHY")
    return Table(head, [_job(view, now) for view in views])


def _job(view: JobView, now: float) -> Sequence[Value]:
    progress, learners, goodput = view.status.progress, view.status.learners, view.status.goodput
    end = progress.estimated_completion
    return (
        view.namespace,
        view.name,
        view.state.value if view.state is not None else "not seen",
        NOTHING if view.over else count(progress.tokens_per_second),
        f"{learners.contributing}/{learners.desired}",
        f"{progress.step}/{progress.steps}" if progress.steps else NOTHING,
        loss_text(progress.loss) if progress.loss is not None else NOTHING,
        f"{goodput.productive_share:.1%}" if goodput is not None and goodput.unit_seconds.total else NOTHING,
        Until(end) if end is not None and not view.over else NOTHING,
        ": ".join(filter(None, (as_of(view.status, now), shortly(view.why())))),
    )


def conditions_table(conditions: Sequence[Condition]) -> Table:
    rows = [
        (condition.type, condition.status.value, condition.reason, Since(condition.last_transition_time), condition.message)
        for condition in conditions
    ]
    return Table(("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"), rows)


def units_table(units: Sequence[UnitStatus], *, wide: bool = False) -> Table:
    """A row for each unit: its state and slice, its figures, and why it does not train. `wide` adds its totals."""
    more = (*figure_headings(wide=True), "RECOVERED IN") if wide else ()
    header = ("UNIT", "STATE", "SINCE", "SLICE", "ATTEMPT", "RESTARTS", *figure_headings(), *more, "WHY")
    return Table(header, [_unit(unit, wide=wide) for unit in units])


def _unit(unit: UnitStatus, *, wide: bool) -> Sequence[Value]:
    recovered = NOTHING if unit.recover_seconds is None else f"{unit.recover_seconds:.1f}s"
    more = (*figure_cells(unit, wide=True), recovered) if wide else ()
    since = NOTHING if unit.since is None else Since(unit.since)
    row = (unit.name, unit.state.value, since, unit.slice or NOTHING, str(unit.attempt), str(unit.restarts))
    return *row, *figure_cells(unit), *more, reason_and_message(unit.reason, unit.message)


def elsewhere_table(status: Status) -> Table:
    """A row for each unit in another cluster and each learner outside: what the syncer says about it."""
    rows = [
        (
            unit.name,
            cluster or NOTHING,
            unit.state or NOT_JOINED,
            Since(unit.since) if unit.since is not None else NOTHING,
            str(unit.attempt),
            count(unit.tokens),
        )
        for cluster, unit in status.elsewhere
    ]
    return Table(("UNIT", "CLUSTER", "STATE", "SINCE", "ATTEMPT", "TOKENS"), rows)


def pools_table(pools: Sequence[PoolStatus]) -> Table:
    """A row for each pool: its units and their speed, and why it has not more units. CLUSTER is there if one is in another cluster."""
    table = Table(("POOL", "CLUSTER", "CONTRIBUTE", "PLACED", "TOKENS/S EACH", "VALUE", "WHY NOT MORE"), [_pool(pool) for pool in pools])
    return table if any(pool.cluster for pool in pools) else table.without("CLUSTER")


def parts_table(parts: Sequence[PartStatus]) -> Table:
    """A row for each part in another cluster: what the syncer hears of its units, and what is wrong with it."""
    return Table(("PART", "STATE", "CONTRIBUTE", "TOKENS/S", "WEIGHT", "MERGES", "TOKENS", "HEARD", "WHY"), [_part(part) for part in parts])


def part_costs_table(parts: Sequence[PartStatus]) -> Table:
    """A row for each part of which its link or its hardware is known: what the link carries, and how its units used the accelerators."""
    known = [part for part in parts if part.round_trip_seconds is not None or part.received_bytes_per_second or part.accelerator_hours]
    head = ("PART", "ROUND TRIP", "UP", "DOWN", "GOODPUT", "ACCELERATOR-HOURS", "TOKENS/ACCELERATOR-HOUR")
    return Table(head, [_part_costs(part) for part in known])


def _part(part: PartStatus) -> Sequence[Value]:
    silent = f"its cluster has not answered since {format_timestamp(part.silent_since)}" if part.silent_since is not None else ""
    return (
        part.name,
        part.state or NOTHING,
        f"{part.contributing}/{len(part.units)}",
        count(part.tokens_per_second),
        f"{part.weight:.0%}",
        NOTHING if part.merge_share is None else f"{part.merge_share:.0%}",
        count(part.tokens),
        Since(part.last_heard) if part.last_heard is not None else NOTHING,
        "; ".join(filter(None, (silent, part.message))),
    )


def _part_costs(part: PartStatus) -> Sequence[Value]:
    hours = part.accelerator_hours or {}
    return (
        part.name,
        NOTHING if part.round_trip_seconds is None else f"{1000 * part.round_trip_seconds:.0f}ms",
        *(NOTHING if rate is None else f"{count(rate)}B/s" for rate in (part.received_bytes_per_second, part.sent_bytes_per_second)),
        NOTHING if part.productive_share is None else f"{part.productive_share:.0%}",
        ", ".join(f"{hours_text(held)} {kind}" for kind, held in hours.items()) or NOTHING,
        tokens_an_hour(hours, part.tokens),
    )


def _pool(pool: PoolStatus) -> Sequence[Value]:
    rate = NOTHING if pool.tokens_per_second is None else count(pool.tokens_per_second)
    value = f"{1.0 if pool.value is None else pool.value:.2f}"
    placed = f"{pool.placed} + {plural(pool.spares, 'spare')}" if pool.spares else str(pool.placed)
    why = reason_and_message(pool.reason, with_remedies(pool.message, pool.remedies or ()))
    if pool.assigned is not None:
        placed = f"{pool.placed} of {pool.assigned}"
    return pool.name, pool.cluster or NOTHING, str(pool.contributing), placed, rate, value, why


def hosts_table(hosts: Sequence[HostStatus]) -> Table:
    """A row for each host on which attempts failed."""
    return Table(("HOST", "FAILURES", "LAST", "AVOIDED FOR", "LAST FAILURE"), [_host(host) for host in hosts])


def _host(host: HostStatus) -> Sequence[Value]:
    last = max((failure.at for failure in host.failures), default=None)
    avoided = NOTHING if host.avoided_until is None else Until(host.avoided_until)
    return host.node, str(len(host.failures)), NOTHING if last is None else Since(last), avoided, host.message


def reason_and_message(reason: str, message: str) -> str:
    """`Reason: message`, or only one of them if the other is ""."""
    return ": ".join(part for part in (reason, message) if part)
