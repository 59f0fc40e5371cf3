"""Requests of pools for slices: `a_pool_request("a", SHAPE, 3, on=("tpu-0",), avoided={"tpu-1": 60.0})`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diloco_operator.api.spec import Locality
from diloco_operator.fleet import Shape
from diloco_operator.fleet.resources import Resources
from diloco_operator.placement import HeldUnit, PoolRequest
from diloco_operator.placement.request import PoolWords
from diloco_operator.placement.requirements import SliceRequirements, with_accelerators

NO_NEEDS = Resources()
NO_WORDS = PoolWords()


def a_pool_request(
    name: str,
    shape: Shape,
    count: int,
    *,
    min: int = 0,
    max: int | None = None,
    on: Sequence[str] = (),
    capacity: str = "",
    node_selector: Mapping[str, str] | None = None,
    locality: Locality = Locality.ANY,
    needs: Resources = NO_NEEDS,
    avoided: Mapping[str, float] | None = None,
    words: PoolWords = NO_WORDS,
    **how: Any,
) -> PoolRequest:
    """`count` units that may start, the first of them on the slices `on`. `how`: further fields of the requirements or of the request."""
    wishes = {key: how.pop(key) for key in ("affinity", "tolerations") if key in how}
    requirements = SliceRequirements(
        shape,
        capacity,
        frozenset((node_selector or {}).items()),
        locality=locality if shape.slots > 1 else Locality.ANY,
        avoided=frozenset(avoided or ()),
        needs=with_accelerators(needs, shape),
        **wishes,
    )
    names = [f"{name}-{number}" for number in range(count)]
    held = tuple(HeldUnit(unit, (), slice=slice_) for unit, slice_ in zip(names, on, strict=False) if slice_)
    new = tuple(unit for unit in names if unit not in {each.name for each in held})
    how = {"units": held, "new": new, **how}
    if avoided:
        words = PoolWords(words.added_labels, words.needs_added, avoided, words.given_up, words.switched_off)
    return PoolRequest(name, requirements, min, count if max is None else max, words=words, **how)
