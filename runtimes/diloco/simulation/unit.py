"""A learner unit as a state machine: it takes steps, loses slices, starts again, and answers the syncer between its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from numpy.random import Generator

from diloco.algorithm.effects import Pull
from diloco.algorithm.events import Metadata
from diloco.contract import HEARTBEAT
from diloco.goodput import Accounts, Use
from diloco.simulation.failures import ReturnDelay
from diloco.simulation.path import FREE, Path
from diloco.simulation.timeline import Timeline

TOKENS: Final = 1000
"""Tokens of a slice in a step."""
SHORTEST_STEP: Final = 0.1
"""The shortest duration of a step whose duration varies, in mean steps."""
_AFTER_A_SECOND: Final = ReturnDelay(1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a unit runs on, and how it fails. The default is one chip that never fails."""

    slices: int = 1
    chips_per_slice: int = 1
    chip_seconds_between_failures: float = math.inf
    """Mean time between failures of one chip, in seconds; infinity if none fails."""
    step_seconds: float = 1.0
    down_seconds: float = 0.0
    """Seconds from a failure until the unit trains again."""
    up_seconds: float = 0.0
    """Seconds until the unit trains with a slice that has come back."""
    returns: ReturnDelay = _AFTER_A_SECOND
    elastic: bool = True
    """The unit trains on without the slices that are out. Otherwise it waits `down_seconds` for replacements, and then has all slices
    again."""
    step_variation: float = 0.0
    """Standard deviation of the duration of a step, in mean steps; normal, at least `SHORTEST_STEP`."""
    start_seconds: float = 0.0
    """Seconds of the first start until the program runs."""
    compile_seconds: float = 0.0
    """Seconds of the first start from then until the first step begins."""
    detect_seconds: float = 0.0
    """The part of `down_seconds` from a failure until the unit starts again."""
    answers_at_once: bool = False
    """The unit copies its parameters to host memory after each step, as in the paper, and answers pulls from there while the next step
    runs. Otherwise it answers between its steps."""
    path: Path = FREE
    """The path to the syncer."""


class Syncer(Protocol):
    """What a unit reports to the syncer."""

    def connected(self, unit: SimulatedUnit) -> None:
        """The unit's process has begun, and asks for the parameters. Call the unit's `received` when it has them."""
        ...

    def joined(self, unit: SimulatedUnit) -> None:
        """The unit has the present parameters and begins to train."""
        ...

    def left(self, unit: SimulatedUnit) -> None:
        """The unit's process is gone, after it had asked for the parameters."""
        ...

    def paused(self, unit: SimulatedUnit, until: float) -> None:
        """The unit announces that it takes no steps until `until`."""
        ...

    def adopted(self, unit: SimulatedUnit, fragment: int, version: int) -> None:
        """The unit has adopted this version of the fragment: all fragments before `joined`, later one at a time."""
        ...

    def stepped(self, unit: SimulatedUnit, metadata: Metadata) -> None:
        """The unit has taken a step."""
        ...

    def answered(self, unit: SimulatedUnit, pull: Pull, base: int, steps: int, tokens: int) -> None:
        """The unit answers a pull. `base`: the version of the fragment that it has adopted."""
        ...


class Slices(Protocol):
    """Manages the slices of units. Such a unit is lost as a whole when one of its accelerators fails."""

    def failed(self, unit: SimulatedUnit) -> None:
        """The unit has ended with a failure. Call its `place` or `wait` then."""
        ...

    def trains(self, unit: SimulatedUnit) -> None:
        """The unit has the parameters and begins to train."""
        ...

    def slowdown(self, unit: SimulatedUnit) -> float:
        """How many times as long the unit's next step takes."""
        ...


class SimulatedUnit:
    def __init__(
        self,
        name: str,
        hardware: Hardware,
        fragments: int,
        timeline: Timeline,
        syncer: Syncer,
        random: Generator,
        tokens: int = TOKENS,
        slices: Slices | None = None,
    ) -> None:
        """`tokens`: of a slice in a step. `slices`: gives the unit its slices; None if it keeps those of its `Hardware`, see
        `Hardware.elastic`."""
        self.name = name
        self.hardware = hardware
        self.accounts = Accounts()
        self.present = hardware.slices
        """Slices that the unit has."""
        self.training = False
        """The unit is in a step that no failure ends."""
        self.joined_at: float | None = None
        """When the unit first began to train, in seconds; None before."""
        self.failures = 0
        self._slices = slices
        self._slice_wanted_since: float | None = None
        """Since when the unit has waited for a slice without that being booked; None if it has slices, or wants none."""
        self._attempt = 0
        """Number of the unit's process. What an earlier process had planned does not happen."""
        self._connected = False
        """The unit's process has asked for the parameters, and has not ended."""
        self._busy: tuple[Use, float, float] | None = None
        """What the unit is busy with, since when and until when; None if it rests, or has no slice."""
        self._on_leaving: list[Callable[[], None]] = []
        """If not empty, the unit leaves at the end of its step, and then calls these."""
        self._failed_last = False
        """The last attempt ended with a failure, which had to be noticed."""
        self._resting = False
        """The syncer has told the unit to take no step."""
        self._rests_since: float | None = None
        """Since when the present rest is not booked; None if the unit does something."""
        self._rests = 0
        self._fragments = fragments
        self._timeline = timeline
        self._syncer = syncer
        self._random = random
        self._tokens_per_slice = tokens
        self._step = 0
        self._step_seconds = hardware.step_seconds
        """Seconds of the newest step."""
        self._tokens = 0
        self._adopted_step = [0] * fragments
        self._adopted_tokens = [0] * fragments
        self._adopted_version = [0] * fragments
        self._spent_on = Use.START
        """The use that the wait for the parameters is booked as."""
        self._asked_at: float | None = None
        """Since when the unit waits for the parameters; None if it does not."""
        self._returns: list[float] = []
        """When each slice that is out comes back, in seconds."""
        self._pulls: list[Pull] = []
        self._arrived: dict[int, int] = {}
        """Versions of fragments whose broadcasts wait for the end of the step under way."""

    @property
    def tokens(self) -> int:
        return self._tokens

    # --- what the syncer says -----------------------------------------------------------------------------------------

    def begin(self, at: float) -> None:
        """Start at `at`, in seconds, and train when ready."""
        self._later(at, self._start)

    def received(self, versions: Sequence[int]) -> None:
        """The parameters have come: these versions of the fragments."""
        self._book_copy()
        if self.joined_at is None:
            self.joined_at = self._timeline.now
        # Newer versions may have come while these were on their way.
        for p, version in enumerate(versions):
            self._adopt(p, max(version, self._arrived.get(p, version)))
        self._pulls.clear()
        self._arrived.clear()
        self._resting = False
        self._syncer.joined(self)
        self._next_step()
        if self._slices is not None and self._busy is not None:
            self._slices.trains(self)

    def pulled(self, pull: Pull) -> None:
        """Answer at the end of the step under way; at once if the unit rests, or has `Hardware.answers_at_once`."""
        if self.hardware.answers_at_once or self._rests_since is not None:
            self._answer(pull)
        else:
            self._pulls.append(pull)

    def merged(self, fragment: int, version: int) -> None:
        """A new version of the fragment has come. Adopt it at the end of the step under way; at once if the unit rests."""
        # The version ends the exchange that has asked for the fragment: an answer would be sent in vain.
        self._pulls = [pull for pull in self._pulls if pull.fragment != fragment]
        if self._rests_since is not None:
            self._adopt(fragment, version)
        else:
            self._arrived[fragment] = version

    def rest(self, rests: bool) -> None:
        """Take no further step if `rests`, else go on."""
        self._resting = rests
        if not rests and self._rests_since is not None:
            self._book_rest()
            self._rests_since = None
            self._next_step()

    # --- what its slices do -------------------------------------------------------------------------------------------

    def leave(self, deadline: float, then: Callable[[], None]) -> None:
        """Drain: end the step under way and leave, at the latest at `deadline`, in seconds. Calls `then` when the unit has left."""
        self._on_leaving.append(then)
        in_step = self._busy is not None and self._busy[0] in (Use.TRAINING, Use.LOST_WORK)
        if in_step and deadline > self._timeline.now:
            self._timeline.at(deadline, partial(self._in_attempt, self._attempt, self._cut))
        else:
            self._cut()

    def lost(self) -> None:
        """The slices are lost, without notice."""
        self.failures += 1
        self._cut(failed=True)

    def place(self, hardware: Hardware) -> None:
        """The unit gets slices, and starts on them."""
        self.book()
        self._slice_wanted_since = None
        self.hardware, self.present = hardware, hardware.slices
        seconds = hardware.down_seconds - (0.0 if self._failed_last else hardware.detect_seconds)
        self._spend(Use.RECOVERY, seconds, self._join)

    def wait(self, *, wanted: bool) -> None:
        """The unit has no slices. `wanted`: the job wants it to have some."""
        self.book()
        self._slice_wanted_since = self._timeline.now if wanted else None

    def _cut(self, *, failed: bool = False) -> None:
        """End what the unit does now, and its process."""
        if self._busy is not None:
            use, since, until = self._busy
            now, missing = self._timeline.now, self.hardware.slices - self.present
            # `_spend` has booked the whole time in advance. Take back what is left of it.
            self.accounts.add(use, self.present, missing, now - until)
            if use is Use.TRAINING:
                self.accounts.add(Use.TRAINING, self.present, 0, since - now)
                self.accounts.add(Use.LOST_WORK, self.present, 0, now - since)
        self._end(failed=failed)

    def _end(self, *, failed: bool) -> None:
        """End the process and give the slices up."""
        self.book()
        self._attempt += 1
        self._failed_last = failed
        self._rests_since, self._busy, self._asked_at = None, None, None
        self.training = False
        self.present, self._spent_on = 0, Use.RECOVERY
        if self._connected:
            self._connected = False
            self._syncer.left(self)
        thens, self._on_leaving = self._on_leaving, []
        for then in thens:
            then()

    # --- what it does -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        hardware = self.hardware
        if hardware.start_seconds:
            self._spend(Use.START, hardware.start_seconds, self._compile)
        else:
            self._compile()

    def _compile(self) -> None:
        if self.hardware.compile_seconds:
            self._spend(Use.COMPILE, self.hardware.compile_seconds, self._join)
        else:
            self._join()

    def _join(self) -> None:
        self._busy = None
        self._asked_at, self._connected = self._timeline.now, True
        self._syncer.connected(self)

    def _next_step(self) -> None:
        hardware = self.hardware
        if self._on_leaving:
            self._end(failed=False)
            return
        if self._take_back() and hardware.elastic:
            self._spend(Use.RECONFIGURATION, hardware.up_seconds, self._next_step)
            self._syncer.paused(self, self._timeline.now + hardware.up_seconds)
            return
        if self._resting:
            self._busy = None
            self._rests_since = self._timeline.now
            self._rests += 1
            number = self._rests
            self._timeline.at(self._timeline.now + HEARTBEAT, lambda: self._still_rests(number))
            return
        seconds = hardware.step_seconds
        if hardware.step_variation:
            seconds *= max(SHORTEST_STEP, 1.0 + hardware.step_variation * float(self._random.standard_normal()))
        if self._slices is not None:
            seconds *= self._slices.slowdown(self)
        self._step_seconds = seconds
        mean = self.present * hardware.chips_per_slice * seconds / hardware.chip_seconds_between_failures
        failed = min(int(self._random.poisson(mean)), self.present)
        if not failed:
            self.training = True
            self._spend(Use.TRAINING, seconds, self._stepped)
            return
        # The whole step is lost, because its failures show at its end, as in the paper's simulation.
        self._spend(Use.LOST_WORK, seconds, lambda: self._failed(failed))

    def _still_rests(self, number: int) -> None:
        """Repeat the last report every `HEARTBEAT` during rest `number`, as a learner does."""
        if self._rests_since is None or number != self._rests:
            return
        self._book_rest()
        self._report()
        self._timeline.at(self._timeline.now + HEARTBEAT, lambda: self._still_rests(number))

    def _book_rest(self) -> None:
        assert self._rests_since is not None, "it rests"
        now = self._timeline.now
        self.accounts.add(Use.WAITING, self.present, self.hardware.slices - self.present, now - self._rests_since)
        self._rests_since = now

    def _book_copy(self) -> None:
        """Book the wait for the parameters, which ends."""
        if self._asked_at is not None and (seconds := self._timeline.now - self._asked_at) > 0:
            self.accounts.add(self._spent_on, self.present, self.hardware.slices - self.present, seconds)
        self._asked_at = None

    def _stepped(self) -> None:
        self.training = False
        self._step += 1
        self._tokens += self.present * self._tokens_per_slice
        self._report()
        pulls, self._pulls = self._pulls, []
        for pull in pulls:
            self._answer(pull)
        for fragment, version in self._arrived.items():
            self._adopt(fragment, version)
        self._arrived.clear()
        self._later(self._timeline.now, self._next_step)  # not directly: the syncer's reaction to the report comes first

    def _adopt(self, fragment: int, version: int) -> None:
        self._adopted_step[fragment], self._adopted_tokens[fragment] = self._step, self._tokens
        self._adopted_version[fragment] = version
        self._syncer.adopted(self, fragment, version)

    def _answer(self, pull: Pull) -> None:
        p = pull.fragment
        steps, tokens = self._step - self._adopted_step[p], self._tokens - self._adopted_tokens[p]
        self._syncer.answered(self, pull, self._adopted_version[p], steps, tokens)

    def _report(self) -> None:
        step, tokens = self._step, self._tokens
        steps = tuple([step - before for before in self._adopted_step])
        since = tuple([tokens - before for before in self._adopted_tokens])
        self._syncer.stepped(self, Metadata(step, steps, since, self._step_seconds))

    def _failed(self, slices: int) -> None:
        """`slices` slices failed in the step that ends: start again without them."""
        now, hardware = self._timeline.now, self.hardware
        self.failures += 1
        if self._slices is not None:
            leaves = bool(self._on_leaving)
            self._end(failed=True)
            if not leaves:  # a unit that was leaving has given its slices up already
                self._slices.failed(self)
            return
        self._connected = False
        self._syncer.left(self)
        self._spent_on = Use.RECOVERY
        self.present -= slices
        if hardware.elastic:
            self._returns += [now + hardware.returns.draw(self._random) for _ in range(slices)]
        else:
            self._returns += [now + hardware.down_seconds] * slices
        self._take_back()
        self._spend(Use.RECOVERY, hardware.down_seconds, self._restarted)

    def book(self) -> None:
        """Book the time so far of what has no planned end: rest, and the waits for the parameters and for a slice."""
        now = self._timeline.now
        if self._rests_since is not None:
            self._book_rest()
        if self._asked_at is not None:
            self._book_copy()
            self._asked_at = now
        if self._slice_wanted_since is not None:
            self.accounts.add(Use.RECOVERY, 0, self.hardware.slices, now - self._slice_wanted_since)
            self._slice_wanted_since = now

    def _restarted(self) -> None:
        self._take_back()  # slices that have come back meanwhile take part in the new start
        if self.present:
            self._join()
            return
        until = min(self._returns)
        self._spend(Use.RECOVERY, until - self._timeline.now, self._restarted)

    def _take_back(self) -> bool:
        """Take the slices that have come back. Returns whether there were some."""
        if not self._returns:
            return False
        now = self._timeline.now
        back = sum(at <= now for at in self._returns)
        if back:
            self._returns = [at for at in self._returns if at > now]
            self.present += back
        return bool(back)

    def _spend(self, use: Use, seconds: float, then: Callable[[], None]) -> None:
        """Be busy with `use` for `seconds`, and then call `then`."""
        now = self._timeline.now
        self._busy = (use, now, now + seconds)
        self.accounts.add(use, self.present, self.hardware.slices - self.present, seconds)
        self._later(now + seconds, then)

    def _later(self, when: float, do: Callable[[], None]) -> None:
        """Call `do` at `when`, in seconds, unless this attempt has ended before."""
        if self._slices is None:
            self._timeline.at(when, do)
        else:
            self._timeline.at(when, partial(self._in_attempt, self._attempt, do))

    def _in_attempt(self, attempt: int, do: Callable[[], None]) -> None:
        """Call `do`, unless this attempt has ended."""
        if attempt == self._attempt:
            do()
