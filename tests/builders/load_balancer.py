"""What stands before a syncer for learners of other clusters: an address by which they find it, and a plain process that does."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from builders.child_processes import Launcher
from builders.control_plane import ControlPlane
from builders.jobs import Obj
from builders.local_jobs import PROGRAM
from diloco import contract
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


class LoadBalancer:
    """What a cloud puts before the syncer: an address of its own, from which bytes go to the syncer's pod and back. `target`: where that is
    now; None: no pod has an address, and connections are closed."""

    def __init__(self, target: Callable[[], str | None]) -> None:
        self._target = target
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.2", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in [self._listener, *self._sockets]:
            _end(each)

    def cut(self) -> None:
        """End all connections, and let none through until `mend`."""
        self._cut = True
        for each in [*self._sockets]:
            _end(each)

    def mend(self) -> None:
        self._cut = False

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(near)
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        try:
            host = self._target() if not self._cut else None
            far = socket.create_connection((host, contract.SYNCER_PORT)) if host is not None else None
        except OSError:  # its program does not listen yet, or not any more
            far = None
        if far is None:
            near.close()
            return
        self._sockets.append(far)
        for source, drain in ((near, far), (far, near)):
            threading.Thread(target=self._pass, args=(source, drain), daemon=True).start()

    def _pass(self, source: socket.socket, drain: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                drain.sendall(piece)
        for each in (source, drain):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@contextlib.contextmanager
def load_balancer(target: Callable[[], str | None]) -> Iterator[LoadBalancer]:
    made = LoadBalancer(target)
    try:
        yield made
    finally:
        made.close()


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
