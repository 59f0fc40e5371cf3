"""A job whose learners step and do not train, over loopback: whatever its parameters do, they do by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from builders.exchange import LocalLearner, LocalSyncer, Place, job_file, training, until
from diloco.algorithm.fragments import unpack
from diloco.learner.arrays import ArrayStore
from diloco.learner.store import ParameterStore
from diloco.syncer.job.engine import RunOutcome
from diloco.torch.store import ModuleStore
from numpy.typing import NDArray

type Arrays = dict[str, NDArray[np.float32]]

SHAPES = {"w0": (37, 16), "w1": (300,), "w2": (5, 7, 3)}
FRAGMENTS = 2
STEP_SECONDS = 0.004


def first_parameters(seed: int = 0) -> Arrays:
    """float32 values that no shorter type holds, of magnitudes from 1e-3 to 1e3; and zeros."""
    rng = np.random.default_rng(seed)
    found: Arrays = {}
    for name, shape in SHAPES.items():
        scale = 10.0 ** rng.uniform(-3, 3, shape)
        found[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
        found[name].flat[::50] = 0
    return found


def a_module(dtype: torch.dtype) -> ModuleStore:
    """The same tensors in `dtype`, all zero until they adopt."""
    module = torch.nn.Module()
    for name, shape in SHAPES.items():
        module.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=dtype)))
    return ModuleStore(module)


def run_idle_job(directory: Path, dtypes: Sequence[torch.dtype], compression: str, merges: int) -> tuple[Arrays, Arrays, int]:
    """(parameters that began the job, those at its end, least number of merges that a unit took part in) of so many merges of each fragment
    by a float32 unit, which seeds the job, and a unit of each of `dtypes`."""
    units = 1 + len(dtypes)
    changes: dict[str, Any] = {"compression": compression, "quorum": units, "sync_interval": FRAGMENTS, "overlap_steps": 1}
    place = Place(directory, job_file(training(merges * FRAGMENTS, fragments=FRAGMENTS, **changes)))
    began = first_parameters()
    with LocalSyncer(place) as syncer:
        stores: list[ParameterStore] = [ArrayStore({name: array.copy() for name, array in began.items()})]
        stores += [a_module(dtype) for dtype in dtypes]
        # A step shorter than the way to the syncer leaves no time to answer.
        learners = [
            LocalLearner(place, syncer.address, f"u-{number}", store=store, goal=None, batch=1, step_seconds=STEP_SECONDS)
            for number, store in enumerate(stores)
        ]
        seeds = learners[0].start()
        until(lambda: seeds.session is not None or seeds.failure is not None, "the learner that seeds to join")
        for learner in learners[1:]:
            learner.start()
        for learner in learners:
            learner.wait()
        if syncer.wait() is not RunOutcome.COMPLETE:
            raise RuntimeError("the job did not complete")
        core = syncer.syncer.engine.exchanges.core
        assert core is not None
        ended = {name: value for fragment in core.fragments for name, value in unpack(fragment, core.value(fragment.index)).items()}
        taken = min(core.contributions_of(f"u-{number}").contributions for number in range(units))
    return began, ended, taken
