"""The page that `kubectl diloco explain` prints. Pure; times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterable

from diloco.wording import and_more
from diloco_operator.kube.timestamps import format_timestamp

from diloco_cli.dominant import Cause
from diloco_cli.explanation import Explanation, PoolExplained, UnitsExplained
from diloco_cli.runbook import url_of
from diloco_cli.view_model import flag_of, log_command
from diloco_cli.view_text import duration, ordinal
from diloco_cli.wrapped_text import wrapped

_LABEL = 18
"""Width of the label before the text of a row, in columns."""
_NAMED = 5
"""Units of a group that are named."""
_ANSWERED = (Cause.OVER, Cause.NOT_SEEN, Cause.REFUSED, Cause.SUSPENDED)
"""Causes that the sentence at the top tells."""
_OF_JOB = (Cause.BLOCKED, Cause.SYNCER, Cause.WARNED)
"""Causes of the whole job. No pool or unit below has the operator's words for them."""


def explanation_text(explained: Explanation, now: float, width: int = 0) -> str:
    """Render the explanation for a terminal of `width` columns. 0 does not wrap lines, for a file or another program."""
    subject = f"{explained.name} in namespace {explained.namespace} is " if explained.state else ""
    lines = wrapped(f"{subject}{explained.answer}", "", width)
    lines += _rows(_dominant_rows(explained, now), width)
    for pool in explained.pools:
        lines += ["", *wrapped(_pool_head(pool), "", width)]
        lines += _rows(_pool_rows(pool, now), width)
    for group in explained.units:
        lines += ["", *wrapped(_units_head(group), "", width)]
        lines += _rows(_unit_rows(explained, group, now), width)
    if explained.beginnings:
        lines += ["", "units that came back, and what they began with"]
        lines += _rows(explained.beginnings, width)
    if explained.hosts:
        lines += ["", "hosts on which attempts failed"]
        lines += _rows(
            (
                (
                    host.node,
                    f"{'avoided until' if host.until > now else 'was avoided until'} {format_timestamp(host.until)}: {host.message}",
                )
                for host in explained.hosts
            ),
            width,
        )
    if explained.notes:
        lines += ["", *(line for note in explained.notes for line in wrapped(f"Note: {note}", "", width))]
    return "\n".join(lines)


def _dominant_rows(explained: Explanation, now: float) -> Iterable[tuple[str, str]]:
    main = explained.dominant
    if main.cause not in (Cause.NOTHING, *_ANSWERED):
        of_job = main.cause in _OF_JOB
        yield "cause", f"{main.reason}: {main.evidence}" if of_job else f"{main.reason} ({main.subject}): {main.meaning}"
    if main.next_step:
        yield "next step", main.next_step
    following = next((event for event in explained.upcoming if event.at > now), None)
    if following is not None:
        yield "by itself", f"in {duration(following.at - now)} {following.what}"
    if page := url_of(main.reason):
        yield "runbook", page


def _pool_head(pool: PoolExplained) -> str:
    of = f" of at most {pool.max}" if pool.max is not None else ", no longer in the spec"
    least = f" (at least {pool.min})" if pool.min else ""
    hardware = f" ({pool.hardware})" if pool.hardware else ""
    return f"POOL {pool.name}{hardware}: {pool.placed} placed{of}{least}, {pool.contributing} contributing"


def _pool_rows(pool: PoolExplained, now: float) -> Iterable[tuple[str, str]]:
    if not pool.reason:
        yield "why not more", pool.why
        return
    since = f" since {_since(pool.waiting_since, now)}" if pool.waiting_since is not None else ""
    yield "why not more", f"{pool.reason}{since}: {pool.why}"
    for index, remedy in enumerate(pool.help):
        yield "" if index else "what would help", f"- {remedy}"
    if pool.nodes:
        yield "nodes now", pool.nodes
    if pool.place is not None:
        several = f"{ordinal(pool.place.position)} of {pool.place.of} jobs that wait for such hardware"
        yield "in line", several if pool.place.of > 1 else "no other job waits for such hardware"


def _units_head(group: UnitsExplained) -> str:
    named = and_more(group.names[:_NAMED], len(group.names))
    reason = f", {group.reason}" if group.reason else ""
    where = f", on {group.slice}" if group.slice else ""
    return f"{'UNIT' if len(group.names) == 1 else 'UNITS'} {named}: {group.state}{reason}{where}"


def _unit_rows(explained: Explanation, group: UnitsExplained, now: float) -> Iterable[tuple[str, str]]:
    if group.message:
        yield "why", group.message
    if group.since is not None:
        yield "since", _since(group.since, now)
    if group.not_before is not None and group.not_before > now:
        yield "next attempt", f"not before {format_timestamp(group.not_before)}, in {duration(group.not_before - now)}"
    if group.restarts:
        yield "restarts", f"{group.restarts} so far"
    if (failure := group.last_failure) is not None:
        when = [_since(failure.at, now)] if failure.at is not None else []
        head = ", ".join([*when, *([f"attempt {failure.attempt}"] if failure.attempt else [])])
        yield "last failure", ": ".join(part for part in (head, failure.reason, failure.message) if part)
        if failure.attempt:  # else the end was no failure, and the pods do not stay
            flags = f"-n {explained.namespace}{flag_of(explained.context)}"
            yield "its log", log_command(explained.name, group.names[0], flags, failed=failure.attempt, newest=group.attempt)


def _since(moment: float, now: float) -> str:
    return f"{format_timestamp(moment)} ({duration(max(0.0, now - moment))} ago)"


def _rows(rows: Iterable[tuple[str, str]], width: int) -> list[str]:
    lines: list[str] = []
    for label, text in rows:
        lines += wrapped(text, f"  {label.ljust(_LABEL - 2)}", width)
    return lines
