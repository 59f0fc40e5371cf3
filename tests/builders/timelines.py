"""Timelines: what happens on a `Stage`, and what must be seen then, one row for each moment.

    test_schedule = timelines(
        unschedulable_pod_gives_its_slice_up=given(
            starting(),
            at(0, unschedulable(), unit(state="Starting")),
            at(29, deleted()),
            at(30, deleted("v5p-0-a1-0"), unit(state="Pending", reason="Unschedulable", failures=0)),
        ),
    )

Seconds count from the end of the scene. The steps of a row happen in order; a further row of the same second goes on with them. After an
event, or after time has passed, the operator reconciles until nothing is left to do: before the next expectation, and at the end of the
row. Where one reconcile decides, `one_reconcile` says so. Expectations of plans read all plans since that event or time. Events happen to
the first host of the newest attempt of v5p-0, unless they say otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from builders import pods
from builders.nodes import a_tpu_node
from builders.stage import Stage
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.plan import Plan
from diloco_operator.report import Report, UnitPhase

type Scene = Callable[[], Stage]
UNIT = "v5p-0"


@dataclass(frozen=True, slots=True)
class Event:
    act: Callable[[Stage], object]
    reconciles: bool = False
    """It is a reconcile itself: none follows before what is expected of it."""


@dataclass(frozen=True, slots=True)
class Expectation:
    what: str
    read: Callable[[Stage, Sequence[Plan]], object]
    """From the stage and the plans since something happened."""
    wanted: object

    def problem(self, stage: Stage, plans: Sequence[Plan]) -> str:
        """What is not as expected; "" if it is met."""
        found, wanted = self.read(stage, plans), self.wanted
        if found == wanted:
            return ""
        if isinstance(found, dict) and isinstance(wanted, dict) and found.keys() == wanted.keys():  # only what differs
            found, wanted = ({key: side[key] for key in side if found[key] != wanted[key]} for side in (found, wanted))
        return f"{self.what}: found {found!r}, expected {wanted!r}"


@dataclass(frozen=True, slots=True)
class Row:
    seconds: float
    steps: tuple[Event | Expectation, ...]


@dataclass(frozen=True, slots=True)
class Life:
    """The life of a unit, or of some."""

    scene: Scene
    rows: tuple[Row, ...]


def scene[**P](build: Callable[P, Stage]) -> Callable[P, Scene]:
    """Decorate what sets a scene: a table only names it, and the test sets it."""
    return lambda *args, **kwargs: functools.partial(build, *args, **kwargs)


def given(scene: Scene, *rows: Row) -> Life:
    return Life(scene, rows)


def at(seconds: float, *steps: Event | Expectation) -> Row:
    return Row(seconds, steps)


def timelines(**lives: Life) -> Callable[[Life], None]:
    """A test that plays each of them, with its name as id. Not a decorator: pytest quotes what decorates a test that fails."""

    @pytest.mark.parametrize("life", [pytest.param(life, id=name) for name, life in lives.items()])
    def test(life: Life) -> None:
        play(life.scene(), *life.rows)

    return test


def play(stage: Stage, *rows: Row) -> None:
    __tracebackhide__ = True
    began = stage.now
    due, before = False, len(stage.plans)
    for row in rows:
        if passed := began + row.seconds - stage.now:
            assert passed > 0, "rows stand in the order of time"
            stage.advance(passed)
            due, before = True, len(stage.plans)
        problem = ""
        try:
            for step in row.steps:
                if isinstance(step, Expectation):
                    if due:
                        stage.settle()
                        due = False
                    if problem := step.problem(stage, stage.plans[before:]):
                        break
                else:
                    if not step.reconciles:
                        before = len(stage.plans)
                    step.act(stage)
                    due = not step.reconciles
            if due:
                stage.settle()
                due = False
        except Exception as error:
            error.add_note(f"This was at {row.seconds:g} s.")
            raise
        if problem:
            raise AssertionError(f"at {row.seconds:g} s: {problem}")


# --- the operator -----------------------------------------------------------------------------------------------------
reconciled = Event(Stage.settle, reconciles=True)
one_reconcile = Event(Stage.step, reconciles=True)
one_plan = Event(Stage.reconcile_only, reconciles=True)
"""Plans, and carries nothing out."""
one_reconcile_that_dies = Event(lambda stage: stage.step(crash_after=1), reconciles=True)
"""After the first write, which is that of status when nothing is created."""
operator_restarts = Event(Stage.restart_operator)


def edits(**spec: Any) -> Event:
    return Event(lambda stage: stage.edit(**spec))


def edits_learners(**fields: Any) -> Event:
    return Event(lambda stage: stage.edit(learners={**stage.job["spec"]["learners"], **fields}))


def edits_pool(**fields: Any) -> Event:
    """Its first."""
    return Event(lambda stage: stage.edit(pools=[{**stage.job["spec"]["pools"][0], **fields}, *stage.job["spec"]["pools"][1:]]))


# --- scheduler and kubelets -------------------------------------------------------------------------------------------
def _to_pod(unit: str, host: int, change: Callable[[dict[str, Any], float], object]) -> Event:
    """`change` gets the pod and the present time."""
    return Event(lambda stage: change(stage.pod(unit, stage.unit(unit)["attempt"], host), stage.now))


def unschedulable(
    words: str = pods.NO_PLACE, reason: str = "Unschedulable", since: float | None = None, unit: str = UNIT, host: int = 0
) -> Event:
    """`since`: seconds from now, of the scheduler's condition, which has no time without it."""
    return _to_pod(unit, host, lambda pod, now: pods.is_unschedulable(pod, words, reason, None if since is None else now + since))


def claim_is_made(name: str) -> Event:
    """Of a template, for this entry of the pod's resourceClaims."""
    made = {"name": name, "resourceClaimName": f"{name}-1"}
    return _to_pod(UNIT, 0, lambda pod, now: pod["status"].update(resourceClaimStatuses=[made]))


def nominated(node: str) -> Event:
    """The scheduler preempts others on this node."""
    return _to_pod(UNIT, 0, lambda pod, now: pod["status"].update(nominatedNodeName=node))


def bound(skew: float = 0.0) -> Event:
    return _to_pod(UNIT, 0, lambda pod, now: pods.is_bound(pod, now + skew))


def has_network(skew: float = 0.0) -> Event:
    """`skew`: by how much the clock of its node is ahead."""
    return _to_pod(UNIT, 0, lambda pod, now: pods.has_network(pod, now + skew))


def waits(reason: str, message: str = "") -> Event:
    return _to_pod(UNIT, 0, lambda pod, now: pods.waits(pod, reason, message))


def init_container_runs() -> Event:
    return _to_pod(UNIT, 0, lambda pod, now: pods.init_container(pod, {"running": {"startedAt": format_timestamp(now)}}))


def init_container_ends(after: float) -> Event:
    """At a time of its node's clock, `after` seconds from now."""
    ended = {"exitCode": 0}
    return _to_pod(
        UNIT, 0, lambda pod, now: pods.init_container(pod, {"terminated": ended | {"finishedAt": format_timestamp(now + after)}})
    )


def runs(skew: float = 0.0, *, unit: str = UNIT, host: int = 0) -> Event:
    return _to_pod(unit, host, lambda pod, now: pods.starts(pod, now + skew))


def exits(code: int, *, unit: str = UNIT, host: int = 0, skew: float = 0.0, **how: str) -> Event:
    return _to_pod(unit, host, lambda pod, now: pods.exits(pod, code, now + skew, **how))


def failed_before(unit: str = UNIT) -> Event:
    """It has failed once, a minute ago: the next failure has the first pause."""
    return Event(lambda stage: stage.failed_before(unit))


def main_container_exits(code: int) -> Event:
    """While a sidecar runs on."""
    return _to_pod(UNIT, 0, lambda pod, now: pods.main_container_exits(pod, code, now))


def is_preempted() -> Event:
    return _to_pod(UNIT, 0, lambda pod, now: pods.is_disrupted(pod))


def is_ended_by_its_node(reason: str) -> Event:
    return _to_pod(UNIT, 0, lambda pod, now: pods.is_ended_by_its_node(pod, reason))


def is_deleted() -> Event:
    return _to_pod(UNIT, 0, pods.is_deleted)


pods_run = Event(Stage.kubelets_start)
"""All that are pending."""
deleted_pods_end = Event(Stage.kubelets_finish_deletions)


def pod_vanishes() -> Event:
    return Event(lambda stage: stage.pods.pop(f"bytes-lm-{UNIT}-a{stage.unit(UNIT)['attempt']}-0"))


# --- nodes ------------------------------------------------------------------------------------------------------------
def node(*names: str, **fields: Any) -> Event:
    """Nodes that are new or have changed, ready unless `fields` say otherwise."""

    def act(stage: Stage) -> None:
        for name in names:
            stage.set_node(a_tpu_node(name, **fields))

    return Event(act)


def not_ready(*names: str, **fields: Any) -> Event:
    """Their readiness is unknown, or, if `heard`, they say that they are not ready."""
    return Event(lambda stage: node(*names, ready=False, ready_since=format_timestamp(stage.now), **fields).act(stage))


def ready_again(*names: str, **fields: Any) -> Event:
    """Since now."""
    return Event(lambda stage: node(*names, ready_since=format_timestamp(stage.now), **fields).act(stage))


def lost(name: str) -> Event:
    return Event(lambda stage: stage.lose_node(name))


# --- the syncer -------------------------------------------------------------------------------------------------------
all_contribute = Event(Stage.all_contribute)
last_step_is_done = Event(lambda stage: stage.all_contribute(done=True, t=100))
syncer_restarts = Event(lambda stage: pods.starts(stage.syncer, stage.now))


def reported(phase: UnitPhase, **fields: Any) -> Event:
    """By the syncer, of the unit. `heard` and `alive`: seconds since it took a step, and since its process was heard from."""
    report = {{"heard": "seconds_since_heard", "alive": "seconds_since_alive"}.get(name, name): value for name, value in fields.items()}
    return Event(lambda stage: stage.syncer_says(UNIT, stage.unit(UNIT)["attempt"], phase, **report))


def report_ages(seconds: float) -> Event:
    """So long nothing comes from the syncer."""
    return Event(lambda stage: setattr(stage, "now", stage.now + seconds))


def _nobody(stage: Stage) -> None:
    stage.report = Report(received_at=stage.now, t=0, steps=100)


syncer_has_seen_nobody = Event(_nobody)
"""It serves, but no learner has joined."""


# --- what is expected -------------------------------------------------------------------------------------------------
class has:  # noqa: N801 -- reads as a word of a row
    """Equal to a text with all of these parts, which starts and ends with `start` and `end`."""

    def __init__(self, *parts: str, start: str = "", end: str = "") -> None:
        self.parts, self.start, self.end = parts, start, end

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        return other.startswith(self.start) and other.endswith(self.end) and all(part in other for part in self.parts)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "…".join(map(repr, (self.start, *self.parts, self.end)))


def unit(name: str = UNIT, /, **fields: Any) -> Expectation:
    """Fields of its status; None: it has no such field. Of `failures` the number."""

    def read(stage: Stage, plans: Sequence[Plan]) -> object:
        status = stage.unit(name)
        return {field: len(status.get(field, ())) if field == "failures" else status.get(field) for field in fields}

    return Expectation(f"unit {name}", read, fields)


def states(**by_unit: str) -> Expectation:
    """Expect these states, of all units; v5p_0 stands for v5p-0."""
    return Expectation("states", lambda stage, plans: stage.states(), {name.replace("_", "-"): state for name, state in by_unit.items()})


def condition(type: str, **fields: Any) -> Expectation:
    return Expectation(f"condition {type}", lambda stage, plans: {field: stage.condition(type)[field] for field in fields}, fields)


def created(*names: str) -> Expectation:
    """What the operator created, and nothing else, without the name of the job; no name: nothing at all."""
    return planned("created", lambda plans: _short(each.obj["metadata"]["name"] for plan in plans for each in plan.creates), [*names])


def deleted(*names: str) -> Expectation:
    """What it deleted, as `created`."""
    return planned("deleted", lambda plans: _short(each.name for plan in plans for each in plan.deletes), [*names])


def grace(seconds: int | None) -> Expectation:
    """Expect this grace of every deletion; None: as long as the pod says."""
    return planned("grace of the deletions", lambda plans: {each.grace_seconds for plan in plans for each in plan.deletes}, {seconds})


def learner_pods(*names: str) -> Expectation:
    return seen("learner pods", lambda stage: _short(stage.learner_pods()), [*names])


def _short(names: Iterable[str]) -> list[str]:
    return sorted(name.removeprefix("bytes-lm-") for name in names)


def suspected(*nodes: str) -> Expectation:
    """The hosts of status.hosts."""
    return seen("suspected hosts", lambda stage: [host["node"] for host in stage.status.get("hosts") or ()], [*nodes])


def next_reconcile_after(seconds: float) -> Expectation:
    return planned("seconds until the next reconcile", lambda plans: plans[-1].requeue_after, pytest.approx(seconds, abs=0.01))


def next_reconcile_within(seconds: float) -> Expectation:
    """And a millisecond."""
    return planned("reconciled in time", lambda plans: 0 < (plans[-1].requeue_after or 0) <= seconds + 0.001, True)


def reserves(*nodes: str) -> Expectation:
    return planned("reserved nodes", lambda plans: plans[-1].reservations.nodes, {*nodes})


def events(*wanted: tuple[str, str]) -> Expectation:
    """Type and reason of the Events."""
    return planned("events", lambda plans: [(event.type, event.reason) for plan in plans for event in plan.events], [*wanted])


def losses(*messages: str | has) -> Expectation:
    """Messages of the Events UnitLost."""
    return planned("losses", lambda plans: [e.message for plan in plans for e in plan.events if e.reason == "UnitLost"], [*messages])


def seen(what: str, read: Callable[[Stage], object], wanted: object) -> Expectation:
    """Anything else that can be read from the stage."""
    return Expectation(what, lambda stage, plans: read(stage), wanted)


def planned(what: str, read: Callable[[Sequence[Plan]], object], wanted: object) -> Expectation:
    """Anything else that can be read from the plans."""
    return Expectation(what, lambda stage, plans: read(plans), wanted)


nothing_left = planned("nothing is left to do", lambda plans: plans[-1].empty, True)
