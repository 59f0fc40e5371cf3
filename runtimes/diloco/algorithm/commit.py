"""Commit records: what is stored of each merge, and how a restarted syncer repeats the merges from them.

A record says which units contributed, with what weights, and what was refused; the merged outer gradient is stored beside it. Value,
momentum and remainder follow from the state before and this gradient, bit by bit (`Shard.redo`). So a stored state and the records after it
give the state after the last record.

See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diloco import contract
from diloco.algorithm.effects import Close
from diloco.algorithm.events import Marks
from diloco.algorithm.exchange import Exchange
from diloco.algorithm.guards import Measured
from diloco.algorithm.shard import Shard, Update
from diloco.algorithm.state import ContributionStats, CoreState, StateError
from diloco.algorithm.weights import Shares

Array = NDArray[np.float32]

UNUSABLE = "Unusable"
"""Reason in `Commit.refused` for an answer that was admitted and whose values could not be used."""


@dataclass(frozen=True, slots=True)
class MergedContribution:
    """One contribution that was merged."""

    weight: float
    steps: int
    """Local steps since its learner had adopted the fragment."""
    tokens: int
    """Tokens of those steps."""
    norm: float
    """Euclidean norm of its outer gradient."""
    marks: Marks
    """How far its session had trained, and `seen`, the last outer step that it knew."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One merge: outer step t made version t of the fragment."""

    t: int
    fragment: int
    base: int
    """The fragment's version before."""
    given: Mapping[str, MergedContribution]
    """By unit, sorted."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why an answer does not count, by unit."""
    missed: tuple[str, ...] = ()
    """Units whose answer did not come in time."""
    seconds: float = 0.0
    """From the pull to the end of the wait."""
    cosine: float | None = None
    """Mean cosine between two contributions; None if there are no two that are not zero."""

    def to_json(self) -> dict[str, Any]:
        return {
            "t": self.t,
            "fragment": self.fragment,
            "base": self.base,
            "given": {
                unit: {
                    "weight": given.weight,
                    "steps": given.steps,
                    "tokens": given.tokens,
                    "norm": given.norm,
                    "marks": asdict(given.marks),
                }
                for unit, given in self.given.items()
            },
            "refused": dict(self.refused),
            "missed": list(self.missed),
            "seconds": round(self.seconds, 6),
            "cosine": self.cosine,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Commit:
        """Read what `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            int(stored["t"]),
            int(stored["fragment"]),
            int(stored["base"]),
            {
                str(unit): MergedContribution(
                    float(given["weight"]), int(given["steps"]), int(given["tokens"]), float(given["norm"]), Marks(**given["marks"])
                )
                for unit, given in stored["given"].items()
            },
            dict(stored["refused"]),
            tuple(stored["missed"]),
            float(stored["seconds"]),
            None if stored["cosine"] is None else float(stored["cosine"]),
        )


def commit_of(exchange: Exchange, close: Close, cosine: float) -> Commit:
    """Return the record of a closed exchange's merge. `cosine`: see `merge.MergedGradient`; NaN becomes None."""
    given = {
        unit: MergedContribution(
            contribution.weight, contribution.steps, contribution.measured.tokens, contribution.measured.norm, contribution.marks
        )
        for unit, contribution in sorted(exchange.contributions.items())
    }
    refused = {unit: str(exchange.refused[unit].reason) for unit in sorted(exchange.refused)}
    missed = sorted(exchange.waiting - exchange.refused.keys())
    # A unit that was asked and is in none of these groups has answered; its values could not be used.
    for unit in sorted(exchange.asked - given.keys() - refused.keys() - exchange.waiting):
        refused[unit] = UNUSABLE
    seconds = max(0.0, exchange.closed_at - exchange.launched_at)
    known = None if math.isnan(cosine) else cosine
    return Commit(close.t, close.fragment, close.base, given, refused, tuple(missed), seconds, known)


class Redo:
    """Repeats recorded merges, in their order, on a stored state."""

    def __init__(self, state: CoreState, training: contract.Training) -> None:
        """`training`: its compression and outer optimizer must be those that the merges were made with. Raises StateError if the state's
        guards are malformed."""
        self._state = state
        self._shard = Shard(state.fragments, training)
        self._shard.restore(state.versions, state.values, state.momentum, state.residual)
        self._guard = state.restored_guard()
        self._contributions = dict(state.contributions)
        self._shares = Shares({unit: stats.share for unit, stats in state.contributions.items()})
        self.t = state.t
        """The newest outer step."""
        self.merges = 0
        """Merges that were repeated."""

    def covers(self, commit: Commit) -> bool:
        """Whether the state holds this merge already."""
        return 0 <= commit.fragment < len(self._shard.versions) and commit.t <= self._shard.versions[commit.fragment]

    def repeat(self, commit: Commit, gradient: Array) -> Update:
        """Repeat one merge. Raises StateError if it does not follow on this state. `gradient`: the merged outer gradient, read-only."""
        p = commit.fragment
        if not 0 <= p < len(self._shard.versions) or gradient.shape != (self._shard.fragments[p].size,):
            raise StateError(f"the merge of outer step {commit.t} is of fragment {p} with {gradient.size} values, which this model has not")
        if commit.base != self._shard.versions[p]:
            raise StateError(
                f"the merge of outer step {commit.t} is about version {commit.base} of fragment {p}; the state has version "
                f"{self._shard.versions[p]}"
            )
        update = self._shard.redo(commit.t, p, gradient)
        if update is None:
            raise StateError(f"the merge of outer step {commit.t} does not give finite values again")
        self._guard.merged(
            p, [Measured(unit, contribution.norm, contribution.steps, contribution.tokens) for unit, contribution in commit.given.items()]
        )
        self._shares.merged({unit: contribution.weight for unit, contribution in commit.given.items()})
        for unit in commit.given:
            before = self._contributions.get(unit, ContributionStats())
            self._contributions[unit] = ContributionStats(before.contributions + 1, max(commit.t, before.last))
        self.t = max(self.t, commit.t)
        self.merges += 1
        return update

    def state(self) -> CoreState:
        """The state after the merges so far."""
        shard = self._shard
        contributions = {
            unit: ContributionStats(stats.contributions, stats.last, self._shares.of(unit)) for unit, stats in self._contributions.items()
        }
        return CoreState(
            self._state.layout, self.t, shard.versions, shard.values, shard.momentum, shard.residual, contributions, self._guard.to_json()
        )
