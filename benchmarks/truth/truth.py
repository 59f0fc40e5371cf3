"""[simulator-truth] [scavenged-units] Real jobs with failures, uneven speeds and narrow links, beside the simulator's predictions.

`simulator-truth` is the largest difference, in points, between the goodput and merges per hour that were measured in three settings and the
predictions that were committed before the run; merges per hour count in percent of the measured ones. `scavenged-units` is the largest
relative error of 0.5 + 0.5 / (1 + x) for units that come and go.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.figure import Figure
from benchmarks.plots import plot
from benchmarks.truth import scavenged
from benchmarks.truth.chart import plot_scavenged, plot_truth
from benchmarks.truth.predictions import FILE, calibrated, from_json, predicted, result_as_json
from benchmarks.truth.rig import Measured, TruthRig
from benchmarks.truth.settings import CALIBRATION, SEED, SETTINGS, Setting
from benchmarks.truth.simulated import JobResult
from benchmarks.wan.network import WideNetwork

LIMIT: Final = 3.0
"""Points."""
_SMOKE_SECONDS: Final = 2.0


def measure(*, smoke: bool) -> Iterator[Figure]:
    committed = from_json(json.loads(FILE.read_text(encoding="ascii")))
    settings = [_smaller(setting) for setting in SETTINGS[-1:]] if smoke else SETTINGS
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        own, load = calibrated(_smaller(CALIBRATION) if smoke else CALIBRATION)
        today = predicted(own, load)
        measurements = {setting.name: _run(folder, setting) for setting in settings}
        results = {name: measured.result for name, measured in measurements.items()}
        errors = {name: points(committed.settings[name], each) for name, each in results.items()}
        plot("simulator-truth", partial(plot_truth, committed.settings, results), smoke=smoke)
        details: dict[str, Any] = {
            "errors": {name: rounded(each) for name, each in errors.items()},
            "errors_with_times_of_today": {name: rounded(points(today.settings[name], each)) for name, each in results.items()},
            "measured": {name: result_as_json(each) for name, each in results.items()},
            "predicted": {name: result_as_json(committed.settings[name]) for name in results},
            "start_seconds": {"predicted": round(committed.calibration.start_seconds, 2), "today": round(own.start_seconds, 2)},
            "load": {"predicted": committed.load, **{name: round(each.load, 1) for name, each in measurements.items()}},
            "failed": sorted(f"{name} {what}" for name, each in errors.items() for what, error in each.items() if abs(error) > LIMIT),
        }
        value = max(abs(error) for each in errors.values() for error in each.values())
        yield Figure("simulator-truth", value, "points", LIMIT, value <= LIMIT, len(measurements), details)
        size = scavenged.SMOKE if smoke else scavenged.FULL
        rows = scavenged.rows_of(scavenged.measured_times(folder, size))
    plot("scavenged-units", partial(plot_scavenged, rows), smoke=smoke)
    of_law = {
        "times": {f"{row.extra:g}": round(row.time, 4) for row in rows},
        "simulated": {f"{extra:g}": round(each, 4) for extra, each in committed.scavenged.items()},
        "simulated_with_times_of_today": {f"{extra:g}": round(each, 4) for extra, each in today.scavenged.items()},
        "load": round(os.getloadavg()[0], 1),
    }
    error = scavenged.worst(rows)
    yield Figure("scavenged-units", error, "relative error, largest", scavenged.LIMIT, error <= scavenged.LIMIT, len(rows), of_law)


def points(predicted: JobResult, measured: JobResult) -> Mapping[str, float]:
    """Predicted minus measured: goodput in points, and merges per hour in percent of the measured ones."""
    return {
        "goodput": predicted.goodput - measured.goodput,
        "merges_per_hour": 100 * (predicted.merges_per_hour / measured.merges_per_hour - 1) if measured.merges_per_hour else float("inf"),
    }


def rounded(errors: Mapping[str, float]) -> dict[str, float]:
    return {what: round(error, 2) for what, error in errors.items()}


def _run(folder: Path, setting: Setting) -> Measured:
    with WideNetwork(setting.links) as network, TruthRig(folder / setting.name, setting, network, SEED) as rig:
        return rig.run()


def _smaller(setting: Setting) -> Setting:
    return replace(setting, seconds=_SMOKE_SECONDS)
