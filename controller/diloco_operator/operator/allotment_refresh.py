"""Keeps the allotment of slices up to date beside the reconciles, and wakes the jobs that can act on a new one.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from typing import Protocol

from diloco.protocol.backoff import exponential

from diloco_operator.allotment import Allotment
from diloco_operator.allotment.flow import Answer, FlowPlan, answer
from diloco_operator.api.names import JobKey
from diloco_operator.operator.decision_log import allotted_line

log = logging.getLogger(__name__)

_DELAY = 0.01
"""Seconds. Changes of the fleet come in bursts, and one refresh serves all of a burst."""
AT_ONCE = 30
"""An allotment over at most this many jobs, with units of one size, takes a few milliseconds and is made at once. Others are made beside
the loop, once for all changes of a moment."""
_TURN_STEPS = 100
_TURN_SECONDS = 0.005
"""The most steps in one turn of the loop, and about the longest time for them."""
_RETRY, _LONGEST_RETRY = 1.0, 10.0
"""Seconds. Changes that concern many jobs wait for as long, so this is short."""


class Beside(Protocol):
    """Runs a function beside the event loop, such as `asyncio.to_thread`."""

    def __call__(self, work: Callable[[], Answer], /) -> Awaitable[Answer]: ...


class AllotmentRefresh:
    """Refreshes an allotment on one event loop.

    Args:
        wake: queues a job.
        failed: takes the jobs that could not be decided on because of a defect. They keep what they have, and it is tried again.
        beside: if None, everything runs on the loop.
    """

    def __init__(
        self,
        allotment: Allotment,
        wake: Callable[[JobKey], None],
        failed: Callable[[Iterable[JobKey], Exception], None],
        beside: Beside | None = None,
    ) -> None:
        self._allotment = allotment
        self._wake = wake
        self._failed = failed
        self._failures = 0
        """Refreshes in steps, one after the other, in which something failed."""
        self._beside = beside
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        """Makes an allotment in steps. None while none is being made so."""

    def soon(self) -> None:
        """Refresh in a moment, once for all that changes until then."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY, self.now)

    def now(self, deciding: str = "") -> None:
        """Refresh, and wake the jobs that can act on it, except `deciding`: the job that is being decided on. What concerns many jobs
        follows in a moment; until then the last allotment stands."""
        self._cancel_timer()
        self._wake_all(self._refreshed() - {deciding})
        if self._allotment.unfinished and self._task is None:
            self._task = asyncio.create_task(self._finish(), name="allotment")

    async def in_steps(self) -> None:
        """Refresh all that changed, in short turns of the loop. Problems are solved beside the loop."""
        failed = False
        for component in self._allotment.unsettled():
            try:
                await self._decide(component)
            except Exception as error:  # a defect that shows in some jobs must not stop the others
                failed = True
                log.exception("the allotment of slices failed: this is a defect of the operator, please report it")
                self._failed(map(_key_of, self._allotment.competing(component)), error)
        self._failures = self._failures + 1 if failed else 0

    async def _decide(self, component: int) -> None:
        loop = asyncio.get_running_loop()
        solution: Answer | None = None
        with closing(self._allotment.in_steps(component)) as steps:
            while True:
                until = loop.time() + _TURN_SECONDS
                for _ in range(_TURN_STEPS):
                    try:
                        problem = steps.send(solution)
                    except StopIteration as end:
                        self._wake_all(end.value)
                        return
                    solution = None
                    if problem is not None:
                        work = functools.partial(answer, problem)
                        solution = await self._beside(work) if self._beside is not None else work()
                        _log_gap(len(problem.jobs), solution[0])
                        break
                    if loop.time() >= until:
                        break
                await asyncio.sleep(0)

    @property
    def idle(self) -> bool:
        """Whether no allotment is being made in steps."""
        return self._task is None

    async def close(self) -> None:
        """Cancel a refresh that is due or under way."""
        self._cancel_timer()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _finish(self) -> None:
        """Make allotments in steps until nothing is left. Each is followed by a pause of the same length, so that it takes at most half the
        time, and waits for the changes of a moment."""
        loop = asyncio.get_running_loop()
        pause = _DELAY
        try:
            while self._allotment.unfinished:
                await asyncio.sleep(pause)
                begun = loop.time()
                await self.in_steps()
                self._wake_all(self._refreshed())  # what changed meanwhile and concerns few
                pause = max(_DELAY, loop.time() - begun)
                if self._failures:
                    pause = max(pause, exponential(_RETRY, _LONGEST_RETRY, self._failures))
        finally:
            self._task = None

    def _refreshed(self) -> set[str]:
        try:
            return self._allotment.refresh(AT_ONCE)
        except Exception:
            log.exception("the allotment of slices failed and is tried again in steps: this is a defect of the operator, please report it")
            return set()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_all(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            key = _key_of(job)
            if log.isEnabledFor(logging.DEBUG):
                log.debug("allotted to job %s/%s: %s", *key, allotted_line(self._allotment.of(job)))
            self._wake(key)


def _key_of(job: str) -> JobKey:
    """`job`: as `Job.key`, with the uid."""
    namespace, name, _ = job.split("/", 2)
    return namespace, name


def _log_gap(jobs: int, plan: FlowPlan) -> None:
    if plan.gap:
        less = 100 * plan.gap
        log.info("the allotment of %d jobs is worth up to %.2f %% less than the best one: their units have several sizes", jobs, less)
    if plan.undecided:
        log.info("time ran out for the minima of %d of these jobs: they keep waiting, and are decided on again", len(plan.undecided))
