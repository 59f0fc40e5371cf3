"""What a refusal by the syncer means for the refused process."""

from __future__ import annotations

from typing import Final

from diloco.contract import Exit
from diloco.protocol.diloco_pb2 import Refused

EXITS: Final = {
    Refused.LAYOUT: Exit.REFUSED_LAYOUT,
    Refused.NONFINITE: Exit.REFUSED_NONFINITE,
    Refused.FENCED: Exit.REFUSED_FENCED,
    Refused.DUPLICATE_IDENTITY: Exit.REFUSED_FENCED,
    Refused.WRONG_JOB: Exit.BAD_CONTRACT,
    Refused.PROTOCOL: Exit.CRASHED,
    Refused.QUARANTINED: Exit.REFUSED_QUARANTINED,
}
"""Exit status of a learner that was refused with a code. WRONG_JOB means that the pod has another job's environment, PROTOCOL a defect of
learner or syncer."""


def exit_for(code: int) -> Exit:
    """Return the exit status for a refusal code, which may be one of a newer syncer."""
    return EXITS.get(code, Exit.CRASHED)  # type: ignore[call-overload, no-any-return]


def name_of(code: int) -> str:
    """Return `LAYOUT`, `NONFINITE`, …, or the number of a code that this version does not know."""
    return str(Refused.Code.Name(code)) if code in Refused.Code.values() else str(code)


def reason_of(code: int) -> str:
    """Return the key under which refusals with a code are counted: `Layout`, `NonFinite`, `DuplicateIdentity`, …"""
    return "NonFinite" if code == Refused.NONFINITE else "".join(part.capitalize() for part in name_of(code).split("_"))
