"""The simulator's predictions for [simulator-truth]: `python -m benchmarks.truth.predictions` calibrates it and writes predictions.json.

That file is committed before a run. The run compares with it, and never writes it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.truth.rig import TruthRig
from benchmarks.truth.scavenged import FULL, simulated_times
from benchmarks.truth.settings import CALIBRATION, SEED, SETTINGS, Setting
from benchmarks.truth.simulated import Calibration, JobResult, simulate
from benchmarks.wan.network import WideNetwork

FILE: Final = Path(__file__).with_name("predictions.json")


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions for all settings."""

    calibration: Calibration
    load: float
    """Load of the machine during the calibration."""
    settings: Mapping[str, JobResult]
    """Name of a setting -> its prediction."""
    scavenged: Mapping[float, float]
    """Extra compute -> time relative to that without."""

    def as_json(self) -> dict[str, Any]:
        return {
            "calibration": {name: round(value, 4) for name, value in asdict(self.calibration).items()},
            "load": round(self.load, 1),
            "settings": {name: result_as_json(result) for name, result in self.settings.items()},
            "scavenged": {f"{extra:g}": round(time, 3) for extra, time in self.scavenged.items()},
        }


def result_as_json(result: JobResult) -> dict[str, float]:
    """The values of a job, rounded."""
    return {name: round(value, 2) for name, value in asdict(result).items()}


def from_json(found: Mapping[str, Any]) -> Predictions:
    """Read what `as_json` wrote."""
    return Predictions(
        Calibration(**found["calibration"]),
        found["load"],
        {name: JobResult(**result) for name, result in found["settings"].items()},
        {float(extra): time for extra, time in found["scavenged"].items()},
    )


def calibrated(setting: Setting = CALIBRATION) -> tuple[Calibration, float]:
    """Run a real job, and return this machine's times and load."""
    with (
        tempfile.TemporaryDirectory() as directory,
        WideNetwork(setting.links) as network,
        TruthRig(Path(directory) / setting.name, setting, network, SEED) as rig,
    ):
        measured = rig.run()
    return Calibration(measured.start_seconds, measured.overhead_seconds), measured.load


def predicted(calibration: Calibration, load: float) -> Predictions:
    """Simulate all settings."""
    settings = {setting.name: simulate(setting, calibration, SEED) for setting in SETTINGS}
    return Predictions(calibration, load, settings, simulated_times(FULL, calibration))


def main() -> None:
    predictions = predicted(*calibrated())
    FILE.write_text(json.dumps(predictions.as_json(), indent=2) + "\n", encoding="ascii")
    sys.stdout.write(FILE.read_text(encoding="ascii"))


if __name__ == "__main__":
    main()
