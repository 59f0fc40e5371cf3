"""What the operator told this pod: the contract's environment and job file, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from diloco import contract
from diloco.protocol.auth import read_secret


class ContractError(ValueError):
    """The environment or the job file is missing or wrong; the message names the variable and says what to do."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who this process is and whom it trains with."""

    job: contract.JobFile
    secret: str
    unit: str
    attempt: int
    host: int
    hosts: int
    syncer: str
    """`host:port`."""
    relative_speed: float
    """In (0, 1]; 1 on real hardware."""


def read_assignment(environment: Mapping[str, str]) -> Assignment:
    """The assignment in `environment`. Raises ContractError."""
    assignment = Assignment(
        job=read_job_file(environment),
        secret=read_secret_file(environment),
        unit=_required(environment, contract.ENV_UNIT),
        attempt=_integer(environment, contract.ENV_ATTEMPT, None, 1),
        host=_integer(environment, contract.ENV_HOST, 0, 0),
        hosts=_integer(environment, contract.ENV_HOSTS, 1, 1),
        syncer=_required(environment, contract.ENV_SYNCER_ADDRESS),
        relative_speed=_speed(environment),
    )
    if assignment.host >= assignment.hosts:
        raise ContractError(
            f"{contract.ENV_HOST} is {assignment.host}, but the unit has {assignment.hosts} hosts ({contract.ENV_HOSTS}), counted from 0"
        )
    return assignment


def read_job_file(environment: Mapping[str, str]) -> contract.JobFile:
    """The mounted job file. Raises ContractError with the path of each wrong field."""
    path = _required(environment, contract.ENV_JOB_FILE)
    try:
        return contract.JobFile.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise ContractError(f"{contract.ENV_JOB_FILE}: cannot read job file {path}: {error.strerror}") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'file'}: {one['msg']}" for one in error.errors())
        raise ContractError(f"{contract.ENV_JOB_FILE}: job file {path} is wrong: {wrong}") from error


def read_secret_file(environment: Mapping[str, str]) -> str:
    """The job's secret. Raises ContractError."""
    path = _required(environment, contract.ENV_SECRET_FILE)
    try:
        return read_secret(path)
    except OSError as error:
        raise ContractError(f"{contract.ENV_SECRET_FILE}: cannot read secret file {path}: {error.strerror}") from error
    except ValueError as error:
        raise ContractError(f"{contract.ENV_SECRET_FILE}: {error}") from error


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise ContractError(f"environment variable {name} is not set: this program is started by the operator in a pod of a DiLoCoJob")
    return value


def _integer(environment: Mapping[str, str], name: str, default: int | None, least: int) -> int:
    text = environment.get(name, "") if default is not None else _required(environment, name)
    if not text:
        assert default is not None
        return default
    if not text.isdecimal() or int(text) < least:
        raise ContractError(f"{name} must be an integer of at least {least}, not {text!r}")
    return int(text)


def _speed(environment: Mapping[str, str]) -> float:
    text = environment.get(contract.ENV_RELATIVE_SPEED, "") or "1"
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed <= 1:
        raise ContractError(f"{contract.ENV_RELATIVE_SPEED} must be a number in (0, 1], not {text!r}")
    return speed
