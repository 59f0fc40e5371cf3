"""What a part lacks of its job at home, in words. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from diloco_operator.api import names

_NAMED = 4
"""Fields that a message names."""


def no_secret(secret: str, job: str) -> str:
    return (
        f"Secret {secret} does not exist here, or lacks the label {names.LABEL_JOB}={job}. Apply what kubectl diloco part writes in the "
        "cluster of the job's syncer"
    )


def unusable(secret: str, problem: str) -> str:
    return f"Secret {secret} cannot be used: {problem}. Apply what kubectl diloco part writes in the cluster of the job's syncer"


def other_training(differences: Sequence[tuple[str, str, str]]) -> str:
    """`differences`: field, value here, value at home."""
    named = "; ".join(f"{path} is {here} here and {there} at home" for path, here, there in differences[:_NAMED])
    more = f"; {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
    return f"{named}{more}. Make them equal: kubectl diloco part writes manifest and Secret with the values of home"


def value(of_field: Any) -> str:
    return "not set" if of_field is None else json.dumps(of_field)


def no_certificate(secret: str, unit: str, attempt: int, part: str, job: str) -> str:
    return (
        f"Secret {secret} has no certificate for attempt {attempt} of {unit}. If spec.parts at home gives part {part} this unit, apply "
        f"what kubectl diloco part writes there again; else lower learners.max of its pool in job {job}"
    )


def waits_for_home(problem: str) -> str:
    return f"waits for the job at home: {problem}"


def first_report_due(address: str) -> str:
    return f"the syncer at {address} has not reported yet"


def no_report(address: str, seconds: float) -> str:
    return (
        f"the operator has had no report from the syncer at {address} for {seconds:.0f} s. Learners train on, and those that fail start "
        "again. Check the network, and the job at home"
    )


def gives_hardware_back(address: str, seconds: float) -> str:
    return (
        f"no report has come from the syncer at {address} for {seconds:.0f} s (syncer.at.partTimeout), so the part has given its hardware "
        "back. It goes on by itself once a report comes. Check the network, and the job at home"
    )


AT_HOME = "The model is at home, where the job's syncer is"


def home_is_complete(step: int, steps: int) -> str:
    return f"the job at home is complete, at outer step {step} of {steps}"


UNITS_SAID_SO = "the units ended with status 0, as learners do when their job is complete"
