"""What stands before a syncer for learners of other clusters: an address by which they find it, and a plain process that does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from builders.child_processes import Launcher
from builders.control_plane import ControlPlane
from builders.jobs import Obj
from builders.local_jobs import PROGRAM
from diloco import contract
from diloco_local.links import Link, Links
from diloco_operator.api.names import ANNOTATION_ADDRESS, COMPONENT_SYNCER, LABEL_COMPONENT, LABEL_JOB

LAUNCH = str(Path(sys.executable).parent / "diloco-launch")


def syncer_of(plane: ControlPlane, job: str) -> Callable[[], str | None]:
    """Where the syncer is, as a cloud follows the endpoints of a Service: while the pod is made anew there is none, and then it has no
    address yet."""
    labels = f"{LABEL_JOB}={job},{LABEL_COMPONENT}={COMPONENT_SYNCER}"

    def find() -> str | None:
        listed = plane.request("GET", f"/api/v1/namespaces/default/pods?labelSelector={labels}")["items"]
        found = (pod["metadata"].get("annotations", {}).get(ANNOTATION_ADDRESS) for pod in listed)
        return next((str(address) for address in found if address), None)

    return find


@contextlib.contextmanager
def load_balancer(pod: Callable[[], str | None]) -> Iterator[tuple[str, Link]]:
    """What a cloud puts before the syncer: an address of its own, and the link from there to the pod."""

    def target() -> str | None:
        host = pod()
        return None if host is None else f"{host}:{contract.SYNCER_PORT}"

    with Links() as links:
        link = links.add()
        yield link.relay(target, "127.0.0.2:0"), link


@contextlib.contextmanager
def a_plain_process(bundle: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program on a machine of no cluster: nothing but the bundle says that there is a job. What it writes is in `<bundle>.log`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DILOCO_", "KUBE"))}
    command = [LAUNCH, "--bundle", str(bundle), sys.executable, str(PROGRAM)]
    launcher = Launcher()

    def begin(prepare: Callable[[], None]) -> subprocess.Popen[bytes]:
        with bundle.with_suffix(".log").open("wb") as log:
            return subprocess.Popen(command, env={**clean, **environment}, stdout=log, stderr=log, preexec_fn=prepare)

    process = launcher.start(begin)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        launcher.close()


def check_tokens(plane: ControlPlane, job: Obj, units: Sequence[str], finisher: str) -> None:
    """Each unit has trained a part, the learner that ended the job perhaps, and every token is of one of them. `plane`: of the syncer."""
    pod = plane.request("GET", "/api/v1/namespaces/default/pods/quad-syncer")
    [container] = pod["status"]["containerStatuses"]
    result = contract.Result.model_validate_json(container["state"]["terminated"]["message"])
    tokens = {unit.unit: unit.tokens for unit in result.units}
    assert set(tokens) == {*units, finisher}
    assert min(tokens[unit] for unit in units) > 0
    assert sum(tokens.values()) == result.tokens == job["status"]["progress"]["tokens"]
