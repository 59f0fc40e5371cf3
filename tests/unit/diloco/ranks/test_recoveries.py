"""Units of several ranks, as real processes, give their state to peers and take that of peers."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.exchange import Place, Processes, job_file, traced, training, until
from builders.exploration import full
from builders.rank_units import RankUnit
from diloco.contract import Exit
from diloco.protocol.diloco_pb2 import Recovery, UnitReport

pytestmark = pytest.mark.slow

H = 4


class Job:
    """One that does not end by itself."""

    def __init__(self, folder: Path, quorum: int = 1) -> None:
        self.processes = Processes(Place(folder, job_file(training(100_000, sync_interval=H, quorum=quorum))))
        self.states = folder / "states"
        self.states.mkdir()
        self.processes.syncer()

    def unit(self, name: str, ranks: int, attempt: int = 1, **environment: str) -> RankUnit:
        return RankUnit(self.processes, name, ranks, attempt).start(RANKS_STATES=str(self.states), **environment)

    def lines(self, unit: RankUnit, rank: int) -> list[dict[str, Any]]:
        return traced(self.states / f"{unit.name}.{unit.attempt}.{rank}")

    def trains(self, unit: RankUnit) -> RankUnit:
        """Wait until it has trained long enough to give its state."""
        until(lambda: any("step" in line for line in self.lines(unit, 0)), f"unit {unit.name} trains")
        self.processes.report(lambda report: report.t > 3 * H, "an interval is over")
        self.recovery(unit, Recovery.OVER)
        return unit

    def recovery(self, unit: RankUnit, phase: Recovery.Phase = Recovery.OVER) -> Recovery:
        """What the syncer says of the recovery of this attempt, once it is in this phase."""

        def of(units: Iterable[UnitReport]) -> list[Recovery]:
            mine = [one for one in units if (one.unit, one.attempt) == (unit.name, unit.attempt)]
            return [one.recovery for one in mine if one.recovery.phase == phase]

        report = self.processes.report(lambda report: bool(of(report.units)), f"unit {unit.name} says {Recovery.Phase.Name(phase)}")
        return of(report.units)[0]

    def begun(self, unit: RankUnit) -> list[dict[str, Any]]:
        """What each rank began with."""

        def found() -> list[dict[str, Any]] | None:
            lines = [self.lines(unit, rank) for rank in range(unit.ranks)]
            begun = [[line for line in each if "began" in line] for each in lines]
            return [line for [line] in begun] if all(begun) else None

        begun: list[dict[str, Any]] = until(found, f"all ranks of {unit.name} begin")
        return begun

    def took(self, unit: RankUnit, donor: RankUnit) -> None:
        """The unit has begun with the momentum of the donor, each rank's rows as they were after one step of that rank."""
        begun = self.begun(unit)
        assert len({line["steps"] for line in begun}) == 1
        assert begun[0]["steps"] > 0
        whole = {name: rows(begun, "momentum", name) for name in begun[0]["momentum"]}
        for rank in range(donor.ranks):
            steps = [line["momentum"] for line in self.lines(donor, rank) if "step" in line]
            for name, (first, values) in steps[0].items():
                start = 2 * 4 * first * (8 if name != "scale" else 1)
                mine = whole[name][start : start + len(values)]
                assert mine in {step[name][1] for step in steps}, f"the rows of rank {rank} of {name} are of one of its steps"

    def agree(self, *units: RankUnit) -> None:
        """All units hold the same bytes after each broadcast, and go on to adopt some."""

        def in_common() -> bool:
            of_each = [self._adopted(unit) for unit in units]
            common = set.intersection(*(set(adopted) for adopted in of_each))
            for version in common:
                assert len({json.dumps(adopted[version], sort_keys=True) for adopted in of_each}) == 1, f"they differ after {version}"
            return len(common) > 20

        until(in_common, "more broadcasts are adopted by all")

    def _adopted(self, unit: RankUnit) -> dict[tuple[int, str], str]:
        """By outer step and tensor the values that the unit adopted, of those that all its ranks have come to."""
        found: dict[tuple[int, str], dict[int, str]] = {}
        for rank in range(unit.ranks):
            for line in self.lines(unit, rank):
                for name, (first, values) in line.get("adopted", {}).items():
                    found.setdefault((line["version"], name), {})[first] = values
        owners = {name: {first for first, _ in place} for name, place in self._places(unit).items()}
        return {
            (t, name): "".join(values for _, values in sorted(each.items()))
            for (t, name), each in found.items()
            if each.keys() == owners[name]
        }

    def _places(self, unit: RankUnit) -> dict[str, list[tuple[int, str]]]:
        found: dict[str, list[tuple[int, str]]] = {}
        for line in self.begun(unit):
            for name, (first, values) in line["momentum"].items():
                found.setdefault(name, []).append((first, values))
        return found


def rows(lines: list[dict[str, Any]], what: str, name: str) -> str:
    """One tensor, put together from all ranks' rows."""
    return "".join(values for _, values in sorted(line[what][name] for line in lines if name in line[what]))


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    found = Job(tmp_path, **getattr(request, "param", {}))
    yield found
    found.processes.end()


@pytest.mark.parametrize(("donors", "takers"), [(1, 2), full(2, 2), (2, 1)])
def test_a_killed_unit_comes_back_with_the_state_of_a_peer_of_any_number_of_ranks(job: Job, donors: int, takers: int) -> None:
    donor = job.trains(job.unit("donor", donors))
    first = job.unit("u", takers)
    job.begun(first)
    first.programs[-1].signal(signal.SIGKILL)
    assert first.wait() == [*[Exit.RANK_LOST] * (takers - 1), -signal.SIGKILL]
    second = job.unit("u", takers, attempt=2)
    job.took(second, donor)
    said = job.recovery(second)
    assert (said.unit, said.stored, said.round, list(said.failed), said.why) == ("donor", False, 1, [], "")
    job.agree(donor, second)


@pytest.mark.parametrize("job", [{"quorum": 2}], indirect=True)
def test_a_unit_of_ranks_that_rests_gives_its_state_to_the_one_that_the_quorum_waits_for(job: Job) -> None:
    donor, first = job.unit("donor", 2), job.unit("u", 1)
    job.trains(donor)
    job.begun(first)
    first.programs[0].signal(signal.SIGKILL)
    assert first.wait() == [-signal.SIGKILL]
    until(lambda: "rests until a quorum of 2 learners trains" in donor.programs[0].text, "the donor rests")
    second = job.unit("u", 1, attempt=2)
    job.took(second, donor)
    assert list(job.recovery(second).failed) == []
