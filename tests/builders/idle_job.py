"""A job whose learners step and do not train, over loopback: whatever its parameters do, they do by themselves."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from builders.exchange import WAIT_TIMEOUT, LocalSyncer, Place, job_file, training
from diloco.algorithm.fragments import unpack
from diloco.learner.arrays import ArrayStore
from diloco.learner.session import Session
from diloco.learner.store import ParameterStore
from diloco.syncer.engine import RunOutcome
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


class _Idle(threading.Thread):
    def __init__(self, store: ParameterStore, environment: Mapping[str, str]) -> None:
        super().__init__(daemon=True)
        self._store, self._environment = store, environment
        self.joined = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Session.join(self._store, framework="numpy", environment=self._environment) as session:
                self.joined.set()
                pause = threading.Event()
                for _ in session.batches(lambda numbers: numbers, 1):
                    pause.wait(STEP_SECONDS)  # a step shorter than the way to the syncer leaves no time to answer
                    session.step(tokens=1, loss=1.0)
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            self.failure = error


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
        learners = []
        for number, store in enumerate(stores):
            learners.append(_Idle(store, place.of_learner(syncer.address, f"u-{number}")))
            learners[-1].start()
            if not number and not learners[0].joined.wait(WAIT_TIMEOUT):  # the one that seeds
                raise RuntimeError("the first learner did not join") from learners[0].failure
        for learner in learners:
            learner.join(WAIT_TIMEOUT)
            if learner.is_alive() or learner.failure is not None:
                raise RuntimeError("a learner did not come to its end") from learner.failure
        if syncer.wait() is not RunOutcome.COMPLETE:
            raise RuntimeError("the job did not complete")
        core = syncer.syncer.engine.exchanges.core
        assert core is not None
        ended = {name: value for fragment in core.fragments for name, value in unpack(fragment, core.value(fragment.index)).items()}
        taken = min(core.contributions_of(f"u-{number}").contributions for number in range(units))
    return began, ended, taken
