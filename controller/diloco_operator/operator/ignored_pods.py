"""Pods that carry a job's label but that the operator cannot have made. Users are told about them as about malformed objects.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from diloco_operator.api import names
from diloco_operator.api.names import JobKey
from diloco_operator.kube.malformed import MalformedObject
from diloco_operator.operator.caches import Caches

_NAMED = 1000
"""The most pods of one job that are named."""


class IgnoredPods:
    """Pods of one job that its plans ignore. Each is reported once, and counts as malformed as long as a plan ignores it."""

    def __init__(self, caches: Caches, key: JobKey) -> None:
        self._caches = caches
        self._key = key
        self._named: set[str] = set()

    def note(self, ignored: Mapping[str, str]) -> None:
        """Note the pods that the last plan of the job ignored: the reason, by the pod's name."""
        namespace, job = self._key
        now = dict(islice(ignored.items(), _NAMED))
        for name in self._named - now.keys():
            self._caches.malformed.remove(names.PODS, (namespace, name))
        for name, why in now.items():
            pod = self._caches.pod(namespace, name)
            uid = pod.uid if pod is not None else ""
            self._caches.malformed.add(MalformedObject(names.PODS, namespace, name, uid, job, why, used=True))
        self._named = set(now)
