"""Where the model is: `status.model`, and the sentence about it in the message of a job that is over. Pure.

The claim itself has what happens to it when the job is deleted. The sentence follows the claim and the spec as long as the job exists.

See docs/decisions/0139-model-in-and-out.md.
See docs/decisions/0138-job-state.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diloco.contract import Result, remote_snapshots

from diloco_operator.api import names
from diloco_operator.api.conditions import TERMINAL, ConditionType
from diloco_operator.api.spec import Retain
from diloco_operator.kube.fields import clip
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp
from diloco_operator.reconcile.children import home_words
from diloco_operator.reconcile.children.retention import Retention, is_claim_of, retained
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.status import model_words
from diloco_operator.reconcile.status.ending import JobEnd
from diloco_operator.reconcile.status.model_words import ModelLocation
from diloco_operator.report import Report, snapshot_path

FORMAT = "safetensors"

_FOLDER = 1000
"""Characters of a folder's name in a message."""


def model_status(context: ReconcileContext, result: Result | None = None) -> dict[str, Any] | None:
    """Return `status.model`: by the result of a complete job, by the syncer's report, or as it was. None if no snapshot is known yet, and
    in a part: the snapshots are at home."""
    if context.is_part:
        return None
    known = context.observed.job.status.get("model")
    report = context.report or _newer_report(context.observed.report, known)
    if result is not None and result.snapshot:
        model = _place(context, result.step, snapshot_path(result.snapshot), copied=result.snapshot_copied)
    elif report is not None and report.snapshot_t >= 0 and (result is None or report.snapshot_t == result.step):
        model = _place(context, report.snapshot_t, report.snapshot, copied=report.snapshot_copied)
    elif result is not None and (known is None or known.get("step") != result.step):
        # The result names no snapshot, but a syncer exits so only once it has written one.
        model = _place(context, result.step, "", copied=False)
    elif known is not None:
        model = {**known}
    else:
        return None
    model["retain"] = _retain(context).value
    return model


def _newer_report(report: Report | None, known: Mapping[str, Any] | None) -> Report | None:
    """Return the report if it names a newer snapshot than the one on record. An old report will do: a durable snapshot stays."""
    newer = report is not None and (known is None or report.snapshot_t > known.get("step", 0))
    return report if newer else None


def _retain(context: ReconcileContext) -> Retain:
    """What happens to the claim if the job is deleted now."""
    claim, job = context.observed.children.volume_claim, context.observed.job
    if claim is not None and is_claim_of(claim, job):
        return retained(claim, job)
    return Retain((job.status.get("model") or {}).get("retain", Retain.DELETE))


def _place(context: ReconcileContext, step: int, path: str, *, copied: bool) -> dict[str, Any]:
    job, uri = context.observed.job, context.spec.training.checkpoint.uri
    place: dict[str, Any] = {"step": step, "claim": names.volume_claim_name(job.name), "format": FORMAT}
    if path:
        place["path"] = path
    if path and copied and uri:
        place["uri"] = f"{remote_snapshots(uri, job.namespace, job.name, job.uid)}/{path.rpartition('/')[2]}"
    return place


def model_place(context: ReconcileContext, model: Mapping[str, Any] | None, retention: Retention, *, complete: bool, ended: float) -> str:
    """Say where the model of a complete job is, or the last snapshot of a failed one, and how long. `ended`: when the job ended."""
    if context.is_part:
        return home_words.AT_HOME
    claim, folder = names.volume_claim_name(context.observed.job.name), _folder(context)
    if model is None and not complete:
        return model_words.no_snapshot(claim, folder, _fate(context, _retain(context), retention, ended))
    model = model or {}  # the syncer left no readable result, but it exits with status 0 only when there is a model
    path, copy = model.get("path") or "", model.get("uri", "")
    location = ModelLocation(
        step=model.get("step", 0),
        claim=model.get("claim") or claim,
        folder=folder,
        path=path,
        format=model.get("format") or FORMAT,
        copy=copy,
        not_copied_to=(context.spec.training.checkpoint.uri or "") if path and not copy else "",
    )
    fate = _fate(context, Retain(model.get("retain", Retain.DELETE)), retention, ended)
    return model_words.model_place(location, fate, complete=complete)


def _folder(context: ReconcileContext) -> str:
    """The folder of this machine that stands for the job's claim under `diloco up`; "" in a cluster."""
    claim = context.observed.children.volume_claim
    return clip(claim.folder, _FOLDER) if claim is not None and is_claim_of(claim, context.observed.job) else ""


def _fate(context: ReconcileContext, retain: Retain, retention: Retention, ended: float) -> str:
    ttl = context.spec.ttl_seconds_after_finished
    return model_words.claim_fate(retain, context.spec.syncer.storage.retain, retention.refused, ended + ttl if ttl is not None else None)


def with_model(context: ReconcileContext, end: JobEnd, retention: Retention) -> str:
    """Say how the job ends now, and where its model is."""
    ended = parse_timestamp(format_timestamp(context.now))  # as lastTransitionTime will say it
    place = model_place(context, model_status(context, end.result), retention, complete=end.complete, ended=ended)
    return model_words.ended(end.why, place)


def ended_status(context: ReconcileContext, retention: Retention) -> dict[str, Any]:
    """Return the status of a job that is over. What happens to the claim, and when, may have changed since."""
    status, model = context.observed.job.status, model_status(context)
    return {
        **status,
        "observedGeneration": context.observed.job.generation,
        **({"model": model} if model is not None else {}),
        "conditions": [_restated(context, model, retention, condition) for condition in status.get("conditions") or ()],
    }


def _restated(
    context: ReconcileContext, model: Mapping[str, Any] | None, retention: Retention, condition: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the condition. If it states the job's end, its message says anew where the model is; how the job ended stays."""
    ended_with = context.observed.job.status.get("endedWith")
    if condition["type"] not in TERMINAL or condition["status"] != "True" or ended_with is None:
        return dict(condition)
    complete = condition["type"] == ConditionType.COMPLETE
    place = model_place(context, model, retention, complete=complete, ended=parse_timestamp(condition["lastTransitionTime"]))
    return {**condition, "message": model_words.ended(ended_with, place)}
