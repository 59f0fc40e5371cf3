"""The content of `kubectl diloco explain`, from a job's status, its Events and the nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diloco.wording import and_more, plural
from diloco_operator.api.consequences import AttemptEnd, Follows
from diloco_operator.api.last_failure import read_last_failure
from diloco_operator.api.names import ANNOTATION_SAID, LABEL_UNIT
from diloco_operator.api.reasons import attempt_end_of, follows, lack_of
from diloco_operator.api.state import JobState
from diloco_operator.api.status import PoolStatus, UnitState, UnitStatus
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import printable
from diloco_operator.kube.timestamps import parse_timestamp

from diloco_cli.dominant import Dominant, Upcoming, dominant, upcoming_of
from diloco_cli.status_text import headline
from diloco_cli.view_model import JobView
from diloco_cli.waiting_line import Place

_NAMED = 3
"""Most units or pools that a sentence names one by one."""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What the cluster's nodes tell about a pool's hardware."""

    shape: str
    total: int
    """Slices, or accelerators if units share hosts."""
    hosts: int
    """Hosts that units share. 0 if `total` counts slices."""
    unusable: int
    why_unusable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PoolExplained:
    name: str
    hardware: str
    """What the spec asks for."""
    placed: int
    contributing: int
    min: int
    max: int | None
    """None if the spec has no such pool any more."""
    reason: str
    why: str
    help: tuple[str, ...]
    waiting_since: float | None
    nodes: str
    """What the nodes tell now. "" if they were not read."""
    place: Place | None
    """Among the jobs that wait for the same hardware. None if the pool does not wait, or other jobs could not be read."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt ended."""

    at: float | None
    """Seconds since the epoch, or None if not known."""
    reason: str
    message: str
    attempt: int
    """The attempt that failed. 0 if the end was no failure, or it is not known."""


@dataclass(frozen=True, slots=True)
class UnitsExplained:
    """Units that do not train for the same reason."""

    names: tuple[str, ...]
    state: str
    reason: str
    message: str
    since: float | None
    not_before: float | None
    slice: str
    restarts: int
    attempt: int
    """The newest one, or 0 if there was none yet."""
    last_failure: Failure | None


@dataclass(frozen=True, slots=True)
class AvoidedHost:
    node: str
    until: float
    message: str


@dataclass(frozen=True, slots=True)
class Explanation:
    namespace: str
    name: str
    state: str
    answer: str
    """The explanation in one sentence."""
    dominant: Dominant
    """The main cause why the job does not train with more units."""
    upcoming: tuple[Upcoming, ...]
    """What happens by itself at a known time, the soonest first."""
    pools: tuple[PoolExplained, ...]
    units: tuple[UnitsExplained, ...]
    beginnings: tuple[tuple[str, str], ...]
    """Units that came back and train: (unit, which state it began with and how long that took)."""
    hosts: tuple[AvoidedHost, ...]
    notes: tuple[str, ...]
    """What could not be read, and what to do about it."""
    context: str = ""
    """See `JobView`."""


def explanation(
    view: JobView,
    spec: Mapping[str, Any],
    events: Iterable[Obj],
    facts: Mapping[str, PoolFacts],
    line: Mapping[str, Place],
    notes: Sequence[str] = (),
    unit: UnitStatus | None = None,
) -> Explanation:
    """Explain a job from its view, its spec as the API server has it, and the Events about it. `facts` and `line` (see `places`) are by
    pool. `unit`: the one whose pool, hosts and state are told, also if it trains. None: all."""
    pool_specs = {pool["name"]: pool for pool in spec.get("pools") or ()}
    content = _content(view)
    pools = tuple(_pool(pool, pool_specs.get(pool.name), facts.get(pool.name), line.get(pool.name), content) for pool in view.status.pools)
    failures = _last_failures(view.status.units, events)
    units = tuple(_units(view.status.units, failures))
    answer = _answer(view, pools, units)
    told, failed_on = view.status.units, view.status.hosts
    if unit is not None:
        told, units = (unit,), (_group([unit], failures),)
        pools = tuple(pool for pool in pools if pool.name == unit.pool)
        failed_on = tuple(host for host in failed_on if any(failure.unit == unit.name for failure in host.failures))
    came_back = (unit for unit in told if unit.state is UnitState.TRAINING and unit.restarts and unit.began_with)
    beginnings = tuple((unit.name, unit.began_with or "") for unit in came_back)
    hosts = tuple(AvoidedHost(host.node, host.avoided_until, host.message) for host in failed_on if host.avoided_until is not None)
    return Explanation(
        namespace=view.namespace,
        name=view.name,
        state=view.state.value if view.state is not None else "",
        answer=answer,
        dominant=dominant(view),
        upcoming=upcoming_of(view, spec),
        pools=pools,
        units=units,
        beginnings=beginnings,
        hosts=hosts,
        notes=tuple(notes),
        context=view.context,
    )


def _answer(view: JobView, pools: Sequence[PoolExplained], units: Sequence[UnitsExplained]) -> str:
    if view.over:  # the message of a job that is over says how it ended, and where the model is
        return f"{view.state}{view.reason_text}: {view.why()}"
    if view.state is None or view.suspend or view.state is JobState.SUSPENDED:
        return headline(view)
    if (refused := view.refused()) is not None:
        return f"{view.state} ({refused.reason}): {refused.message}"
    learners = view.status.learners
    parts = [f"{learners.contributing} of {plural(learners.desired, 'unit contributes', 'units contribute')}"]
    short = [pool.name for pool in pools if lack_of(pool.reason).of_slices]
    if short:
        parts.append(f"{'pool' if len(short) == 1 else 'pools'} {_several(short)} {'waits' if len(short) == 1 else 'wait'} for slices")
    # Units whose pool tells why they wait are not counted twice in one sentence.
    remaining = (
        group for group in units if not follows(group.reason, Follows.POOL_SAYS_WHY) and not follows(group.reason, Follows.NOT_WANTED)
    )
    other = [name for group in remaining for name in group.names]
    if other:
        parts.append(f"{'unit' if len(other) == 1 else 'units'} {_several(other)} {'does' if len(other) == 1 else 'do'} not train")
    if len(parts) == 1 and view.state is not JobState.TRAINING:
        return f"{view.state}{view.reason_text}: {view.why()}"
    return f"{view.state}{view.reason_text}: {'; '.join(parts if len(parts) > 1 else [*parts, 'nothing waits for hardware'])}"


def _several(names: Sequence[str]) -> str:
    return and_more(names[:_NAMED], len(names))


def _content(view: JobView) -> str:
    """Why a pool without a reason in status has not more units."""
    if view.over:
        return "the job is over and needs no hardware"
    if view.suspend or view.state is JobState.SUSPENDED:
        return "the job is suspended and asks for no hardware"
    return "every unit that the job asks for has its hardware"


def _pool(status: PoolStatus, spec: Mapping[str, Any] | None, facts: PoolFacts | None, place: Place | None, content: str) -> PoolExplained:
    """`content` tells why the pool has not more units if its status has no reason."""
    learners = (spec or {}).get("learners") or {}
    return PoolExplained(
        name=status.name,
        hardware=_hardware(spec or {}),
        placed=status.placed,
        contributing=status.contributing,
        min=learners.get("min", 0),
        max=learners.get("max") if spec is not None else None,
        reason=status.reason,
        why=status.message if status.reason else content,
        help=status.remedies or (),
        waiting_since=status.waiting_since,
        nodes=_nodes(facts) if facts is not None and lack_of(status.reason).of_slices else "",
        place=place,
    )


def _hardware(pool: Mapping[str, Any]) -> str:
    parts = [f"{pool.get('accelerator', '')} {pool.get('topology', '')}".strip()]
    parts += [plural(pool["hosts"], "host")] if pool.get("hosts", 1) > 1 else []
    parts += [f"{pool['acceleratorsPerHost']} on each host"] if pool.get("acceleratorsPerHost") else []
    parts += [str(pool["capacity"])] if pool.get("capacity") else []
    parts += [f"in cluster {pool['cluster']}"] if pool.get("cluster") else []
    return ", ".join(parts)


def _nodes(facts: PoolFacts) -> str:
    if facts.hosts:
        count = f"{plural(facts.total, 'accelerator')} on {plural(facts.hosts, 'node')}"
    else:
        count = f"{plural(facts.total, 'slice')} of {facts.shape}" if facts.total else f"none of {facts.shape}"
    if not facts.unusable:
        return f"{count}{', all of them ready' if facts.total else ''}"
    return f"{count}, {facts.unusable} not usable: {and_more(facts.why_unusable, facts.unusable)}"


def _units(units: Iterable[UnitStatus], failures: Mapping[str, Failure]) -> list[UnitsExplained]:
    """Explain the units that do not train. Units of a pool that have the same reason are one group."""
    groups: dict[tuple[Any, ...], list[UnitStatus]] = {}
    for unit in units:
        trains = unit.state is UnitState.TRAINING and not unit.reason
        if trains or unit.state is UnitState.COMPLETED:
            continue
        # A unit whose slice or failure is shown gets a group of its own.
        alone = unit.name if unit.slice or unit.name in failures else ""
        groups.setdefault((unit.pool, unit.state, unit.reason, unit.message, unit.not_before, alone), []).append(unit)
    return [_group(group, failures) for group in groups.values()]


def _group(units: Sequence[UnitStatus], failures: Mapping[str, Failure]) -> UnitsExplained:
    first = units[0]
    return UnitsExplained(
        names=tuple(unit.name for unit in units),
        state=first.state.value,
        reason=first.reason,
        message=first.message,
        since=min((unit.since for unit in units if unit.since is not None), default=None),
        not_before=first.not_before,
        slice=first.slice,
        restarts=first.restarts,
        attempt=first.attempt,
        last_failure=failures.get(first.name),
    )


def _last_failures(units: Iterable[UnitStatus], events: Iterable[Obj]) -> dict[str, Failure]:
    """The last failure of each unit from its status. A later Event replaces it if it tells of an end that was no failure, such as a lost
    node, or if status has no words for the failure."""
    failures = {unit.name: failure for unit in units if (failure := _recorded(unit)) is not None}
    names = {unit.name for unit in units}
    for kind, name, end in _ends(events):
        at, known = end.at, failures.get(name)
        if name not in names or at is None or (known is not None and known.at is not None and at < int(known.at)):
            continue  # Events have whole seconds
        if known is None or not known.reason or kind is AttemptEnd.OTHER_END:
            failed = known.attempt if known is not None and kind is AttemptEnd.FAILURE else 0
            failures[name] = Failure(at, end.reason, end.message, failed)
    return failures


def _ends(events: Iterable[Obj]) -> Iterator[tuple[AttemptEnd, str, Failure]]:
    """Yield the ends of attempts that Events tell about, each with its kind and the unit's name."""
    for event in events:
        reason, marks = str(event.get("reason") or ""), printable(event["metadata"].get("annotations") or {})
        name, message, kind = marks.get(LABEL_UNIT), marks.get(ANNOTATION_SAID), attempt_end_of(reason)
        if kind is not AttemptEnd.NO_END and name and message:
            yield kind, str(name), Failure(_moment(event), reason, str(message), 0)


def ends(units: Iterable[UnitStatus], events: Iterable[Obj]) -> list[tuple[str, Failure]]:
    """How attempts ended, with the unit's name, the newest first: from Events, or for a unit without Events from its status."""
    attempt_ends = [(name, end) for _, name, end in _ends(events)]
    with_events = {name for name, _ in attempt_ends}
    attempt_ends += [(unit.name, known) for unit in units if unit.name not in with_events and (known := _recorded(unit)) is not None]
    return sorted(attempt_ends, key=lambda item: (-(item[1].at or 0.0), item[0]))


def _recorded(unit: UnitStatus) -> Failure | None:
    """The last failure in the unit's status, or None. If status had no room for the words, only time and attempt are known."""
    attempt = unit.failed_attempt or 0
    if not attempt and not unit.failures:
        return None
    at = unit.since if unit.state is UnitState.FAILED else None
    if unit.failures:
        at = unit.failures[-1]
    reason, message = read_last_failure(unit.last_failure or "")
    if not reason and unit.state in (UnitState.BACKING_OFF, UnitState.FAILED):
        reason, message = unit.reason, unit.message
    return Failure(at, reason, message, attempt)


def _moment(event: Mapping[str, Any]) -> float | None:
    text = event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")
    if not isinstance(text, str):
        return None
    try:
        return parse_timestamp(text)
    except ValueError:
        return None
