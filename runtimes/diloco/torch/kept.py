"""What a torch optimizer keeps of each parameter, before it has taken a step: a copy of it takes one on tensors without values.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import copy
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch

_CHOICES = ("foreach", "fused", "capturable")
"""Options that choose a kernel, of which none is for tensors without values. What is kept is the same."""
_log = logging.getLogger(__name__)


def kept(optimizer: torch.optim.Optimizer) -> Mapping[torch.Tensor, Mapping[str, Any]]:
    """Return by parameter what the optimizer keeps of it after its first step, with the shapes and types of tensors; empty: it takes no
    step on tensors without values (it reads one, or needs more than its groups and a gradient)."""
    groups = []
    alike: dict[torch.Tensor, torch.Tensor] = {}
    """By parameter, one of its group, shape and type: a step on each of a thousand layers would take seconds."""
    try:
        tried = copy.copy(optimizer)  # with neither hooks nor what a scheduler has put around `step`
        for group in optimizer.param_groups:
            shapes: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
            for parameter in group["params"]:
                key = parameter.shape, parameter.dtype
                if key not in shapes:
                    shapes[key] = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
                    shapes[key].grad = torch.empty_like(shapes[key])
                alike[parameter] = shapes[key]
            options = {name: _own(value) for name, value in group.items() if name != "params"}
            groups.append({**options, **{name: False for name in _CHOICES if options.get(name)}, "params": list(shapes.values())})
        tried.param_groups, tried.state = groups, defaultdict(dict)
        tried.step()
    except Exception as error:  # noqa: BLE001 - of an optimizer: what it keeps is not known
        _log.debug("what %s keeps is not known before its first step: %s", type(optimizer).__name__, error)
        return {}
    return {parameter: tried.state.get(one, {}) for parameter, one in alike.items()}


def _own(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
