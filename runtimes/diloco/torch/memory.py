"""Checks that each element of the trained parameters has its own memory. If two shared memory, an adoption of one would overwrite the
other.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from diloco.algorithm.layout import LayoutError
from diloco.torch.places import local

_ADDRESSED = ("cpu", "cuda", "xpu")
"""Kinds of devices whose tensors have an address."""


class _Span(NamedTuple):
    """The memory of one parameter, in bytes of its device."""

    start: int
    end: int
    name: str
    values: torch.Tensor


def check_memory(trained: Mapping[str, torch.Tensor], frozen: Mapping[str, torch.Tensor]) -> None:
    """Raise LayoutError, naming the parameters, if a trained parameter shares memory within itself or with another parameter. Tied
    parameters are one object and have one name, so they pass."""
    by_device: dict[torch.device, list[_Span]] = {}
    for name, parameter in {**trained, **frozen}.items():
        values = local(parameter)
        if type(values) is not torch.Tensor or values.layout is not torch.strided or values.device.type not in _ADDRESSED:
            continue  # a quantised tensor has several addresses, or none
        if name in trained and _is_expanded(values):
            raise LayoutError(
                f"parameter {name!r} is expanded: several of its elements share memory, so it cannot be overwritten in place. Make it "
                "from a copy: torch.nn.Parameter(tensor.contiguous())"
            )
        if values.numel():
            start = values.data_ptr()
            by_device.setdefault(values.device, []).append(_Span(start, start + _reach(values) * values.element_size(), name, values))
    for spans in by_device.values():
        before: list[_Span] = []
        for span in sorted(spans, key=lambda x: x[:3]):
            before = [x for x in before if x.end > span.start]
            for other in before:
                owner, guest = (span, other) if span.name in trained else (other, span)
                if owner.name in trained and _meet(owner, guest):
                    raise LayoutError(
                        f"parameters {other.name!r} and {span.name!r} share memory: tie them as one object (a.weight = b.weight), or "
                        "make each from a copy: torch.nn.Parameter(tensor.clone())"
                    )
            before.append(span)


def _reach(values: torch.Tensor) -> int:
    """The distance in memory from the first element to the end of the last one, in elements."""
    return 1 + sum((size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True))


def _is_expanded(values: torch.Tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(values.shape, values.stride(), strict=True))


def _meet(owner: _Span, guest: _Span) -> bool:
    """Whether two parameters whose spans overlap share an element. Columns of one matrix overlap and share none."""
    size, first = owner.values.element_size(), min(owner.start, guest.start)
    if guest.values.element_size() != size or (owner.start - guest.start) % size:
        return True
    taken = torch.zeros((max(owner.end, guest.end) - first) // size, dtype=torch.bool)
    taken.as_strided(owner.values.shape, owner.values.stride(), (owner.start - first) // size).fill_(True)
    return bool(taken.as_strided(guest.values.shape, guest.values.stride(), (guest.start - first) // size).any())
