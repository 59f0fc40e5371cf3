"""Guards: could a healthy run make this contribution? They judge the norm of its outer gradient and its tokens per step.

One value of 1e30, or a counter of 2^64-1, would take over a merge and destroy the parameters of the whole job. The guards refuse what is
far from everything that this job has seen. Their limits are wide: a contribution that is merely bad is merged, and the next broadcast
repairs its learner. The training loss is not judged: no merge uses it, and a single batch proves nothing.

The contributions of one merge are judged together, so the order of arrival changes nothing. The reference is the larger of

- the **level of the job**: it follows the medians of the merges. From one merge to the next it rises at most by RISE, so one contribution
  cannot raise it far, and falls at most by FALL; it falls at all so that what a broken first unit has taught is forgotten;
- the **level of the peers**: the median of the other contributions of this merge. If all of them grow, the job has changed, and no unit is
  at fault. The peers raise the reference at most to PEERS times the level of the job, or to the highest level that the job has had;
- for a norm, the **typical step**: the largest move per value in the level of any fragment, applied to the size of this one. A part of the
  model whose gradient begins late has hardly moved before, and then moves as far as the others: learning rate times steps.

A contribution that is longer than LONG times what peers and typical step say, and is not refused, **counts less**: its weight is reduced so
that weight times norm is the same as at that length. So it takes over neither the length nor the direction of a merge while its cycle is
not judged yet.

A unit is also judged by its **cycle**: it is at fault if most of its last contributions were far above what peers and typical step say,
even though each was within the limit.

Medians are lower medians: the smaller of two contributions counts. Pure, and without arrays. See docs/decisions/0153-guards.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from diloco.wording import plural

ARMED_AFTER: Final = 4
"""Merges before a level is used. While a learning rate warms up from zero, norms grow by hundreds from one merge to the next."""
RISE: Final = 2.0
"""The largest factor between the job's level after a merge and before it."""
FALL: Final = 0.9
"""The smallest such factor."""
PEERS: Final = 1e3
"""The peers raise a reference at most to this multiple of the level of the job, or to its highest level."""
ENOUGH_PEERS: Final = 2
"""The fewest other contributions of a merge that can judge a unit's cycle, or stand in for a level of tokens that is not known yet."""
NORM: Final = 100.0
"""A norm above this multiple of its reference is refused."""
FAR: Final = 10.0
"""A norm above this multiple of what the peers and the typical step say is far above them. If most norms of a unit's cycle are, the unit is
refused."""
LONG: Final = 3.0
"""A norm above this multiple of what the peers and the typical step say makes a contribution count less. Healthy runs reach 2.1."""
LEAST_CYCLE: Final = 8
"""The fewest contributions in a unit's cycle. With more fragments than this, the cycle has one contribution for each fragment."""
SMALL: Final = 0.1
"""A norm below this multiple of the parameters' own norm is never refused: it can do no harm."""
FIRST_NORM: Final = 1e3
"""Before there is a level, a norm above this multiple of the parameters' own norm is refused."""
NEAR_ZERO: Final = 1e-2
"""Parameters with a smaller root mean square count as zeros. Their norm says nothing about a first move, which is one learning rate."""
TOKENS_OF_UNIT: Final = 64.0
"""Tokens per step above this multiple of the reference are refused, once the unit has a history of its own."""
TOKENS: Final = 1e4
"""The same for a unit without history. The batch sizes of accelerators in one job may differ by a factor of hundreds."""
MOST_TOKENS_PER_STEP: Final = 1 << 32
"""No learner takes this many tokens in one local step; the largest known batches have about 10^8."""
MOST_STEPS: Final = 1 << 32
"""No learner takes this many local steps between two adoptions: a thousand a second would need 50 days."""
FORGET_AFTER: Final = 16
"""Merges in a row without an accepted contribution after which the job must have changed, and its levels are learnt anew."""


@dataclass(slots=True)
class Measured:
    """What the guards judge of one contribution."""

    unit: str
    norm: float
    """Euclidean norm of the outer gradient; may be infinite or NaN."""
    steps: int
    """Local steps since the fragment was adopted, positive."""
    tokens: int
    """Tokens of those steps."""

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps


@dataclass(slots=True)
class Level:
    """A level of the job, which follows the medians of the merges, see the module."""

    merges: int = 0
    value: float = 0.0
    highest: float = 0.0
    """The highest `value` so far."""

    def note(self, median: float) -> None:
        """Follow the median of one more merge."""
        self.merges += 1
        if self.armed:
            self.value = max(FALL * self.value, min(median, RISE * self.value))
        else:
            self.value = max(self.value, median)
        self.highest = max(self.highest, self.value)

    @property
    def armed(self) -> bool:
        """Whether there were enough merges to use the level."""
        return self.merges >= ARMED_AFTER and self.value > 0

    def reference(self, peers: float | None) -> float:
        """Return the reference. `peers` is the median of the other values of this merge, None if there are none. Call it only if
        `armed`."""
        if peers is None:
            return self.highest  # without peers to compare with, no value that the job has had before is a fault
        return max(self.value, min(peers, max(PEERS * self.value, self.highest)))


class Others:
    """Some values, with the lower median of all but one of them."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = sorted(values)

    def median(self, own: float) -> float | None:
        """Return the median without `own`, which must be one of the values. None if it is the only one."""
        others = len(self._values) - 1
        if not others:
            return None
        middle = (others - 1) // 2
        return self._values[middle if middle < bisect_left(self._values, own) else middle + 1]

    def __len__(self) -> int:
        """How many others each value has."""
        return len(self._values) - 1


class ComparedContributions:
    """The contributions of one merge, each compared with the others."""

    def __init__(self, given: Sequence[Measured]) -> None:
        # NaN as infinity: it has to be far above all other norms, and NaN cannot be sorted.
        self.norms = Others([contribution.norm if not math.isnan(contribution.norm) else math.inf for contribution in given])
        self.tokens_per_step = Others([contribution.tokens_per_step for contribution in given])
        self._steps = Others([contribution.steps for contribution in given])

    def far(self, one: Measured, typical: float) -> bool:
        """Whether the norm is far above what the peers and the typical step say."""
        return one.norm > FAR * self.expected(one, typical)

    def expected(self, one: Measured, typical: float) -> float:
        """The norm that the peers and the typical step say; infinity if there are too few peers. A contribution with more steps than its
        peers may be longer in proportion."""
        if len(self.norms) < ENOUGH_PEERS:
            return math.inf
        further = max(1.0, one.steps / (self._steps.median(one.steps) or 1.0))
        return further * max(self.norms.median(one.norm) or 0.0, typical)


class Guard:
    """The levels of one job, and the verdicts by them."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """`sizes`: the number of values in each fragment."""
        self._sizes = tuple(sizes)
        self._parameters = [0.0] * len(sizes)
        self._norms = [Level() for _ in sizes]
        self._tokens = Level()
        self._tokens_of: dict[str, Level] = {}
        self._cycle = max(LEAST_CYCLE, len(sizes))
        self._far: dict[str, deque[bool]] = {}
        """For each of a unit's last contributions, whether its norm was far above its peers'. Has only units with at least one that was."""
        self._barren = 0
        """Latest merges in a row without an accepted contribution."""

    def begin(self, parameters: Sequence[float]) -> None:
        """The job, or this process, begins. `parameters`: the Euclidean norm of each fragment's values."""
        everything = math.hypot(*parameters) / math.sqrt(sum(self._sizes))
        # A fragment that begins at zero (biases, adapters) moves on the scale of the whole model.
        self._parameters = [max(norm, everything * math.sqrt(size)) for norm, size in zip(parameters, self._sizes, strict=True)]

    def joined(self, unit: str) -> None:
        """Forget the unit's history: its new process may have another batch size."""
        self._tokens_of.pop(unit, None)
        self._far.pop(unit, None)

    def impossible(self, steps: int, tokens: int) -> str:
        """Return why the counters of a contribution cannot be true; "" if they can. They are not compared with the unit's reports: those
        say no more than the contribution does, and on a busy machine come hundreds of steps after it."""
        if tokens > MOST_TOKENS_PER_STEP * steps:
            claim = f"{plural(tokens, 'token')} in {plural(steps, 'step')}"
            return f"it claims {claim}; more than {MOST_TOKENS_PER_STEP} tokens in a step cannot be"
        if steps > MOST_STEPS:
            return f"it claims {steps} steps since it adopted the fragment; more than {MOST_STEPS} cannot be"
        return ""

    def judge(self, fragment: int, given: Sequence[Measured]) -> dict[str, str]:
        """Return why contributions of one merge are refused, by unit. Units whose contributions are accepted are not in it. Changes
        nothing."""
        typical = self._typical(fragment)
        if self._unsuspicious(fragment, given, typical):
            return {}
        compared = ComparedContributions(given)
        verdicts: dict[str, str] = {}
        for contribution in given:
            reason = self._norm(fragment, contribution, compared, typical) or self._tokens_per_step(contribution, compared)
            if why := reason or self._whole_cycle(contribution, compared, typical):
                verdicts[contribution.unit] = why
        return verdicts

    def lighter(self, fragment: int, accepted: Sequence[Measured]) -> dict[str, float]:
        """Return, for each accepted contribution of one merge that counts less, the part of its weight that counts, by unit. Changes
        nothing."""
        typical = self._typical(fragment)
        if not typical or max((x.norm for x in accepted), default=0.0) <= LONG * typical:
            return {}
        compared = ComparedContributions(accepted)
        longest = {x.unit: LONG * compared.expected(x, typical) for x in accepted}
        return {x.unit: longest[x.unit] / x.norm for x in accepted if x.norm > longest[x.unit]}

    def merged(self, fragment: int, accepted: Sequence[Measured]) -> None:
        """Learn from a merge. `accepted`: the contributions that were not refused."""
        if not accepted:
            self._barren += 1
            if self._barren >= FORGET_AFTER:
                self._forget()
            return
        self._barren = 0
        self._note_far(accepted, self._typical(fragment))
        for contribution in accepted:
            level = self._tokens_of.get(contribution.unit)
            if level is None:
                level = self._tokens_of[contribution.unit] = Level()
            level.note(contribution.tokens_per_step)
        self._norms[fragment].note(lower_median([contribution.norm for contribution in accepted]))
        self._tokens.note(lower_median([contribution.tokens_per_step for contribution in accepted]))

    def _note_far(self, accepted: Sequence[Measured], typical: float) -> None:
        if max(x.norm for x in accepted) <= FAR * typical:
            far: set[str] = set()
        else:
            compared = ComparedContributions(accepted)
            far = {x.unit for x in accepted if compared.far(x, typical)}
        for unit in far:
            self._far.setdefault(unit, deque(maxlen=self._cycle)).append(True)
        for unit in {x.unit for x in accepted if x.unit in self._far} - far:
            self._far[unit].append(False)
            if not any(self._far[unit]):
                del self._far[unit]

    def _forget(self) -> None:
        self._norms = [Level() for _ in self._sizes]
        self._tokens, self._barren = Level(), 0
        self._tokens_of.clear()
        self._far.clear()

    # --- what is judged -----------------------------------------------------------------------------------------------

    def _unsuspicious(self, fragment: int, given: Sequence[Measured], typical: float) -> bool:
        """Whether no contribution can reach a limit, however they compare with each other. This is true for nearly all merges, and cheap to
        find."""
        if not given or not self._norms[fragment].armed or not self._tokens.armed:
            return False
        norms = all(x.norm <= FAR * typical for x in given)  # false for NaN
        return norms and max(x.tokens_per_step for x in given) <= TOKENS_OF_UNIT * self._tokens.value

    def _typical(self, fragment: int) -> float:
        """The norm of a move of this fragment that is as large per value as the largest level of any fragment."""
        levels = (level.value / math.sqrt(size) for level, size in zip(self._norms, self._sizes, strict=True) if level.armed)
        return max(levels, default=0.0) * math.sqrt(self._sizes[fragment])

    def _norm(self, fragment: int, one: Measured, compared: ComparedContributions, typical: float) -> str:
        level, parameters = self._norms[fragment], self._parameters[fragment]
        if level.armed:
            reference = max(level.reference(compared.norms.median(one.norm)), typical)
            limit = max(NORM * reference, SMALL * parameters)
        else:
            # If the parameters are zeros, or nearly, the limit is a root mean square of FIRST_NORM.
            root = math.sqrt(self._sizes[fragment])
            reference = parameters if parameters >= NEAR_ZERO * root else root
            limit = FIRST_NORM * reference
        if one.norm <= limit:  # false for NaN
            return ""
        usual = f"this job has seen up to {reference:.3g}" if level.armed else f"the parameters themselves have {parameters:.3g}"
        return f"the norm of its outer gradient is {one.norm:.3g}; {usual}, and the limit is {limit:.3g}"

    def _tokens_per_step(self, one: Measured, compared: ComparedContributions) -> str:
        tokens = compared.tokens_per_step
        if not self._tokens.armed and len(tokens) < ENOUGH_PEERS:
            return ""
        own = self._tokens_of.get(one.unit)
        peers = tokens.median(one.tokens_per_step)
        reference = self._tokens.reference(peers) if self._tokens.armed else peers or 0.0
        limit = TOKENS_OF_UNIT * max(reference, own.value) if own is not None and own.armed else TOKENS * reference
        if one.tokens_per_step <= limit:
            return ""
        return f"it has {one.tokens_per_step:.3g} tokens per step; the limit is {limit:.3g}"

    def _whole_cycle(self, one: Measured, compared: ComparedContributions, typical: float) -> str:
        if not compared.far(one, typical):
            return ""
        cycle = [*self._far.get(one.unit, ()), True][-self._cycle :]
        far = sum(cycle)
        if 2 * far <= self._cycle:
            return ""
        return (
            f"{far} of its last {self._cycle} outer gradients are more than {FAR:.3g} times as large as those of the other units; "
            "more than half are too many"
        )

    # --- state --------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {"norms": [_stored(level) for level in self._norms], "tokens": _stored(self._tokens)}

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Restore a result of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        norms = [_restored(level) for level in stored["norms"]]
        if len(norms) != len(self._sizes):
            raise ValueError(f"the stored levels are of {len(norms)} fragments, not {len(self._sizes)}")
        self._norms, self._tokens = norms, _restored(stored["tokens"])


def _stored(level: Level) -> list[float]:
    return [level.merges, level.value, level.highest]


def _restored(stored: Sequence[Any]) -> Level:
    merges, value, highest = stored
    level = Level(int(merges), float(value), float(highest))
    if not (math.isfinite(level.value) and math.isfinite(level.highest)):
        raise ValueError("the stored levels hold NaN or infinity")
    return level


def lower_median(values: Sequence[float]) -> float:
    """The median; for an even number of values the smaller of the two in the middle. 0 if there are none."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0.0
