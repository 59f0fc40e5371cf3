"""Where the model of a job that is over is, and how long it stays there, in words. Pure."""

from __future__ import annotations

from diloco_operator.api.spec import Retain
from diloco_operator.kube.timestamps import format_timestamp


def claim_fate(retain: Retain, wanted: Retain, refused: str, deleted_at: float | None) -> str:
    """Say what happens to the job's claim when the job is deleted: `retain` by the claim, `wanted` by the spec. `refused`: why the API
    server rejects the change of the claim; "": it does not. `deleted_at`: when the job is deleted; None: a person does it."""
    why = f"syncer.storage.retain: {wanted.value}"
    if wanted is not retain:
        why += f", which is not in effect yet{': ' + refused if refused else ''}"
    when = f" at {format_timestamp(deleted_at)} (ttlSecondsAfterFinished)" if deleted_at is not None else ""
    if retain is Retain.KEEP:
        return f"the claim stays when the job is deleted{when} ({why})"
    return f"the claim is deleted with the job{when} ({why})"


def no_snapshot(claim: str, folder: str, fate: str) -> str:
    """Say that a failed job has none. `folder`: that the claim is on this machine; "": it is a claim of a cluster."""
    return f"No snapshot is known in {folder}" if folder else f"No snapshot is known in claim {claim}; {fate}"


def model_place(
    *, complete: bool, step: int, claim: str, folder: str, path: str, format: str, copy: str, not_copied_to: str, fate: str
) -> str:
    """Say where the model of a complete job is, or the last snapshot of a failed one. `folder`: that the claim is on this machine; "": it
    is a claim of a cluster. `path`: there; "": it is not known. `copy`: where a bucket has it; "": nowhere. `not_copied_to`: where it
    should be; "": nowhere."""
    begin = "The model is in" if complete else f"The last snapshot, of outer step {step}, is in"
    place = f"{folder}/{path}".rstrip("/") if folder else f"claim {claim}{f', {path}' if path else ''}"
    text = f"{begin} {place} ({format})"
    if copy:
        text += f", and in {copy}"
    elif not_copied_to:
        text += f", and has not been copied to {not_copied_to}"
    if folder:
        return f"{text}, and stays there until you delete it"
    return f"{text}; {fate}{'; the copy stays' if copy else ''}"


def ended(why: str, place: str) -> str:
    """Say of a job that is over how it ended and where its model is."""
    return f"{why.rstrip('.')}. {place}"
