"""Files that the process may have open: with HTTP/1.1 each watch has a connection, which is one of them.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

import logging
import resource

from diloco_operator.kube.rest.transport import CONNECTIONS

log = logging.getLogger(__name__)

OTHERS = CONNECTIONS + 768
"""Connections for requests, and an estimate of what else is open: streams of syncers, scrapes, probes, logs."""


class TooFewFiles(Exception):
    """The process may not open as many files as it needs."""


def allow_files(watches: int) -> None:
    """Let the process open as many files as its surroundings allow. Raises `TooFewFiles` if these are too few for the watches."""
    log.info("%d watches, each over a connection of its own", watches)
    needed, (_, hard) = watches + OTHERS, resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise TooFewFiles(
            f"{watches} watches need {needed} open files, and this process may have {hard}: raise its limit (ulimit -Hn), watch fewer "
            "namespaces, or watch all of them, which takes one watch for each kind of object"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
