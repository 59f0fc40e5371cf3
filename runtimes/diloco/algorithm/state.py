"""What survives the syncer's process: parameters, outer-optimizer state, clock and statistics of contributions.

Timings, memberships and open exchanges end with the process. After a restore the learners join anew and take all parameters, and the core
accepts no answer to an earlier exchange.

See docs/decisions/0152-snapshots.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from diloco.algorithm.codec import finite
from diloco.algorithm.fragments import Array, Fragment, make_fragments, unpack
from diloco.algorithm.guards import Guard
from diloco.algorithm.layout import FrozenTensor, Layout, LayoutError, TensorSpec

FORMAT: Final = 1
"""Version of `CoreState.parts` and `CoreState.meta`."""


class StateError(ValueError):
    """A stored state cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class ContributionStats:
    """What one unit has contributed so far, over all its attempts."""

    contributions: int = 0
    last: int = 0
    """Outer step of the last contribution; 0 if there is none."""
    share: float = 0.0
    """The unit's share of the weights in the job's recent merges, 0..1, see `weights.Shares`."""


@dataclass(frozen=True, slots=True)
class CoreState:
    """The state at outer step `t`. The arrays are shared with the core, which never writes to them: it makes new ones."""

    layout: Layout
    t: int
    versions: tuple[int, ...]
    """The outer step of each fragment's last merge; 0 after the seed."""
    values: tuple[Array, ...]
    """Each fragment's value, float32 [size]."""
    momentum: tuple[Array, ...]
    """The outer optimizer's buffer of each fragment, float32 [size]."""
    residual: tuple[Array | None, ...]
    """For each fragment, what the coding of the last updates has left out, float32 [size]; None if nothing."""
    contributions: Mapping[str, ContributionStats] = field(default_factory=dict)
    guard: Mapping[str, Any] = field(default_factory=dict)
    """See `guards.Guard.to_json`."""

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments that `values` belong to."""
        return make_fragments(self.layout, len(self.versions))

    def restored_guard(self) -> Guard:
        """The guards with their stored levels. Raises StateError if these are malformed."""
        guard = Guard([fragment.size for fragment in self.fragments])
        try:
            guard.restore(self.guard)
        except (KeyError, TypeError, ValueError) as e:
            raise StateError(f"the stored levels of the guards are malformed: {type(e).__name__}: {e}") from e
        return guard

    def parts(self) -> list[dict[str, Array]]:
        """Return the arrays of one fragment after the other: views named `value/<tensor>`, `momentum/<tensor>` and `residual/<tensor>`, in
        the tensor's shape, so that a snapshot can be read as a model without knowing the fragments.

        The fragment that was merged longest ago comes first, because it will be merged next. Written in this order, an array is rarely
        replaced in the core before it is on disk.
        """
        parts = []
        for fragment in sorted(self.fragments, key=lambda x: (self.versions[x.index], x.index)):
            p = fragment.index
            kinds = (("value", self.values[p]), ("momentum", self.momentum[p]), ("residual", self.residual[p]))
            flats = [(kind, flat) for kind, flat in kinds if flat is not None]
            parts.append({f"{kind}/{name}": array for kind, flat in flats for name, array in unpack(fragment, flat).items()})
        return parts

    def meta(self) -> dict[str, Any]:
        """Everything but the arrays, as JSON."""
        return {
            "format": FORMAT,
            "t": self.t,
            "versions": list(self.versions),
            "residual": [x is not None for x in self.residual],
            "layout": [[x.name, list(x.shape), x.embedding, x.stack_axes] for x in self.layout.tensors],
            "frozen": [[x.name, list(x.shape), f"{x.digest:016x}"] for x in self.layout.frozen],
            "accounts": {unit: [a.contributions, a.last, a.share] for unit, a in sorted(self.contributions.items())},
            "guard": dict(self.guard),
        }

    @classmethod
    def allocate(cls, meta: Mapping[str, Any]) -> CoreState:
        """Return a state with this meta and uninitialized arrays. The caller fills them through `parts` and then calls `checked`, so that a
        stored state is in memory only once. Raises StateError for a meta that cannot be used."""
        if meta.get("format") != FORMAT:
            raise StateError(f"the state has format {meta.get('format')!r}, this program reads {FORMAT}")
        try:
            frozen = [FrozenTensor(name, tuple(shape), int(digest, 16)) for name, shape, digest in meta["frozen"]]
            layout = Layout((TensorSpec(name, tuple(shape), embedding, axes) for name, shape, embedding, axes in meta["layout"]), frozen)
            versions = tuple(int(x) for x in meta["versions"])
            fragments = make_fragments(layout, len(versions))
            carried = [bool(has) for _, has in zip(fragments, meta["residual"], strict=True)]
            contributions = {
                unit: ContributionStats(int(n), int(last), float(share)) for unit, (n, last, share) in meta["accounts"].items()
            }
            t = int(meta["t"])
            guard = dict(meta["guard"])
        except LayoutError as e:
            raise StateError(f"the state does not fit its own layout: {e}") from e
        except (KeyError, TypeError, ValueError) as e:
            raise StateError(f"the state's description is incomplete or malformed: {type(e).__name__}: {e}") from e
        values, momentum = (tuple(np.empty(fragment.size, np.float32) for fragment in fragments) for _ in range(2))
        residual = tuple(np.empty(fragment.size, np.float32) if has else None for fragment, has in zip(fragments, carried, strict=True))
        return cls(layout, t, versions, values, momentum, residual, contributions, guard)

    def checked(self) -> CoreState:
        """Return this state, which must be filled, and make it read-only. Raises StateError for NaN and infinity."""
        arrays = [x for x in (*self.values, *self.momentum, *self.residual) if x is not None]
        if not all(finite(x) for x in arrays):
            raise StateError("the state holds NaN or infinity")
        for x in arrays:
            x.flags.writeable = False
        return self
