"""What must survive the syncer's process: parameters, outer-optimizer state, clock and statistics of contributions.

Timings, memberships and exchanges in progress end with the process. After a restore the learners join anew and take all parameters, and
the core accepts no answer to an earlier exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.codec import finite
from diloco.algorithm.fragments import Array, Fragment, make_fragments, pack_all, unpack
from diloco.algorithm.layout import Layout, LayoutError, TensorSpec

FORMAT: Final = 1
"""Version of `CoreState.to_tensors`."""


class StateError(ValueError):
    """A stored state cannot be used. The message says why."""


@dataclass(frozen=True, slots=True)
class ContributionStats:
    """What one unit has contributed so far, over all its attempts."""

    contributions: int = 0
    last: int = 0
    """Outer step of the last contribution; 0: none yet."""
    share: float = 0.0
    """Moving average of its share of the weights in the merges it took part in, 0..1."""


@dataclass(frozen=True, slots=True)
class CoreState:
    """Consistent at outer step `t`. The arrays are shared with the core, which never writes to them: it makes new ones."""

    layout: Layout
    t: int
    versions: tuple[int, ...]
    """Per fragment, outer step of its last merge; 0 after the seed."""
    values: tuple[Array, ...]
    """Per fragment, float32 [size]."""
    momentum: tuple[Array, ...]
    """Per fragment, float32 [size]: the outer optimizer's buffer."""
    residual: tuple[Array | None, ...]
    """Per fragment, float32 [size]: what the coding of the last updates has left out; None: nothing."""
    contributions: Mapping[str, ContributionStats] = field(default_factory=dict)

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments that `values` belong to."""
        return make_fragments(self.layout, len(self.versions))

    def to_tensors(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """(arrays by name, the rest as JSON). The arrays are views named `value/<tensor>`, `momentum/<tensor>` and `residual/<tensor>` in
        the shape of the tensor: a snapshot can be read as a model without knowing the fragments."""
        tensors: dict[str, NDArray[Any]] = {}
        for fragment in self.fragments:
            p = fragment.index
            for kind, flat in (("value", self.values[p]), ("momentum", self.momentum[p]), ("residual", self.residual[p])):
                if flat is not None:
                    tensors |= {f"{kind}/{name}": array for name, array in unpack(fragment, flat).items()}
        meta = {
            "format": FORMAT,
            "t": self.t,
            "versions": list(self.versions),
            "residual": [x is not None for x in self.residual],
            "layout": [[x.name, list(x.shape), x.embedding] for x in self.layout.tensors],
            "accounts": {unit: [a.contributions, a.last, a.share] for unit, a in sorted(self.contributions.items())},
        }
        return tensors, meta

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> CoreState:
        """The inverse of `to_tensors`; copies the arrays. Raises StateError for anything that does not fit or is not finite."""
        if meta.get("format") != FORMAT:
            raise StateError(f"the state has format {meta.get('format')!r}, this program reads {FORMAT}")
        try:
            layout = Layout(TensorSpec(name, tuple(shape), embedding) for name, shape, embedding in meta["layout"])
            versions = tuple(int(x) for x in meta["versions"])
            carried = tuple(bool(x) for x in meta["residual"])
            fragments = make_fragments(layout, len(versions))
            kinds = {kind: _of_kind(kind, tensors) for kind in ("value", "momentum", "residual")}
            values = pack_all(fragments, kinds["value"])
            momentum = pack_all(fragments, kinds["momentum"])
            residual = tuple(
                pack_all((fragment,), kinds["residual"])[0] if has else None for fragment, has in zip(fragments, carried, strict=True)
            )
            contributions = {
                unit: ContributionStats(int(n), int(last), float(share)) for unit, (n, last, share) in meta["accounts"].items()
            }
            t = int(meta["t"])
        except LayoutError as e:
            raise StateError(f"the state does not fit its own layout: {e}") from e
        except (KeyError, TypeError, ValueError) as e:
            raise StateError(f"the state's description is incomplete or malformed: {type(e).__name__}: {e}") from e
        if not all(finite(x) for x in (*values, *momentum, *(x for x in residual if x is not None))):
            raise StateError("the state holds NaN or infinity")
        for x in (*values, *momentum, *(x for x in residual if x is not None)):
            x.flags.writeable = False
        return cls(layout, t, versions, values, momentum, residual, contributions)


def _of_kind(kind: str, tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    prefix = f"{kind}/"
    return {name.removeprefix(prefix): array.astype(np.float32, copy=False) for name, array in tensors.items() if name.startswith(prefix)}
