"""Tells whether a run on this machine goes on from a snapshot that another script has trained.

See docs/decisions/0258-submit-and-client.md.
"""

from __future__ import annotations

from pathlib import Path

from diloco.durable import write_json
from diloco.export.places import ExportError, find_snapshot
from diloco_local.state_dir import claim_folder
from diloco_operator.api.names import volume_claim_name

from diloco_cli.cluster import CommandError
from diloco_cli.diloco.submission import Submission, digest_of


def of_another_script(state_dir: Path, job: Submission) -> str:
    """A note if the job goes on from a snapshot of another script, else "". Later runs are compared with this script. Raises CommandError
    if the state directory cannot be written."""
    assert not isinstance(job.script, str), "the script is a file here"
    now, known = digest_of(job.script), state_dir / "scripts" / f"{job.namespace}-{job.name}.json"
    try:
        before = known.read_text(encoding="utf-8").strip('"') if known.is_file() else now
        write_json(known, now)
    except OSError as error:
        raise CommandError(f"the state directory {state_dir} cannot be used: {error.strerror or error}") from error
    if before == now:
        return ""
    try:
        snapshot = find_snapshot(str(claim_folder(state_dir, job.namespace, volume_claim_name(job.name))))
    except ExportError:
        return ""
    return (
        f"note: {job.name} goes on from outer step {snapshot.t}, of a snapshot of another script: its SHA-256 was {before[:12]}… and is "
        f"{now[:12]}…. To begin anew give --name or --state-dir for another one"
    )
