"""What a part lacks of its job at home, in words. Pure.

`made`: the operator at home has made the part. Then it writes it again, and `kubectl diloco part` refuses to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from diloco_operator.api import names

_NAMED = 4
"""Fields that a message names."""


_BY_HAND = "Apply here, with kubectl apply --server-side, what kubectl diloco part writes in the cluster of the job's syncer"


def _again(what: str) -> str:
    return (
        f"the operator at home made this part and writes {what} again within 5 minutes. If it does not, see status.parts of the job at "
        "home, and that operator's log"
    )


def no_secret(secret: str, job: str, *, made: bool) -> str:
    lacking = f"Secret {secret} does not exist here, or lacks the label {names.LABEL_JOB}={job}"
    return f"{lacking}. If it exists, delete it: {_again('it')}" if made else f"{lacking}. {_BY_HAND}"


def unusable(secret: str, problem: str, *, made: bool) -> str:
    # The operator at home compares versions, not contents: it does not see that a Secret was changed here.
    return f"Secret {secret} cannot be used: {problem}. {f'Delete it: {_again("it")}' if made else _BY_HAND}"


def no_address(service: str) -> str:
    return (
        f"waits for an address of Service {service}; kubectl describe service {service} says why it has none. Or set "
        "spec.syncer.externalAddress"
    )


def other_training(differences: Sequence[tuple[str, str, str]], *, made: bool) -> str:
    """`differences`: field, value here, value at home."""
    named = "; ".join(f"{path} is {here} here and {there} at home" for path, here, there in differences[:_NAMED])
    more = f"; {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
    how = _again("spec.training") if made else "kubectl diloco part writes manifest and Secret with the values of home"
    return f"{named}{more}. They must be equal: {how}"


def value(of_field: Any) -> str:
    return "not set" if of_field is None else json.dumps(of_field)


def no_certificate(secret: str, unit: str, attempt: int, part: str, job: str, *, made: bool) -> str:
    lacking = f"Secret {secret} has no certificate for attempt {attempt} of {unit}"
    if made:
        return f"{lacking}: {_again('the Secret')}"
    return (
        f"{lacking}. If spec.parts at home gives part {part} this unit, apply what kubectl diloco part writes there again; else lower "
        f"learners.max of its pool in job {job}"
    )


def waits_for_home(problem: str) -> str:
    return f"waits for the job at home: {problem}"


def first_report_due(address: str) -> str:
    return f"the syncer at {address} has not reported yet"


def no_report(address: str, seconds: float) -> str:
    return (
        f"the operator has had no report from the syncer at {address} for {seconds:.0f} s. Learners that reach it train on, and those that "
        "fail start again. Check the network, and the job at home"
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
