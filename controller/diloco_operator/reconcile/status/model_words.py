"""Where the model of a job that is over is, and how long it stays there, in words. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from diloco_operator.api.spec import Retain
from diloco_operator.kube.timestamps import format_timestamp


def claim_fate(retain: Retain, wanted: Retain, refused: str, deleted_at: float | None) -> str:
    """Say what happens to the job's claim when the job is deleted.

    Args:
        retain: what the claim says
        wanted: what the spec says
        refused: why the API server rejects the change of the claim, "" if it does not
        deleted_at: when the operator deletes the job, None if it does not
    """
    why = f"syncer.storage.retain: {wanted.value}"
    if wanted is not retain:
        why += f", which is not in effect yet{': ' + refused if refused else ''}"
    when = f" at {format_timestamp(deleted_at)} (ttlSecondsAfterFinished)" if deleted_at is not None else ""
    if retain is Retain.KEEP:
        return f"the claim stays when the job is deleted{when} ({why})"
    return f"the claim is deleted with the job{when} ({why})"


def no_snapshot(claim: str, folder: str, fate: str) -> str:
    """`folder`: the folder that stands for the claim under `diloco up`, "" in a cluster."""
    return f"No snapshot is known in {folder}" if folder else f"No snapshot is known in claim {claim}; {fate}"


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """Where the snapshot of outer step `step` is."""

    step: int
    claim: str
    folder: str
    """The folder that stands for the claim under `diloco up`, "" in a cluster."""
    path: str
    """Below the folder or in the claim, "" if it is not known."""
    format: str
    copy: str
    """The URI of its copy in a bucket, "" if there is none."""
    not_copied_to: str
    """The URI of the bucket that should have it but does not, "" if none should."""


def model_place(location: ModelLocation, fate: str, *, complete: bool) -> str:
    """Say where the model of a complete job is, or the last snapshot of a failed one. `fate`: see `claim_fate`."""
    folder, path = location.folder, location.path
    begin = "The model is in" if complete else f"The last snapshot, of outer step {location.step}, is in"
    place = f"{folder}/{path}".rstrip("/") if folder else f"claim {location.claim}{f', {path}' if path else ''}"
    text = f"{begin} {place} ({location.format})"
    if location.copy:
        text += f", and in {location.copy}"
    elif location.not_copied_to:
        text += f", and has not been copied to {location.not_copied_to}"
    if folder:
        return f"{text}, and stays there until you delete it"
    return f"{text}; {fate}{'; the copy stays' if location.copy else ''}"


def ended(why: str, place: str) -> str:
    return f"{why.rstrip('.')}. {place}"
