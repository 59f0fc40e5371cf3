"""Finds pools whose program leaves accelerators of its pods idle, as far as the job tells. Pure.

See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from diloco.wording import plural
from diloco_operator.accelerators import CATALOGUE, Family
from diloco_operator.api.names import LEARNER_CONTAINER
from diloco_operator.api.spec import Pool
from diloco_operator.reconcile.observe.template import container_named

_LAUNCHERS = re.compile(r"\b(diloco-launch|torchrun)\b")
_CHOSEN = re.compile(r"--nproc[-_]per[-_]node[ =](\d+)")
_TORCH_TRAINER = re.compile(r"\bdiloco\.trainers\.\w+_torch\b")
"""The reference trainers in torch, whose processes compute on one GPU each."""


class Idle(NamedTuple):
    """Accelerators that a pod requests and its program does not use."""

    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


def idle_accelerators(pool: Pool) -> Idle | None:
    """Accelerators that a pool leaves idle, or None. A process is taken to use one, unless the pool sets both `acceleratorsPerHost` and
    `processesPerHost`. A reference trainer in torch always uses one. None also if the shape of the pool's units is not known."""
    try:
        accelerators = pool.shape.accelerators_per_host
    except ValueError:
        return None
    words = _words(pool)
    torch = _TORCH_TRAINER.search(words) is not None
    if CATALOGUE[pool.accelerator].family is Family.TPU:
        if torch:
            return Idle(f"a trainer in torch uses none of the {plural(accelerators, 'chip')} of each host", "start one in JAX")
        return None  # one process has all chips of its host
    processes = pool.processes_per_host or 1
    if torch and not _LAUNCHERS.search(words):
        processes = 1
    elif chosen := _CHOSEN.search(words):
        processes = int(chosen[1])
    explicit = pool.accelerators_per_host is not None and pool.processes_per_host is not None
    if processes >= accelerators or (explicit and not torch):
        return None
    return Idle(
        f"each pod asks for {plural(accelerators, 'accelerator')} and starts {plural(processes, 'process', 'processes')}, and a process "
        "computes on one of them in most programs",
        f"set processesPerHost: {accelerators} and start the program with diloco-launch, or set acceleratorsPerHost: {processes}. If one "
        f"process uses several, as in JAX, say so: acceleratorsPerHost: {accelerators} and processesPerHost: {processes}",
    )


def idle_pools(pools: Sequence[Pool]) -> Iterator[tuple[int, Pool, Idle]]:
    """Yield the pools that leave accelerators idle, with their index in the job."""
    for index, pool in enumerate(pools):
        if (idle := idle_accelerators(pool)) is not None:
            yield index, pool, idle


def _words(pool: Pool) -> str:
    """Command and arguments of the learner as one text."""
    container = container_named(pool.template.spec, LEARNER_CONTAINER) or {}
    return " ".join(str(word) for field in ("command", "args") for word in container.get(field) or ())
