"""The hosts of a unit as its pods show them, with their ranks, and for which hosts the others wait. Pure.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diloco_operator.api.names import LEARNER_CONTAINER
from diloco_operator.kube.client import Obj
from diloco_operator.kube.fields import fields, moment, objects, text, whole_number

from diloco_cli.unit_pods import UnitPod, of_newest_attempt, owned_by

LOG_LINES = 200
"""Lines that are shown of the end of a log."""
LOG_BYTES = 64 << 10
"""Most bytes of these lines that are shown."""


@dataclass(frozen=True, slots=True)
class Host:
    """A pod of the newest attempt that has pods."""

    index: int
    pod: str
    node: str
    attempt: int
    state: str
    """What the kubelet says of the training container: `Running`, or why it does not run."""
    message: str
    runs: bool
    ended: bool
    restarts: int
    since: float | None
    """When it began to run or ended, in seconds since the epoch. None if neither."""

    @property
    def starts(self) -> bool:
        """Whether the host has still to begin."""
        return not self.runs and not self.ended


@dataclass(frozen=True, slots=True)
class UnitPods:
    """What the page of a unit shows of its pods."""

    hosts: Sequence[Host] = ()
    """Hosts, sorted by index."""
    shown: int = 0
    """Index of the host whose log is shown."""
    log: str = ""
    note: str = ""
    """Why there is no log or no pod, or what the reader should know about the log."""


def hosts_of(pods: Iterable[Obj], job: str) -> list[Host]:
    """Hosts of the newest attempt, sorted by index. `job` and errors are as for `owned_by`."""
    owned = owned_by(job, pods)
    return [_host(pod, owned[pod]) for pod in of_newest_attempt(list(owned))]


def _host(pod: UnitPod, obj: Obj) -> Host:
    status = fields(obj, "status")
    container = next((entry for entry in objects(status, "containerStatuses") if entry.get("name") == LEARNER_CONTAINER), {})
    now = fields(container, "state")
    running, ended, waiting = (fields(now, kind) for kind in ("running", "terminated", "waiting"))
    state, message, since = text(status, "phase") or "Pending", text(status, "message"), None
    if running:
        state, since = "Running", moment(running, "startedAt")
    elif ended:
        state = f"{text(ended, 'reason') or 'Ended'}, status {whole_number(ended, 'exitCode')}"
        message, since = text(ended, "message") or message, moment(ended, "finishedAt")
    elif waiting:
        state, message = text(waiting, "reason") or state, text(waiting, "message") or message
    elif not pod.node:
        unplaced = next((entry for entry in objects(status, "conditions") if entry.get("type") == "PodScheduled"), {})
        state, message = text(unplaced, "reason") or state, text(unplaced, "message") or message
    runs = not pod.ended and (bool(running) or (not now and state == "Running"))
    leaves = ", is being deleted" if "deletionTimestamp" in obj["metadata"] else ""
    return Host(
        pod.host, pod.name, pod.node, pod.attempt, f"{state}{leaves}", message, runs, pod.ended or bool(ended),
        whole_number(container, "restartCount"), since,
    )  # fmt: skip


def waited_for(hosts: Sequence[Host]) -> list[Host]:
    """Hosts that have still to begin while others run, and wait: a unit trains once all its ranks have met."""
    return [host for host in hosts if host.starts] if any(host.runs for host in hosts) else []


def ranks_text(host: int, per_host: int) -> str:
    """Numbers of the ranks on a host: `0`, or `8 to 15`."""
    first = host * per_host
    return str(first) if per_host == 1 else f"{first} to {first + per_host - 1}"


def end_of(log: bytes) -> str:
    """The last lines of a log, whole ones."""
    lines = log.decode(errors="replace").splitlines()
    if len(log) >= LOG_BYTES and len(lines) > 1:
        lines = lines[1:]  # the log was cut at LOG_BYTES, so its first line may lack its beginning
    return "\n".join(lines[-LOG_LINES:])
