"""A real Prometheus beside a test. It ends with the process that started it.

See docs/decisions/0274-dashboard.md.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from builders.child_processes import Launcher
from builders.control_plane import PROGRAMS, provide_programs
from builders.ports import held_port

WAIT_SECONDS = 180.0
"""How long anything is waited for. A limit for defects, not an expectation."""


def promtool(*args: str) -> subprocess.CompletedProcess[str]:
    """`promtool ARGS`."""
    provide_programs(("promtool",))
    return subprocess.run([str(PROGRAMS / "promtool"), *args], capture_output=True, text=True, check=False)


class Prometheus:
    """What it answers."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **query: str) -> Any:
        """The data of an answer."""
        with urllib.request.urlopen(f"{self._url}{path}?{urllib.parse.urlencode(query)}", timeout=WAIT_SECONDS) as answer:
            return json.load(answer)["data"]

    def series(self, expression: str) -> list[dict[str, str]]:
        """The labels of each series that the expression has now."""
        return [each["metric"] for each in self.get("/api/v1/query", query=expression)["result"]]

    def wait_for(self, holds: Callable[[], object], what: str) -> None:
        """Until it holds; the last answer that was none is in the message."""
        until = time.monotonic() + WAIT_SECONDS
        while not self._holds(holds):
            assert time.monotonic() < until, f"waited in vain for {what}"
            time.sleep(0.2)

    @staticmethod
    def _holds(holds: Callable[[], object]) -> bool:
        try:
            return bool(holds())
        except OSError:  # it starts yet
            return False


@contextmanager
def a_prometheus(folder: Path, target: str, rules: Path) -> Iterator[Prometheus]:
    """One that reads the metrics at `target` (host:port) each second, as the chart's ServiceMonitor says, and evaluates the rules."""
    provide_programs(("prometheus",))
    scrape = {"job_name": "diloco-operator", "honor_labels": True, "static_configs": [{"targets": [target]}]}
    intervals = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = folder / "prometheus.yaml"
    config.write_text(yaml.safe_dump({"global": intervals, "rule_files": [str(rules)], "scrape_configs": [scrape]}))
    launcher, port = Launcher(), held_port()
    command = [
        str(PROGRAMS / "prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'series'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip

    def begin(prepare: Callable[[], None]) -> subprocess.Popen[bytes]:
        with (folder / "prometheus.log").open("wb") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=prepare)

    process = launcher.start(begin)
    try:
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()
        launcher.close()
