"""A pod's environment and mounted files (`contract`), read and checked with errors for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from diloco import contract
from diloco.protocol.tls import TlsFiles


class ContractError(ValueError):
    """The environment or the job file is missing or wrong; the message names the variable and says what to do."""


def read_job_file(environment: Mapping[str, str]) -> contract.JobFile:
    """Return the mounted job file. Raises ContractError with the path of each wrong field."""
    path = required(environment, contract.ENV_JOB_FILE)
    try:
        return contract.JobFile.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise ContractError(f"{contract.ENV_JOB_FILE}: cannot read job file {path}: {error.strerror}") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, problem['loc'])) or 'file'}: {problem['msg']}" for problem in error.errors())
        raise ContractError(f"{contract.ENV_JOB_FILE}: job file {path} is wrong: {wrong}") from error


def tls_files(environment: Mapping[str, str]) -> TlsFiles:
    """Raises ContractError if the variable is not set. Whether the files exist is not checked: the operator may still write them."""
    return TlsFiles(Path(required(environment, contract.ENV_TLS_DIR)))


def required(environment: Mapping[str, str], name: str) -> str:
    """Raises ContractError if the variable is unset or empty."""
    value = environment.get(name, "")
    if not value:
        raise ContractError(f"environment variable {name} is not set: this program is started by the operator in a pod of a DiLoCoJob")
    return value


def integer(environment: Mapping[str, str], name: str, default: int | None, least: int) -> int:
    """Return the variable as an integer of at least `least`. If `default` is None it is required. Raises ContractError."""
    text = environment.get(name, "") if default is not None else required(environment, name)
    if not text:
        assert default is not None
        return default
    if not text.isdecimal() or int(text) < least:
        raise ContractError(f"{name} must be an integer of at least {least}, not {text!r}")
    return int(text)
