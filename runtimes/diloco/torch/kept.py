"""What a torch optimizer will keep of each parameter, before it has taken a step: a copy of it takes one on tensors without values.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import copy
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch

ON_DEVICE = ("fused", "capturable")
"""Options that choose a kernel which reads step counts where the parameter is. Without them torch keeps these on the host."""
CHOICES = ("foreach", *ON_DEVICE)
"""Options that choose a kernel. Each process has its own."""
_log = logging.getLogger(__name__)


def kept(optimizer: torch.optim.Optimizer) -> Mapping[torch.Tensor, Mapping[str, Any]]:
    """Return what the optimizer keeps of each parameter after its first step, with tensors of the right shapes and types but without
    values.

    Empty if the optimizer takes no step on such tensors, because it reads a value, or needs more than its groups and a gradient.
    """
    groups = []
    alike: dict[torch.Tensor, torch.Tensor] = {}
    """For each parameter the stand-in of its group, shape and type. A step on each of a thousand layers would take seconds."""
    try:
        trial = copy.copy(optimizer)  # the copy has neither the hooks nor a scheduler's wrapper around `step`
        for group in optimizer.param_groups:
            shapes: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
            for parameter in group["params"]:
                key = parameter.shape, parameter.dtype
                if key not in shapes:
                    shapes[key] = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
                    shapes[key].grad = torch.empty_like(shapes[key])
                alike[parameter] = shapes[key]
            options = {name: _own(value) for name, value in group.items() if name != "params"}
            # No such kernel works on tensors without values; the state is the same.
            groups.append({**options, **{name: False for name in CHOICES if options.get(name)}, "params": list(shapes.values())})
        trial.param_groups = groups
        trial.state = defaultdict(dict, {key: _own(value) for key, value in shared(optimizer).items()})
        trial.step()
    except Exception as error:  # noqa: BLE001 - whatever an optimizer raises, it only means that its state is not known
        _log.debug("what %s keeps is not known before its first step: %s", type(optimizer).__name__, error)
        return {}
    return {parameter: trial.state.get(stand_in, {}) for parameter, stand_in in alike.items()}


def shared(optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
    """Return what an optimizer keeps under a key that is no parameter, such as a count for all of them."""
    return {key: value for key, value in optimizer.state.items() if not isinstance(key, torch.Tensor)}


def _own(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
