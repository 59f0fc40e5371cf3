"""A job that begins with the model of `spec.startFrom` in place of a learner's seed.

The syncer knows the names and shapes of the model when it starts, so it refuses a learner of another model at its join. It reads the values
once the first learner has sent the job's layout, with the marks of embeddings and stacks that no file has.

Only the engine's task uses it. See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from diloco.algorithm.core import Core
from diloco.algorithm.effects import Refusal
from diloco.algorithm.layout import Layout
from diloco.start.fit import misfit, read_values, unused
from diloco.start.source import Source, StartError
from diloco.wording import plural

_log = logging.getLogger(__name__)

_SHOWN = 5
"""Unused tensors that a remark names."""


@dataclass(frozen=True, slots=True)
class StartRead:
    """A thread has read the model into the shard of this core, or has failed."""

    core: Core
    norms: asyncio.Task[tuple[float, ...]]


class ModelStart:
    """The start of one job without parameters."""

    def __init__(self, source: Source, submit: Callable[[StartRead], None]) -> None:
        """`submit` queues an event for the engine's task."""
        self._source = source
        self._submit = submit
        self._reading: asyncio.Task[tuple[float, ...]] | None = None
        self._core: Core | None = None

    @property
    def name(self) -> str:
        return self._source.name

    def misfit(self, unit: str, layout: Layout) -> str:
        """Return why a learner of this layout cannot train the model, or ""."""
        why = misfit(self._source, layout)
        return f"the parameters of unit {unit} are not those of spec.startFrom, {self._source.name}: {why}" if why else ""

    def begin(self, core: Core) -> None:
        """Read the model into `core` in a thread, unless that is under way."""
        if self._core is core:
            return
        self._core = core
        _log.info("reads the first parameters from %s", self._source.name)
        self._reading = asyncio.create_task(asyncio.to_thread(_seed, self._source, core), name="start-from")
        self._reading.add_done_callback(lambda norms: self._submit(StartRead(core, norms)))

    def norms(self, read: StartRead, present: Core | None) -> tuple[float, ...] | None:
        """Return the norms of the fragments that were read. None if all learners have left meanwhile, and the layout went with them.

        `present` is the job's core now. Raises StartError.
        """
        if read.core is not present:
            self._core = None if self._core is read.core else self._core
            return None
        return read.norms.result()

    def remark(self, layout: Layout) -> str:
        """Say for people what the job began with."""
        names = unused(self._source, layout)
        more = ", …" if len(names) > _SHOWN else ""
        beyond = f", without {plural(len(names), 'tensor')} that it has beyond ({', '.join(names[:_SHOWN])}{more})" if names else ""
        return f"began with {self._source.name}{beyond}"


def _seed(source: Source, core: Core) -> tuple[float, ...]:
    norms = core.seed(read_values(source, core.fragments))
    if isinstance(norms, Refusal):
        raise StartError(f"spec.startFrom, {source.name}, cannot be used: {norms.message}")
    return norms
