"""How a training program ends when it must."""

from __future__ import annotations

import logging
import os
import sys

from diloco.algorithm.layout import LayoutError
from diloco.contract import Exit
from diloco.last_words import leave_last_words


class Leave(SystemExit):
    """This process must end with `status`. A SystemExit: if the program does not catch it, the process ends with that status."""

    def __init__(self, status: Exit, message: str = "") -> None:
        super().__init__(int(status))
        self.status = status
        self.message = message


class LoopError(RuntimeError):
    """The training loop uses the session in a way that makes its counts wrong. The message says what to do."""


def leave(status: Exit, message: str) -> Leave:
    """Write the message to stderr and to the pod's termination message, and return the exception for the caller to raise."""
    leave_last_words(os.environ, status, message)
    sys.stderr.write(f"diloco: {message}\n")
    sys.stderr.flush()
    return Leave(status, message)


def refused_layout(error: LayoutError) -> Leave:
    """Return the exception to raise for a model that no job can train. Its status is not that of a crash: a restart would not help."""
    return leave(Exit.REFUSED_LAYOUT, f"this model cannot be trained in a job: {error}")


def log_to_stderr() -> None:
    """Let diloco's loggers write to stderr, unless the program has set up logging."""
    package = logging.getLogger("diloco")
    if logging.getLogger().handlers or package.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    package.addHandler(handler)
    package.setLevel(logging.INFO)
