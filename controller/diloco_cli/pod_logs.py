"""Reads the log of a pod's container, or tells why there is none.

See docs/decisions/0040-learner-pods.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from diloco_operator.kube.client import ApiError, BadRequest, LogRequest, NotFound
from diloco_operator.kube.rest.line_splitter import LineSplitter

from diloco_cli.cluster import CommandError

_INTERNAL_ERROR = 500


class PodLogs(Protocol):
    def pod_logs(self, namespace: str, name: str, wanted: LogRequest) -> AsyncIterator[bytes]: ...


@dataclass(frozen=True, slots=True)
class Source:
    """One container whose log is printed."""

    pod: str
    container: str
    prefix: str = ""
    """Text before every line, which tells several hosts apart."""
    previous: bool = False
    """Take the container's run before its last restart in the same pod."""
    instead: str = ""
    """What the message adds if there is no log, such as what to do instead."""
    no_pod: str = "see `kubectl diloco status`"
    """What the message adds if there is no pod."""


async def log_pieces(client: PodLogs, namespace: str, source: Source, *, follow: bool, tail: int | None) -> AsyncIterator[bytes]:
    """Yield a log in pieces as they come, or in whole lines if they have a prefix. Raises `CommandError` that says why there is no log."""
    lines = LineSplitter()
    prefix = source.prefix.encode()
    stream = client.pod_logs(namespace, source.pod, LogRequest(source.container, follow, source.previous, tail))
    try:
        async with contextlib.aclosing(stream) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if not prefix:
                    yield piece
                    continue
                for line in lines.feed(piece):
                    yield prefix + line + b"\n"
    except NotFound as error:
        if error.message.startswith("nodes "):
            raise CommandError(f"the node of pod {source.pod} is gone, and the log with it: {error.message}") from error
        raise CommandError(f"there is no pod {source.pod} now; {source.no_pod}") from error
    except BadRequest as error:
        raise CommandError(f"pod {source.pod} has no {'such ' if source.previous else ''}log: {error.message}{source.instead}") from error
    except ApiError as error:
        if error.code != _INTERNAL_ERROR:
            raise
        # The API server gets logs from the node's kubelet. It answers with this status if the kubelet does not answer.
        raise CommandError(f"the node of pod {source.pod} does not give its log: {error.message}") from error
    if lines.rest:
        yield prefix + lines.rest + b"\n"
