"""How a training program that must end does so."""

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
    """The training loop calls the session so that its numbers would be wrong. The message says what to do."""


def leave(status: Exit, message: str) -> Leave:
    """Return the exception to be raised. The message is on stderr, the pod's log, and the pod's termination message already."""
    leave_last_words(os.environ, status, message)
    sys.stderr.write(f"diloco: {message}\n")
    sys.stderr.flush()
    return Leave(status, message)


def refused_layout(error: LayoutError) -> Leave:
    """Return the exception to be raised for a model that no job can train. A restart would not help, hence no status of a crash."""
    return leave(Exit.REFUSED_LAYOUT, f"this model cannot be trained in a job: {error}")


def log_to_stderr() -> None:
    """Log to stderr unless the program has set up logging."""
    package = logging.getLogger("diloco")
    if logging.getLogger().handlers or package.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    package.addHandler(handler)
    package.setLevel(logging.INFO)
