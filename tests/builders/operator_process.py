"""`diloco-operator run` as a process of its own, against a real API server. It ends with the process that started it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builders.child_processes import Launcher

WAIT_SECONDS = 180.0
"""How long anything is waited for. A limit for defects, not an expectation."""
PATIENT = ("--lease-duration", "60s", "--renew-deadline", "50s")
"""Unless options say otherwise: a leader that a busy machine keeps from renewing its lease ends, and here nothing starts it again."""
OPERATOR = ("-m", "diloco_operator.program.main")
"""What Python runs."""
DEFAULT = ("--lease-duration", "15s", "--renew-deadline", "10s")
"""The operator's own. For tests in which one follows another that was killed, or loses its lease."""


class OperatorReplica:
    """One replica. `name` is for its files."""

    def __init__(
        self,
        folder: Path,
        name: str,
        kubeconfig: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = OPERATOR,
    ) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        command = [
            *(sys.executable, *program, "run", "--kubeconfig", str(kubeconfig)),
            *("--metrics-address", "127.0.0.1:0", "--health-address", "127.0.0.1:0", "--leader-elect-namespace", "default"),
            *(*PATIENT, *options),
        ]
        self._launcher = Launcher()
        self._process = self._launcher.start(lambda prepare: self._start(command, environment or {}, prepare))
        self._addresses: dict[str, str] = {}

    def _start(self, command: Sequence[str], environment: Mapping[str, str], prepare: Callable[[], None]) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            env = {**os.environ, **environment}
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, preexec_fn=prepare)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit status."""
        return self._process.wait(WAIT_SECONDS)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._launcher.close()

    # --- what it says ---
    def when_said(self, pattern: str) -> str:
        """The time of the first such message; times compare as text."""
        return next(str(line["time"]) for line in self.lines() if re.search(pattern, line["msg"]))

    def lines(self) -> list[dict[str, Any]]:
        """Its log so far, each line an object; whatever is none is under `text`."""
        found = []
        for line in self._log.read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"msg": line, "text": True})
        return found

    def said(self, pattern: str) -> re.Match[str] | None:
        """The first message of its log that matches."""
        return next((match for line in self.lines() if (match := re.search(pattern, line["msg"]))), None)

    def wait_said(self, pattern: str) -> re.Match[str]:
        wait_for(lambda: self.said(pattern) is not None, f"{self.name} to say {pattern!r}", self)
        match = self.said(pattern)
        assert match is not None
        return match

    @property
    def leads(self) -> bool:
        return self.said("^leading:") is not None

    def wait_leads(self) -> None:
        wait_for(lambda: self.leads, f"{self.name} to lead", self)

    @property
    def identity(self) -> str:
        """As the Lease names it."""
        return self.wait_said(r"^waiting for the lease \S+ as (\S+)")[1]

    # --- what it serves ---
    def address(self, path: str) -> str:
        """Where an endpoint is served, host:port."""
        if path not in self._addresses:
            self._addresses[path] = self.wait_said(rf"^serving .*{re.escape(path)}.* at (\S+)")[1]
        return self._addresses[path]

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of an endpoint."""
        try:
            with urllib.request.urlopen(f"http://{self.address(path)}{path}", timeout=WAIT_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def scrape(self, token: str) -> int:
        """The status of a request for metrics over TLS with this bearer token; "": with none."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"https://{self.address('/metrics')}/metrics", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_SECONDS, context=ssl._create_unverified_context()) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def wait_ready(self) -> None:
        wait_for(lambda: self.get("/readyz")[0] == 200, f"{self.name} to be ready", self)

    def metric(self, series_name: str, /, **labels: str) -> float | None:
        """The value of one series of /metrics; None: there is none."""
        return series(self.get("/metrics")[1]).get((series_name, frozenset(labels.items())))

    def total(self, series_name: str, /, **labels: str) -> float:
        """The sum of the series of this name that have these labels, whatever others they have."""
        found = series(self.get("/metrics")[1]).items()
        return sum(value for (name, has), value in found if name == series_name and labels.items() <= dict(has).items())

    @property
    def writes(self) -> int:
        """Requests that changed something, or tried to."""
        return int(sum(self.total("rest_client_requests_total", method=method) for method in ("POST", "PUT", "PATCH", "DELETE")))

    @property
    def resident_mib(self) -> float:
        """Its memory now."""
        [line] = [line for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) / 1024


def series(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Prometheus' text format: (name, labels) to value."""
    found = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line):
            labels = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or "")
            found[match[1], frozenset(labels)] = float(match[3])
    return found


def wait_for(holds: Callable[[], object], what: str, *replicas: OperatorReplica) -> None:
    """Wait until `holds()`; fails with the replicas' last lines."""
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > end:
            logs = "\n".join(f"--- {replica.name}\n" + "\n".join(str(line) for line in replica.lines()[-20:]) for replica in replicas)
            raise AssertionError(f"waited {WAIT_SECONDS:.0f} s for {what} in vain\n{logs}")
        time.sleep(0.05)


@contextlib.contextmanager
def replica(
    folder: Path,
    name: str,
    kubeconfig: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = OPERATOR,
) -> Iterator[OperatorReplica]:
    """A replica, for as long as the context is open."""
    found = OperatorReplica(folder, name, kubeconfig, *options, environment=environment, program=program)
    try:
        yield found
    finally:
        found.close()


class TcpProxy:
    """Passes bytes between one replica and the API server, until it is cut: then it loses everything without an error on either side."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._open.clear()

    def close(self) -> None:
        for each in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                if not self._open.is_set():
                    continue  # it is accepted, and hears nothing
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets.append(far)
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while piece := source.recv(65536):
                if not self._open.is_set():
                    return
                target.sendall(piece)
        except OSError:
            pass
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
