"""Every time-out of the control plane, in seconds: what it means, and the order that they must keep. Pure.

A time-out that waits for another must be the longer one, or the inner error is never seen. Each class checks its own order when it is
made, and the errors name the two that are in the wrong order. `check_together` checks the order between classes.

See docs/decisions/0030-controller-loop.md. See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from diloco.protocol.backoff import ExponentialBackoff

type Named = tuple[str, float]
"""A time-out's name in error messages, and its seconds."""


def check_order(subject: str, *ascending: Named) -> None:
    """Raise ValueError unless each time-out is shorter than the next. It names the first two that are not."""
    for (name, seconds), (next_name, next_seconds) in itertools.pairwise(ascending):
        if not seconds < next_seconds:
            raise ValueError(f"{subject}: {name} ({seconds:g} s) must be shorter than {next_name} ({next_seconds:g} s)")


_ZERO: Named = ("zero", 0.0)


@dataclass(frozen=True, slots=True)
class RequestTimeouts:
    """One request to the API server, and the connections that requests share."""

    connect: float = 10.0
    """To open a connection."""
    retry_after: float = 20.0
    """The sum of all waits that one request grants a busy server (status 429 with Retry-After)."""
    write: float = 35.0
    """One write of a plan, longer than an admission webhook may take (30 s). After that nothing is known of its effect."""
    list_page: float = 60.0
    """One page of a list."""
    server: float = 60.0
    """The API server itself gives up a request after this time (its --request-timeout). Not set here."""
    answer: float = 70.0
    """Any request but a watch. Longer than `server`, so that the server's own error arrives."""
    event: float = 10.0
    """One write of an Event. Events are best effort."""
    watch_margin: float = 15.0
    """A watch that the server does not end in time is broken off this much later: its connection is dead."""
    idle: float = 60.0
    """An unused connection is closed after this time."""
    server_idle: float = 90.0
    """The API server closes an unused connection after this time. A request that is sent at that moment would fail. Not set here."""

    def __post_init__(self) -> None:
        times = "requests to the API server"
        check_order(times, _ZERO, ("connect", self.connect), ("retry_after", self.retry_after), ("write", self.write))
        check_order(times, ("write", self.write), ("server", self.server), ("answer", self.answer))
        check_order(times, ("event", self.event), ("write", self.write))
        check_order(times, _ZERO, ("list_page", self.list_page), ("answer", self.answer))
        check_order(times, _ZERO, ("idle", self.idle), ("server_idle", self.server_idle))
        check_order(times, _ZERO, ("watch_margin", self.watch_margin))


@dataclass(frozen=True, slots=True)
class CredentialTimeouts:
    """How long credentials for the API server are trusted."""

    retry: float = 10.0
    """Between two attempts to get credentials after one that failed."""
    reread: float = 60.0
    """Between two reads of token and certificate files. A kubelet renews a token when a fifth of its life, an hour or more, is left."""
    renew_before: float = 60.0
    """Credentials are renewed this long before they expire."""

    def __post_init__(self) -> None:
        check_order("credentials", _ZERO, ("retry", self.retry), ("reread", self.reread))


@dataclass(frozen=True, slots=True)
class LeaseTimeouts:
    """Leader election, with the names and meanings of every Kubernetes controller."""

    lease_duration: float = 15.0
    """Other replicas take the lease after this time without a renewal. Whole seconds."""
    renew_deadline: float = 10.0
    """The leader stops writing this long after its last successful renewal was sent."""
    retry_period: float = 2.0
    """Between two renewals, and between two checks of a lease that another replica holds."""

    def __post_init__(self) -> None:
        check_order(
            "leader election",
            _ZERO,
            ("retry period", self.retry_period),
            ("renew deadline", self.renew_deadline),
            ("lease duration", self.lease_duration),
        )
        if self.lease_duration != int(self.lease_duration):
            raise ValueError(f"the lease duration must be whole seconds, as the Lease object has it, not {self.lease_duration:g} s")

    @property
    def attempt(self) -> float:
        """One attempt to renew. Two fit before the deadline, so that one dead connection does not cost the lease."""
        return self.renew_deadline / 2

    @property
    def delivery(self) -> float:
        """A write that was sent in time reaches the API server within this, or the kernel drops it: no other replica leads before."""
        return self.lease_duration - self.renew_deadline


@dataclass(frozen=True, slots=True)
class WatchTimeouts:
    """One reflector. API servers that send bookmarks send them every minute: `read` is longer, so that no such watch is resumed for
    nothing."""

    watch: float = 300.0
    """The server ends a watch after this, up to doubled by jitter."""
    read: float = 90.0
    """A watch that delivers nothing for this time, not even a bookmark, is resumed: its connection may be dead."""
    short: float = 1.0
    """A watch that ended sooner and delivered nothing counts as failed. Otherwise a broken server would be asked in a tight loop."""
    refused: float = 30.0
    """How long the server must refuse objects, or not know their resource, until those that it served before count as gone."""
    backoff: ExponentialBackoff = field(default_factory=lambda: ExponentialBackoff(initial=0.5, ceiling=30.0))

    def __post_init__(self) -> None:
        check_order("a watch", _ZERO, ("short", self.short), ("read", self.read), ("watch", self.watch))


@dataclass(frozen=True, slots=True)
class TelemetryTimeouts:
    """The stream of reports from one syncer. A syncer reports at least once an interval."""

    interval: float = 2.0
    """How often the syncer reports although nothing changed."""
    notify_interval: float = 5.0
    """How often a job is reconciled when only its progress changed."""
    spacing: float = 0.25
    """The least time between two reports that are read of one syncer, however fast it sends them."""
    large_spacing: float = 2.0
    """The least time after a large report: one is read in each interval."""
    read: float = 15.0
    """A stream that brings nothing for this time is opened anew."""
    tell: float = 5.0
    """The least time between two `Tell` calls of a part."""
    tell_again: float = 60.0
    """How often a part tells its state although nothing changed."""
    late_reports: float = 1.0
    """How long the reports that a syncer has sent are still read once its pod does not run any more."""
    certificate: float = 3600.0
    """Lifetime of the operator's own certificate. Each connection has a new one, and it is checked once, when the connection opens."""
    backoff: ExponentialBackoff = field(default_factory=lambda: ExponentialBackoff(initial=0.2, ceiling=10.0))
    unreadable: ExponentialBackoff = field(default_factory=lambda: ExponentialBackoff(initial=5.0, ceiling=300.0))
    """How long a syncer whose report cannot be read is left alone."""

    def __post_init__(self) -> None:
        check_order("telemetry", _ZERO, ("interval", self.interval), ("read", self.read), ("certificate", self.certificate))


@dataclass(frozen=True, slots=True)
class EndpointTimeouts:
    """What the process serves over HTTP. One connection carries one request."""

    request: float = 5.0
    """From the accept, through the TLS handshake, to the end of the request's headers."""
    connection: float = 20.0
    """From the accept to the last byte of the answer."""
    accept_retry: float = 0.2
    """Pause after an accept that failed, for instance because the process has no file descriptor left."""
    page: float = 1.0
    """How long one text of /metrics is handed out."""
    access: float = 10.0
    """How long an answer of the API server on who may read /metrics counts, also after a token or a right was taken away."""

    def __post_init__(self) -> None:
        check_order("an endpoint", _ZERO, ("request", self.request), ("connection", self.connection))


@dataclass(frozen=True, slots=True)
class ReconcileTimeouts:
    syncer_answer: float = 20.0
    """A syncer that has not reported for this time does not answer. It reports every 2 s, and its stream is opened anew after 15 s without
    a report: a busy machine has that time, and some seconds more for the first report of the new stream."""

    postpone_status: float = 2.0
    """How long the status of a big job may be left to later reconciles."""
    expectation: float = 35.0
    """An expectation ends after this. Then the job's pods are listed, and nothing is decided while the cache has others."""
    stop: float = 10.0
    """The time that running reconciles have to end their writes when the process stops."""
    end_by_itself: float = 30.0
    """The time that the pods of a complete job have to end by themselves. If they do, they stay, for their logs."""
    stuck_deletion: float = 60.0
    """A pod that still exists this long after its grace is stuck: no other job can count on its slice."""
    hold_in_vain: float = 300.0
    """How long a job that cannot train until a person acts keeps hardware that it has begun to use, before it gives it back."""
    hold_without_syncer: float = 3600.0
    """How long units keep their hardware although the syncer does not serve: it may come back by itself, and they would have to start anew.
    So does a part that hears nothing of home, unless its spec says otherwise."""
    node_seen: float = 30.0
    """The scheduler may know a new node before the operator does. The operator must see it this long after a pod was bound to it."""
    half_bound: float = 30.0
    """When some pods of a unit have been bound for this time and others have not, kube-scheduler finds no place for the others there."""
    grantor_events: float = 15.0
    """Between two looks at what autoscalers say about pods that wait for nodes."""
    admission: float = 300.0
    """How long a dry run that the API server admitted shows that pods of its pool are admitted."""
    in_vain: float = 60.0
    """The pause before the next dry run for a pool after pods were refused that a dry run had admitted. It doubles each time in a row. A
    quota with room for some pods of a unit admits each of them alone."""
    in_vain_max: float = 1800.0
    """Longest such pause."""
    event_cool_down: float = 10.0
    """Between two writes of one Event. If it is emitted meanwhile, that goes into its count."""
    crd_retry: float = 5.0
    """Between two checks of the CustomResourceDefinition while something is wrong with it."""
    crd_recheck: float = 300.0
    """Between two checks while all is well."""

    def __post_init__(self) -> None:
        check_order("reconcile", _ZERO, ("postpone_status", self.postpone_status), ("expectation", self.expectation))
        check_order("reconcile", _ZERO, ("crd_retry", self.crd_retry), ("crd_recheck", self.crd_recheck))
        check_order("reconcile", _ZERO, ("in_vain", self.in_vain), ("in_vain_max", self.in_vain_max))


@dataclass(frozen=True, slots=True)
class ExportTimeouts:
    """An export through a pod."""

    poll: float = 0.5
    """Between two looks at the pod while it starts."""
    silence: float = 120.0
    """A stream that brings nothing for this time is broken. The sender says something whenever it has read 128 MiB."""
    start: float = 600.0
    """From the creation of the pod until it runs: a node may have to be made for it, and the image pulled."""
    whole: float = 7200.0
    """The whole export. The pod then ends by itself, in case this command cannot delete it."""

    def __post_init__(self) -> None:
        check_order("export", _ZERO, ("poll", self.poll), ("silence", self.silence), ("start", self.start), ("whole", self.whole))


def check_together(requests: RequestTimeouts, *, expectation: float, stop: float) -> None:
    """Raise ValueError if time-outs of different classes do not fit. `expectation` and `stop` are as in `ReconcileTimeouts`."""
    if requests.write > expectation:
        write = f"the time-out of a write ({requests.write:g} s)"
        raise ValueError(f"{write} must not be longer than that of an expectation ({expectation:g} s)")
    if requests.event > stop:
        raise ValueError(f"the time-out of an Event ({requests.event:g} s) must not be longer than the time to stop ({stop:g} s)")


REQUESTS = RequestTimeouts()
CREDENTIALS = CredentialTimeouts()
ENDPOINTS = EndpointTimeouts()
RECONCILE = ReconcileTimeouts()
EXPORT = ExportTimeouts()

STANDBY_RETRY = 0.05
"""Shortest pause between two attempts to take a lease."""
LAST_RENEWALS = 0.2
"""Shortest pause between two attempts to renew a lease that is about to run out."""
