"""Guards: is a contribution one that a healthy run can make? Judged by the norm of its outer gradient, its tokens per step and its loss.

One value of 1e30, or a counter of 2^64-1, would take over a merge and destroy the parameters of the whole job. A guard refuses what is far
from everything that this job has seen. Its limits are wide: a contribution that is merely bad is merged, and the next broadcast repairs its
learner.

The contributions of one merge are judged together, so the order of arrival changes nothing. The reference is the larger of

- the **level of the job**: the highest median of an earlier merge. It never falls, and from merge to merge it at most doubles, so one
  contribution cannot raise it;
- the **level of the peers**: the median of the other contributions of this merge. If all of them grow, the job has changed, and no unit is
  at fault. The peers raise the reference by PEERS at most.

Medians are lower medians: of two contributions the smaller counts. Pure, and without arrays. See docs/decisions/0153-guards.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from diloco.wording import plural

ARMED_AFTER: Final = 4
"""Merges until a level is used. Before, a learning rate that warms up from zero multiplies norms by hundreds from one merge to the next."""
RISE: Final = 2.0
"""The level of the job rises at most by this factor from merge to merge."""
PEERS: Final = 1e3
"""The peers raise a reference to at most this multiple of the level of the job."""
ENOUGH_PEERS: Final = 2
"""Other contributions of a merge that replace a level of tokens or losses that is not known yet. Norms differ more between units then."""
NORM: Final = 100.0
"""A norm above this multiple of its reference is refused."""
SMALL: Final = 0.1
"""A norm below this multiple of the parameters' own norm is never refused: it can do no harm."""
FIRST_NORM: Final = 1e3
"""Before there is a level: a norm above this multiple of the parameters' own norm is refused."""
TOKENS_OF_UNIT: Final = 64.0
"""Tokens per step above this multiple of the reference are refused, once the unit has a history of its own."""
TOKENS: Final = 1e4
"""The same for a unit without history. Accelerators of one job may differ by a factor of hundreds in batch size."""
LOSS: Final = 10.0
"""A loss is refused that exceeds the highest recent one by this multiple of that one's size, or of the recent range if this is larger."""
RECENT: Final = 64
"""Merges whose losses are recent."""
MOST_TOKENS_PER_STEP: Final = 1 << 32
"""No learner takes so many tokens in one local step; the largest batches known have some 10^8."""
MOST_STEPS: Final = 1 << 32
"""No learner takes so many local steps between two adoptions: at a thousand a second they last 50 days."""
FORGET_AFTER: Final = 16
"""After so many merges in a row of which nothing was accepted, the job has changed, and its levels are learnt anew."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What is judged of one contribution."""

    unit: str
    norm: float
    """Euclidean norm of its outer gradient of the fragment; may be infinite or NaN."""
    steps: int
    """Local steps in it, positive."""
    tokens: int
    """Tokens of those steps."""
    loss: float
    """The unit's newest training loss; not finite: not given."""

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps


@dataclass(slots=True)
class Level:
    """The highest median of the merges so far, see the module."""

    merges: int = 0
    value: float = 0.0

    def note(self, median: float) -> None:
        """One more merge."""
        self.merges += 1
        highest = max(self.value, median)
        self.value = min(highest, RISE * self.value) if self.armed and self.value > 0 else highest

    @property
    def armed(self) -> bool:
        """Whether the level is known."""
        return self.merges >= ARMED_AFTER and self.value > 0

    def reference(self, peers: Sequence[float]) -> float:
        """With the other values of this merge; only if armed."""
        return min(max(self.value, lower_median(peers)), PEERS * self.value)


@dataclass(slots=True)
class Losses:
    """The losses of recent merges, and the highest of all."""

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    highest: float = -math.inf
    first: dict[str, float] = field(default_factory=dict)
    """Before the first merge: the first loss of each unit."""

    def began(self, unit: str, loss: float) -> None:
        """A unit trains on the job's first parameters. What it starts from is no sign of a fault later, in a unit that comes to train on
        them when the first one has left them far behind."""
        if not self.recent and unit not in self.first and math.isfinite(loss):
            self.first[unit] = loss
            self.highest = lower_median(list(self.first.values()))

    def note(self, median: float) -> None:
        """One more merge."""
        self.first.clear()
        self.recent.append(median)
        self.highest = max(self.highest, median)

    def limit(self, peers: Sequence[float]) -> float:
        """The highest loss that is accepted; infinity without history and enough peers."""
        if len(self.recent) < ARMED_AFTER and len(peers) < ENOUGH_PEERS:
            return math.inf
        known = [*self.recent, *([lower_median(peers)] if peers else [])]
        return max(self.highest, max(known) + LOSS * max(abs(max(known)), max(known) - min(self.recent, default=max(known))))


class Guard:
    """The levels of one job, and the verdicts by them."""

    def __init__(self, sizes: Sequence[int], sync_interval: int) -> None:
        """`sizes`: values per fragment. `sync_interval`: H."""
        self._sizes = tuple(sizes)
        self._interval = sync_interval
        self._parameters = [0.0] * len(sizes)
        self._norms = [Level() for _ in sizes]
        self._tokens = Level()
        self._tokens_of: dict[str, Level] = {}
        self._losses = Losses()
        self._barren = 0
        """Merges in a row of which nothing was accepted."""

    def begin(self, parameters: Sequence[float]) -> None:
        """The job, or this process, begins. `parameters`: per fragment, the Euclidean norm of its values."""
        everything = math.hypot(*parameters) / math.sqrt(sum(self._sizes))
        # A fragment that begins at zero (biases, adapters) moves on the scale of the whole model.
        self._parameters = [max(norm, everything * math.sqrt(size)) for norm, size in zip(parameters, self._sizes, strict=True)]

    def joined(self, unit: str) -> None:
        """Another process may act for the unit, with another batch size: its own history begins anew."""
        self._tokens_of.pop(unit, None)

    def reported(self, unit: str, loss: float) -> None:
        """A unit has taken a local step. `loss`: its training loss; not finite: not given."""
        self._losses.began(unit, loss)

    def impossible(self, steps: int, tokens: int, reported: int) -> str:
        """What cannot be a fact in the counters of a contribution; empty: nothing. `reported`: the learner's local steps as it reported
        them; the newest reports may still be on their way."""
        if tokens > MOST_TOKENS_PER_STEP * steps:
            claim = f"{plural(tokens, 'token')} in {plural(steps, 'step')}"
            return f"it claims {claim}; more than {MOST_TOKENS_PER_STEP} tokens in a step cannot be"
        if steps > MOST_STEPS:
            return f"it claims {steps} steps since it adopted the fragment; more than {MOST_STEPS} cannot be"
        if steps > reported + self._interval:
            return f"it claims {steps} steps since it adopted the fragment, and the learner has reported {reported} in all"
        return ""

    def judge(self, fragment: int, given: Sequence[Measured]) -> dict[str, str]:
        """Which of the contributions of one merge are refused: by unit, what was seen. Changes nothing."""
        verdicts: dict[str, str] = {}
        for one in given:
            peers = [other for other in given if other.unit != one.unit]
            if why := self._norm(fragment, one, peers) or self._tokens_per_step(one, peers) or self._loss(one, peers):
                verdicts[one.unit] = why
        return verdicts

    def merged(self, fragment: int, accepted: Sequence[Measured]) -> None:
        """Learn from what a merge was given and accepted."""
        if not accepted:
            self._barren += 1
            if self._barren >= FORGET_AFTER:
                self._forget()
            return
        self._barren = 0
        self._norms[fragment].note(lower_median([one.norm for one in accepted]))
        self._tokens.note(lower_median([one.tokens_per_step for one in accepted]))
        for one in accepted:
            self._tokens_of.setdefault(one.unit, Level()).note(one.tokens_per_step)
        if losses := [one.loss for one in accepted if math.isfinite(one.loss)]:
            self._losses.note(lower_median(losses))

    def _forget(self) -> None:
        self._norms = [Level() for _ in self._sizes]
        self._tokens, self._losses, self._barren = Level(), Losses(), 0
        self._tokens_of.clear()

    # --- the three quantities -----------------------------------------------------------------------------------------

    def _norm(self, fragment: int, one: Measured, peers: Sequence[Measured]) -> str:
        level, parameters = self._norms[fragment], self._parameters[fragment]
        if level.armed:
            reference = level.reference([other.norm for other in peers])
            limit = max(NORM * reference, SMALL * parameters)
        else:
            # All parameters may be zero; a root mean square of FIRST_NORM is then the limit.
            reference = parameters or math.sqrt(self._sizes[fragment])
            limit = FIRST_NORM * reference
        if one.norm <= limit:  # false for NaN
            return ""
        usual = f"this job has seen up to {reference:.3g}" if level.armed else f"the parameters themselves have {reference:.3g}"
        return f"the norm of its outer gradient is {one.norm:.3g}; {usual}, and the limit is {limit:.3g}"

    def _tokens_per_step(self, one: Measured, peers: Sequence[Measured]) -> str:
        others = [other.tokens_per_step for other in peers]
        if not self._tokens.armed and len(others) < ENOUGH_PEERS:
            return ""
        own = self._tokens_of.get(one.unit)
        reference = self._tokens.reference(others) if self._tokens.armed else lower_median(others)
        limit = TOKENS_OF_UNIT * max(reference, own.value) if own is not None and own.armed else TOKENS * reference
        if one.tokens_per_step <= limit:
            return ""
        return f"it has {one.tokens_per_step:.3g} tokens per step; the limit is {limit:.3g}"

    def _loss(self, one: Measured, peers: Sequence[Measured]) -> str:
        if not math.isfinite(one.loss):
            return ""
        limit = self._losses.limit([other.loss for other in peers if math.isfinite(other.loss)])
        return f"its training loss is {one.loss:.3g}; the limit is {limit:.3g}" if one.loss > limit else ""

    # --- state --------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """What a snapshot must hold."""
        return {
            "norms": [[level.merges, level.value] for level in self._norms],
            "tokens": [self._tokens.merges, self._tokens.value],
            "losses": list(self._losses.recent),
            "highest_loss": self._losses.highest if math.isfinite(self._losses.highest) else None,
        }

    def restore(self, stored: Mapping[str, Any]) -> None:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        norms = [Level(int(merges), float(value)) for merges, value in stored["norms"]]
        if len(norms) != len(self._sizes):
            raise ValueError(f"the stored levels are of {len(norms)} fragments, not {len(self._sizes)}")
        merges, value = stored["tokens"]
        tokens = Level(int(merges), float(value))
        recent = deque((float(x) for x in stored["losses"]), maxlen=RECENT)
        highest = float(stored["highest_loss"]) if stored["highest_loss"] is not None else -math.inf
        if not all(math.isfinite(x) for x in (*(level.value for level in norms), tokens.value, *recent)) or math.isnan(highest):
            raise ValueError("the stored levels hold NaN or infinity")
        self._norms, self._tokens, self._losses = norms, tokens, Losses(recent, highest)


def lower_median(values: Sequence[float]) -> float:
    """The median; of an even number the smaller of the two in the middle. 0 of none."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0.0
