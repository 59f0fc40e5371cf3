"""The job and the fleet of a simulation, from their files, and which numbers of units are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from diloco.wording import plural
from diloco_operator.api.spec import Spec
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile import parse_job

from diloco_cli.commands.validate import check
from diloco_cli.fleet_file import BadFleet, load_fleet

_MOST_NUMBERS: Final = 8


class BadInput(Exception):
    """Something is wrong with the user's input. `sentences` has one for each problem."""

    def __init__(self, *sentences: str) -> None:
        self.sentences = sentences
        super().__init__("\n".join(sentences))


@dataclass(frozen=True, slots=True)
class JobOnFleet:
    """A job, and the nodes of a fleet that no other job uses."""

    manifest: Obj
    spec: Spec
    nodes: Sequence[Obj]

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


def job_on_fleet(file: str, fleet: str | None) -> JobOnFleet:
    """Read the only job of `file`, and the nodes of `fleet`. If `fleet` is None, this machine is the fleet. Raises `BadInput`."""
    jobs, _, problems = check([file])
    if problems:
        raise BadInput(*map(str, problems))
    if len(jobs) != 1:
        raise BadInput(f"{file} has {plural(len(jobs), 'job')}; give one with one job")
    spec = parse_job(jobs[0].obj).spec
    assert spec is not None, "the job was validated"
    try:
        nodes = load_fleet(fleet)
    except BadFleet as error:
        raise BadInput(*error.sentences) from error
    return JobOnFleet(jobs[0].obj, spec, nodes)


def numbers_of_units(least: int, most: int) -> list[int]:
    """Choose at most `_MOST_NUMBERS` numbers from `least` to `most`: all of them, or a geometric series."""
    if most - least < _MOST_NUMBERS:
        return list(range(least, most + 1))
    ratio = (most / least) ** (1 / (_MOST_NUMBERS - 1))
    return sorted({round(least * ratio**index) for index in range(_MOST_NUMBERS)})
