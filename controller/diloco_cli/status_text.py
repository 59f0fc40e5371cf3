"""Output of `kubectl diloco status` and `units` as text or JSON. Pure. Times are in seconds since the epoch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from diloco.wording import loss_text, plural
from diloco_operator.api.spec import Retain
from diloco_operator.api.state import JobState
from diloco_operator.api.status import HomeStatus, ModelStatus, Status, UnitStatus

from diloco_cli.curve import Paper, curve_lines
from diloco_cli.job_tables import (
    Table,
    cell_text,
    conditions_table,
    elsewhere_table,
    hosts_table,
    part_costs_table,
    parts_table,
    pools_table,
    units_table,
)
from diloco_cli.view_model import JobView, result, seconds_left
from diloco_cli.view_text import as_of, count, duration, goodput_lines, shortly

_GAP = "   "
_NOT_SEEN = (
    "The operator has not seen this job yet. Check that it runs (kubectl get pods -A -l app.kubernetes.io/name=diloco-operator) and that "
    "it watches namespace {}: watchNamespaces of its Helm release lists the namespaces, by default only the release's own."
)


def as_json(view: JobView) -> dict[str, Any]:
    """The job as JSON, with the names of the API."""
    status = view.status
    return {
        **result([view])[0],
        "suspend": view.suspend,
        "learners": status.learners.model_dump(mode="json", by_alias=True),
        "pools": [pool.model_dump(mode="json", by_alias=True) for pool in status.pools],
        **({"home": status.home.model_dump(mode="json", by_alias=True, exclude_none=True)} if status.home is not None else {}),
        "hosts": [host.model_dump(mode="json", by_alias=True) for host in status.hosts],
    }


def status_text(view: JobView, now: float, paper: Paper | None = None) -> str:
    """The whole report of a job: headline, figures, loss curve, conditions, units and pools. Without `paper` it has no curve."""
    status = view.status
    lines = [f"{view.name} in namespace {view.namespace}", f"  {headline(view)}"]
    if not status.conditions:
        return "\n".join(lines)
    lines += [f"  {_at_home(status.home, now)}"] if status.home is not None else []
    lines += [f"  {text}" for text in _figures(view, now)]
    curve = curve_lines(status.progress, paper.narrower(2)) if paper is not None else []
    lines += ["", *(f"  {line}" for line in curve)] if curve else []
    lines += ["", *lines_of(conditions_table(status.conditions), now)]
    lines += ["", *(all_units_lines(status, now) or ["no units yet"])]
    lines += ["", *lines_of(pools_table(status.pools), now)]
    if status.parts:
        lines += ["", *lines_of(parts_table(status.parts), now)]
        costs = part_costs_table(status.parts)
        lines += ["", *lines_of(costs, now)] if costs.rows else []
    if status.hosts:
        lines += ["", *lines_of(hosts_table(status.hosts), now)]
    return "\n".join(lines)


def _at_home(home: HomeStatus, now: float) -> str:
    heard = f"last heard {duration(max(0.0, now - home.last_heard))} ago" if home.last_heard is not None else "not heard yet"
    return f"part {home.part} of job {home.namespace}/{home.name} at home, {heard}" if home.name else f"a part of a job at home, {heard}"


def headline(view: JobView) -> str:
    """The state of the job in one sentence."""
    if view.state is None:
        return _NOT_SEEN.format(view.namespace)
    if view.suspend and not view.over and view.state is not JobState.SUSPENDED:
        return f"{view.state}, to be suspended: the operator has not seen spec.suspend yet"
    return f"{view.state}{view.reason_text}: {shortly(view.why())}"


def _figures(view: JobView, now: float) -> Iterable[str]:
    status = view.status
    learners, progress = status.learners, status.progress
    if progress.steps:
        figures = [f"step {progress.step} of {progress.steps} ({progress.step / progress.steps:.0%})"]
        figures += [f"loss {loss_text(progress.loss)}"] if progress.loss is not None else []
        figures += [f"held-out loss {loss_text(progress.held_out_loss, 5)}"] if progress.held_out_loss is not None else []
        figures += [f"cosine {progress.cosine:.2f}"] if progress.cosine is not None else []
        budget = f" of {count(progress.token_budget)}" if progress.token_budget is not None else ""
        figures += [f"{count(progress.tokens)}{budget} tokens"]
        if not view.over and not view.is_suspended:
            figures += [f"{count(progress.tokens_per_second)} tokens/s"]
        figures += [old] if (old := as_of(status, now)) else []
        left = seconds_left(view, now)
        figures += [f"about {duration(left)} left"] if left is not None and not view.suspend else []
        yield ", ".join(figures)
    if status.model is not None and not view.over:
        yield _snapshot(status.model)
    elif status.model is not None:  # the message of a job that is over already says where the model is
        what = "the model" if view.complete else "the parameters of the last snapshot"
        yield f"{what} as one file: kubectl diloco export {view.name} -n {view.namespace} -o model.safetensors"
    yield from goodput_lines(status)
    if not learners.max:  # the operator has not written these numbers yet
        return
    yield (
        f"{plural(learners.contributing, 'learner contributes', 'learners contribute')}, {learners.placed} placed, "
        f"{learners.desired} desired (min {learners.min}, max {learners.max})"
    )


def _snapshot(model: ModelStatus) -> str:
    fate = "deleted with the job" if model.retain is Retain.DELETE else "kept when the job is deleted"
    path = f", {model.path}" if model.path else ""
    copy = f", copied to {model.uri}" if model.uri else ""
    return f"newest snapshot: outer step {model.step}, in claim {model.claim}{path} ({model.format}){copy}; the claim is {fate}"


def units_lines(units: Sequence[UnitStatus], now: float, *, wide: bool = False) -> list[str]:
    """The table of units as lines. `wide` adds the totals of each unit."""
    return lines_of(units_table(units, wide=wide), now)


def units_text(status: Status, now: float, *, wide: bool = False) -> str:
    """What `units` prints. "" if there are no units."""
    lines, old = all_units_lines(status, now, wide=wide), as_of(status, now)
    return "\n".join([*lines, *(["", f"The figures are {old}."] if lines and old else [])])


def all_units_lines(status: Status, now: float, *, wide: bool = False) -> list[str]:
    """The tables of units: of this cluster, and of those elsewhere. Empty if there are none."""
    own, elsewhere = units_lines(status.units, now, wide=wide) if status.units else [], elsewhere_table(status)
    return [*own, *([""] if own and elsewhere.rows else []), *(lines_of(elsewhere, now) if elsewhere.rows else [])]


def lines_of(shown: Table, now: float) -> list[str]:
    """A table as lines with aligned columns."""
    return table(shown.head, ([cell_text(value, now) for value in row] for row in shown.rows))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Collection[str] = ()) -> list[str]:
    """Align columns as kubectl does, without truncating. Columns whose heading is in `numbers` are aligned to the right."""
    cells = [[" ".join(cell.split()) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [">" if name in numbers else "<" for name in header]
    return [_GAP.join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip() for row in cells]
