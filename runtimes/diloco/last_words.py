"""Why a process of a learner ended, left as its pod's termination message: exit status, rank and reason.

A launcher such as torchrun is the pod's main process. It ends with status 1 whatever the rank's status was, and what it prints at the end
hides the rank's error. So the rank itself writes status and error to the file that the kubelet reads. The first rank that ends by itself is
the cause, and its message stays. The message of a rank that ended because it lost another one is a consequence, which a cause replaces.

See docs/decisions/0040-learner-pods.md.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from diloco import contract
from diloco.contract import Exit, LastWords

_log = logging.getLogger(__name__)

_LONGEST = 500
"""Characters of a message."""


def leave_last_words(environment: Mapping[str, str], status: int, message: str) -> None:
    """Write the termination message, unless it names a cause already. Does nothing outside of a learner's pod."""
    path = _path(environment)
    if path is None:
        return
    words = LastWords(status, _rank(environment), " ".join(message.split())[:_LONGEST])
    try:
        with path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            before = file.read()
            # A cause stays whatever comes; a consequence gives way to a cause, but not to another consequence.
            if before.strip() and not _is_consequence(before):
                return
            if before.strip() and status == Exit.RANK_LOST:
                return
            file.seek(0)
            file.truncate()
            file.write(f"{words}\n")
    except OSError as error:
        _log.warning("cannot write the termination message: %s", error)


def has_last_words(environment: Mapping[str, str]) -> bool:
    """Whether a process of this pod has left the cause of its end; a consequence does not count."""
    path = _path(environment)
    try:
        text = path.read_text() if path is not None else ""
    except OSError:
        return False
    return bool(text.strip()) and not _is_consequence(text)


def report_exceptions() -> None:
    """From now on an exception that ends this process becomes its last words. Forked children are not concerned."""
    if _path(os.environ) is not None and not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook()


def describe(error: BaseException) -> str:
    """Return one line, such as `ValueError: bad batch`."""
    return " ".join("".join(traceback.format_exception_only(error)).split())


class _Hook:
    def __init__(self) -> None:
        self._process = os.getpid()
        self._before = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() == self._process:
            leave_last_words(os.environ, Exit.CRASHED, describe(error))
        self._before(kind, error, trace)


def _path(environment: Mapping[str, str]) -> Path | None:
    """The file for last words. None outside of a pod, and in the syncer, whose termination message is the job's result."""
    path = environment.get(contract.ENV_TERMINATION_LOG)
    return Path(path) if path and environment.get(contract.ENV_UNIT) else None


def _rank(environment: Mapping[str, str]) -> int | None:
    """The rank in the variables of torch's launchers and ours. None if the unit has one process, or its launcher uses other variables."""
    rank, size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    return int(rank) if rank.isdecimal() and size != "1" else None


def _is_consequence(text: str) -> bool:
    words = contract.parse_last_words(text.strip().splitlines()[-1])
    return words is not None and words.status == Exit.RANK_LOST
