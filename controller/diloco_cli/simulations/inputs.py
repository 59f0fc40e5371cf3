"""The job and the fleet of a simulation, from their files, and which numbers of units are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from diloco.wording import plural
from diloco_operator.api.spec import Spec
from diloco_operator.kube.client import Obj
from diloco_operator.reconcile import parse_job

from diloco_cli.fleet_file import BadFleet, load_fleet
from diloco_cli.manifests import ManifestError, load_manifests, validate_jobs

EXIT_BAD_INPUT: Final = 2
_MOST_NUMBERS: Final = 8


class BadInput(Exception):
    """All problems, one sentence each."""

    def __init__(self, *sentences: str) -> None:
        self.sentences = sentences
        super().__init__("\n".join(sentences))


@dataclass(frozen=True, slots=True)
class OnlyJob:
    """The one job of some files."""

    manifest: Obj
    spec: Spec

    @property
    def name(self) -> str:
        """Return the name of the job."""
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class JobOnFleet(OnlyJob):
    """One job, and nodes that are all its own."""

    nodes: Sequence[Obj]


def job_on_fleet(files: Sequence[str], fleet: str) -> JobOnFleet:
    """Read the only job of the files, and the nodes of `fleet`. Raises `BadInput`."""
    job = only_job(files)
    try:
        nodes = load_fleet(fleet)
    except BadFleet as error:
        raise BadInput(*error.sentences) from error
    return JobOnFleet(job.manifest, job.spec, nodes)


def only_job(files: Sequence[str]) -> OnlyJob:
    """Read the only job of the files. Raises `BadInput`."""
    try:
        jobs = validate_jobs(load_manifests(files))
    except ManifestError as error:
        raise BadInput(*(str(problem) for problem in error.problems)) from error
    if len(jobs) != 1:
        raise BadInput(f"{', '.join(files)} {'has' if len(files) == 1 else 'have'} {plural(len(jobs), 'job')}; give one with one job")
    spec = parse_job(jobs[0].obj).spec
    assert spec is not None, "the job was validated"
    return OnlyJob(jobs[0].obj, spec)


def numbers_of_units(least: int, most: int) -> list[int]:
    """Choose at most `_MOST_NUMBERS` numbers from `least` to `most`: all, or such that neighbours have nearly the same ratio."""
    if most - least < _MOST_NUMBERS:
        return list(range(least, most + 1))
    ratio = (most / least) ** (1 / (_MOST_NUMBERS - 1))
    return sorted({round(least * ratio**index) for index in range(_MOST_NUMBERS)})
