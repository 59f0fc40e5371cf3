"""Jobs as the commands see them, from objects as the API has them."""

from __future__ import annotations

from collections.abc import Sequence

from builders.cluster_scenes import SINCE, conditions
from builders.statuses import a_state
from diloco_cli.view_model import JobView
from diloco_operator.kube.client import Obj


def a_view(
    *units: Obj,
    step: int = 0,
    steps: int = 0,
    suspend: bool = False,
    progress: Obj | None = None,
    pools: Sequence[Obj] = (),
    hosts: Sequence[Obj] = (),
    parts: Sequence[Obj] = (),
    outside: Sequence[Obj] = (),
    home: Obj | None = None,
    model: Obj | None = None,
    goodput: Obj | None = None,
    **status: str,
) -> JobView:
    """Return job bytes-lm of namespace team. `status`: of its conditions by type."""
    body: Obj = {
        **a_state(status),
        "conditions": conditions(**status),
        "units": list(units),
        "progress": {"step": step, "steps": steps, **(progress or {})},
        "learners": {"contributing": 1, "placed": 2, "desired": 3, "min": 2, "max": 6},
        "pools": list(pools),
        "hosts": list(hosts),
        **({"parts": list(parts)} if parts else {}),
        **({"outside": list(outside)} if outside else {}),
        **({"home": home} if home is not None else {}),
        **({"model": model} if model else {}),
        **({"goodput": goodput} if goodput else {}),
    }
    return _seen(body, suspend=suspend)


def described(state: str, reason: str, *units: Obj, **conditions: tuple[str, str, str]) -> JobView:
    """Return the job in this state, with conditions (status, reason, message) by type."""
    found = [
        {"type": kind, "status": status, "reason": why, "message": message, "lastTransitionTime": SINCE}
        for kind, (status, why, message) in conditions.items()
    ]
    return _seen({"state": state, "reason": reason, "conditions": found, "units": list(units)})


def _seen(status: Obj, *, suspend: bool = False) -> JobView:
    return JobView.of({"metadata": {"name": "bytes-lm", "namespace": "team"}, "spec": {"suspend": suspend}, "status": status})
