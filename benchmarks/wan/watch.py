"""Writes down what a syncer reports, from inside its region: `python -m benchmarks.wan.watch JOB_FILE TLS_DIR ADDRESS REPORTS`.

REPORTS gets a JSON line for each report: `at` (seconds of CLOCK_MONOTONIC), `t`, `tokens`, `merges` (those with a contribution, so far) and
the `contributions` of each unit. The program ends with the process that started it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from builders.certificates import channel
from builders.wire import watch
from diloco.contract import JobFile
from diloco.protocol.diloco_pb2 import WatchRequest
from diloco.protocol.tls import TlsFiles

INTERVAL = 0.1
"""Seconds between two reports."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("tls", type=Path)
    parser.add_argument("address")
    parser.add_argument("reports", type=Path)
    given = parser.parse_args()
    job = JobFile.model_validate_json(given.job.read_bytes())
    with (
        given.reports.open("w", encoding="ascii", buffering=1) as reports,
        channel(given.address, TlsFiles(given.tls), job) as syncer,
    ):
        merges = 0
        for report in watch(syncer)(WatchRequest(interval_seconds=INTERVAL, entries=True), wait_for_ready=True):
            merges += sum(bool(entry.merge.units) for entry in report.entries)
            units = {unit.unit: unit.contributions for unit in report.units}
            line = {"at": time.monotonic(), "t": report.t, "tokens": report.tokens, "merges": merges, "contributions": units}
            reports.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
