"""Why a process of a learner ended, left as its pod's termination message: exit status, rank and reason.

A launcher such as torchrun is the pod's main process. It ends with status 1 whatever the rank's status was, and what it prints at the end
hides the rank's error. So the rank writes both to the file that the kubelet reads. The first rank that ends by itself is the cause, and
stays; that another rank was lost is only a consequence.

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
    """Write them, unless a cause stands there already. Does nothing outside of a learner's pod."""
    path = _path(environment)
    if path is None:
        return
    words = LastWords(status, _rank(environment), " ".join(message.split())[:_LONGEST])
    try:
        with path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            before = file.read()
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
    """Return whether a process of this pod has left the cause of its end."""
    path = _path(environment)
    try:
        text = path.read_text() if path is not None else ""
    except OSError:
        return False
    return bool(text.strip()) and not _is_consequence(text)


def report_exceptions() -> None:
    """Let an exception that ends this process be its last words, from now on. Processes forked from it are not concerned."""
    if _path(os.environ) is not None and not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook()


def describe(error: BaseException) -> str:
    """Return `ValueError: bad batch`, in one line."""
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
    """Return where last words go: the syncer's message is its result, and none of these."""
    path = environment.get(contract.ENV_TERMINATION_LOG)
    return Path(path) if path and environment.get(contract.ENV_UNIT) else None


def _rank(environment: Mapping[str, str]) -> int | None:
    """Read the rank as torch's launchers and ours name it; None: the unit has one process, or its ranks are named otherwise."""
    rank, size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    return int(rank) if rank.isdecimal() and size != "1" else None


def _is_consequence(text: str) -> bool:
    words = contract.parse_last_words(text.strip().splitlines()[-1])
    return words is not None and words.status == Exit.RANK_LOST
