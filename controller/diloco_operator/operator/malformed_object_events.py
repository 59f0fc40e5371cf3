"""Events about malformed objects, on the job that the objects name: there a user can see them.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from diloco_operator.api import names
from diloco_operator.api.reasons import EventReason
from diloco_operator.kube.cache import CachedObject
from diloco_operator.kube.client import Resource
from diloco_operator.kube.malformed import MalformedObject
from diloco_operator.operator.caches import Caches
from diloco_operator.operator.events import EventRecorder, Subject
from diloco_operator.plan import Event

_MOST_EVENTS = 20
"""The most malformed objects of one new job that become Events. More than 10 are combined anyway."""


class MalformedObjectEvents:
    """Emits the events once `start` was called: a replica that does not lead writes nothing."""

    def __init__(self, caches: Caches, events: EventRecorder) -> None:
        self._caches = caches
        self._events = events
        self._started = False
        caches.malformed.on_found(self._emit)
        caches.on_object_change(self._on_object)

    def start(self) -> None:
        """Emit events from now on, since this replica leads, and about everything that was found so far."""
        self._started = True
        for malformed in self._caches.malformed:
            self._emit(malformed)

    def _on_object(self, resource: Resource, old: CachedObject[Any] | None, new: CachedObject[Any] | None) -> None:
        """When a job comes, emit events about malformed objects that name it: they may be older than the job."""
        if resource == names.DILOCO_JOBS and new is not None and (old is None or old.uid != new.uid):
            for malformed in islice(self._caches.malformed.of_label(new.namespace, new.name), _MOST_EVENTS):
                self._emit(malformed)

    def _emit(self, malformed: MalformedObject) -> None:
        if self._started and (subject := self._subject(malformed)) is not None:
            self._events.emit(subject, Event.of(EventReason.MALFORMED_OBJECT, str(malformed)))

    def _subject(self, malformed: MalformedObject) -> Subject | None:
        """Return the job that the object is, or that its label names. None if there is no such job, or another controller manages it."""
        is_job = malformed.resource == names.DILOCO_JOBS
        job = self._caches.jobs.get(malformed.namespace, malformed.name if is_job else malformed.label)
        if job is not None:
            return Subject(job.namespace, job.name, job.uid) if job.value.bare.managed_by == names.MANAGER else None
        return Subject(malformed.namespace, malformed.name, malformed.uid) if is_job and malformed.namespace and malformed.name else None
