"""`kubectl diloco retry`: raise spec.retry of a failed job, or of one that gave units up, and wait for the effect.

See docs/decisions/0052-drain-and-retry.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.durations import format_duration
from diloco_operator.api.status import UnitState
from diloco_operator.kube.client import Client, Obj

from diloco_cli.cluster import CommandError
from diloco_cli.jobs import change_job, find_job, reference, wait_until
from diloco_cli.kubectl.suspension import foreign_manager_note, wait_training
from diloco_cli.view_model import JobView

type Emit = Callable[[str], None]


class Retry(NamedTuple):
    """A retry that the operator has been asked for."""

    number: int
    units: tuple[str, ...]
    """Units that were given up in a job that trains on. Empty if the job has failed."""


async def retry_job(client: Client, namespace: str, name: str, emit: Emit) -> Retry:
    """Raise spec.retry by one, unless a retry is pending already, and emit a line. Raises `CommandError` if nothing of the job has
    failed."""

    def raised(job: Obj) -> Obj | None:
        requested, acted = _retries(job)
        _what_starts(JobView.of(job), requested > acted)  # raises if there is nothing to retry
        return None if requested > acted else {"spec": {"retry": acted + 1}}

    before = await change_job(client, namespace, name, raised)
    requested, acted = _retries(before)
    view = JobView.of(before)
    what, units = _what_starts(view, requested > acted), () if view.over else _given_up(view)
    if requested > acted:
        emit(f"{reference(name)}: retry {requested} is asked for already: {what}")
        return Retry(requested, units)
    emit(f"{reference(name)}: retry {acted + 1}: {what}")
    if note := foreign_manager_note(before):
        emit(note)
    return Retry(acted + 1, units)


def _retries(job: Obj) -> tuple[int, int]:
    """(the retry that spec asks for, the one that the operator has acted on)."""
    return int(job["spec"].get("retry") or 0), int((job.get("status") or {}).get("retry") or 0)


def _what_starts(view: JobView, due: bool) -> str:
    """What a retry of this job does. Raises `CommandError` if there is nothing to retry. `due` says that a retry is pending already."""
    if view.complete:
        progress = view.status.progress
        ended_by_budget = progress.token_budget is not None and progress.tokens >= progress.token_budget
        more = f"tokens above {progress.tokens}" if ended_by_budget else f"steps above {progress.steps}"
        raise CommandError(f'job "{view.name}" is complete; to train on, raise spec.training.{more}')
    if view.holds(ConditionType.FAILED):
        step = view.status.model.step if view.status.model is not None else None
        where = "from the beginning" if step is None and not view.status.progress.step else "from its last snapshot"
        return f"the job starts again {where}" + (f", of outer step {step}" if step is not None else "")
    if lost := _given_up(view):
        return f"{', '.join(lost)} {'starts' if len(lost) == 1 else 'start'} again"
    if due:
        return "the operator has not acted on it yet"
    parts = [part.name for part in view.status.parts or () if part.units or part.state]
    elsewhere = f" here. Units of a part are retried in its cluster ({', '.join(parts)})" if parts else ""
    raise CommandError(f'job "{view.name}" has not failed, and none of its units was given up: there is nothing to retry{elsewhere}')


def _given_up(view: JobView) -> tuple[str, ...]:
    return tuple(unit.name for unit in view.status.units if unit.state is UnitState.FAILED)


async def wait_retried(client: Client, namespace: str, name: str, emit: Emit, retry: Retry, *, seconds: float) -> None:
    """Wait until the operator has acted on this retry, the units train, and the job trains. `seconds` is the time for all of this."""
    deadline = asyncio.get_running_loop().time() + seconds

    def units_train(view: JobView) -> bool:
        if (view.status.retry or 0) < retry.number:
            return False
        units = {unit.name: unit for unit in view.status.units if unit.name in retry.units}
        if lost := next((unit for unit in units.values() if unit.state is UnitState.FAILED), None):
            raise CommandError(f'unit {lost.name} of job "{name}" failed again: {lost.message}')
        return view.over or all(unit.state in (UnitState.TRAINING, UnitState.COMPLETED) for unit in units.values())

    if await wait_until(client, namespace, name, units_train, seconds=seconds) is None:
        view = JobView.of(await find_job(client, namespace, name))
        waits = "; ".join(f"{unit.name} is {unit.state}: {unit.message}" for unit in view.status.units if unit.name in retry.units)
        why = waits if (view.status.retry or 0) >= retry.number else view.missing_condition()
        raise CommandError(f'job "{name}" has not started again after {format_duration(seconds)}: {why}')
    await wait_training(client, namespace, name, emit, seconds=seconds, deadline=deadline)
