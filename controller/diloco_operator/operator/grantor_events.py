"""What autoscalers say about the pods that wait for nodes: the Events that they write about them.

An autoscaler says only in Events why it brings no node. Most of the many Events are about other pods, so they are not watched. While pods
of a job wait, the Events of a few of them are listed now and then, one request at a time for the whole operator.

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from diloco_operator.api import names
from diloco_operator.api.names import JobKey
from diloco_operator.kube.client import ApiError, Client, Forbidden, Obj
from diloco_operator.kube.fields import MalformedField, fields, moment, string, text
from diloco_operator.kube.listing import list_all
from diloco_operator.reconcile import PodView
from diloco_operator.timeouts import RECONCILE

log = logging.getLogger(__name__)

SPEAKERS = ("cluster-autoscaler", "karpenter")
"""Components that write Events about pods for which they do, or cannot, bring nodes. GKE's is the cluster autoscaler."""
_PODS = 4
"""Pods of one job that are asked about: the first ones that wait. Autoscalers say the same about the others."""
_MOST_EVENTS = 2000
"""The most Events of one pod that are read, since a user may write many."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    key: JobKey
    pod: str
    uid: str


class GrantorEvents:
    """Keeps what autoscalers said last about pods that wait. `wake` queues a job when one says something new about its pods."""

    def __init__(self, client: Client, wake: Callable[[JobKey], None]) -> None:
        self._client = client
        self._wake = wake
        self._waiting: dict[JobKey, list[_Waiting]] = {}
        self._words: dict[str, str] = {}
        """What was said last about each pod that waits, by its uid."""
        self._refused: set[str] = set()
        """Namespaces in which the right to list Events is missing. The log names each once."""
        self._follows = asyncio.Event()

    def follow(self, key: JobKey, pods: Iterable[PodView]) -> None:
        """Follow the pods of a job that wait for nodes now. Pods that no longer wait are forgotten."""
        waiting = [pod for pod in pods if pod.grantor and not pod.node and pod.deletion is None and pod.uid]
        first = sorted(waiting, key=lambda pod: (pod.created, pod.name))[:_PODS]
        before = self._waiting.pop(key, [])
        now = [_Waiting(key, pod.name, pod.uid) for pod in first]
        for gone in {each.uid for each in before} - {each.uid for each in now}:
            self._words.pop(gone, None)
        if now:
            self._waiting[key] = now
            self._follows.set()

    def forget(self, key: JobKey) -> None:
        self.follow(key, ())

    def of(self, key: JobKey) -> Mapping[str, str]:
        """What an autoscaler said last about each pod of the job, by the pod's name. Pods without words are left out."""
        return {each.pod: words for each in self._waiting.get(key, ()) if (words := self._words.get(each.uid))}

    async def run(self) -> None:
        """List Events of pods that wait, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._follows.wait()
            begun = loop.time()
            for key in list(self._waiting):
                for each in self._waiting.get(key, ()):
                    await self._ask(each)
            if not self._waiting:
                self._follows.clear()
            await asyncio.sleep(max(RECONCILE.grantor_events - (loop.time() - begun), RECONCILE.grantor_events / 10))

    async def _ask(self, waiting: _Waiting) -> None:
        namespace = waiting.key[0]
        try:
            about = f"involvedObject.kind=Pod,involvedObject.uid={waiting.uid}"
            events = await list_all(self._client, names.EVENTS, namespace, fields=about, most=_MOST_EVENTS)
        except Forbidden as error:
            if namespace not in self._refused:
                log.warning("status cannot say what autoscalers say about pods in namespace %s: %s", namespace, error)
            self._refused.add(namespace)
            return
        except ApiError as error:
            log.debug("the events of pod %s/%s cannot be listed now: %s", namespace, waiting.pod, error)
            return
        self._refused.discard(namespace)
        words = latest_message(events)
        # The pod may have stopped waiting while the request ran.
        if words and words != self._words.get(waiting.uid) and waiting in self._waiting.get(waiting.key, ()):
            self._words[waiting.uid] = words
            self._wake(waiting.key)


def latest_message(events: Iterable[Obj]) -> str:
    """Return what an autoscaler said last in these Events of one pod, or "" if none said anything. Malformed Events are passed over, since
    anyone may write Events."""
    messages = []
    for event in events:
        try:
            speaker = string(event, "reportingComponent") or string(fields(event, "source"), "component")
            if speaker in SPEAKERS and (words := text(event, "message")):
                messages.append((_when(event), words))
        except MalformedField:
            continue
    return max(messages, default=(0.0, ""))[1]


def _when(event: Obj) -> float:
    series, meta = fields(event, "series"), fields(event, "metadata")
    moments = (
        moment(series, "lastObservedTime", "series"),
        moment(event, "lastTimestamp"),
        moment(event, "eventTime"),
        moment(meta, "creationTimestamp", "metadata"),
    )
    return next((each for each in moments if each is not None), 0.0)
