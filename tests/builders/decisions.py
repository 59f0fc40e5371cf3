"""Whole jobs of the engine simulation, with a record of all that the coordinator was told and decided."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from builders.engine_simulation import Inline, World, a_training
from builders.simulated_unit import UnitSpeed
from builders.virtual_time import run_virtual
from diloco.algorithm.coordinator import Coordinator
from diloco.syncer import exchange
from diloco.syncer.arithmetic import Arithmetic

_CALLS = ("begin", "end", "join", "leave", "progress", "paused", "alive", "admit", "contributed", "rejected", "applied", "advance")


@dataclass
class Record:
    """Every call of every coordinator of a job, with its answer."""

    lines: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    """What was called and answered, by name."""

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Record from now on."""
        for name in _CALLS:
            monkeypatch.setattr(Coordinator, name, self._recorded(name, getattr(Coordinator, name)))

    def _recorded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(coordinator: Coordinator, *arguments: Any, **keywords: Any) -> Any:
            answer = call(coordinator, *arguments, **keywords)
            if name != "advance" or answer:
                given = arguments if name != "begin" else ()  # norms, which follow from the seed
                self.lines.append(f"{name} {given} {sorted(keywords.items())}: {answer}")
                self.kinds |= {name, *(type(one).__name__ for one in (answer if isinstance(answer, list) else [answer]))}
            return answer

        return recorded


def digest_of_a_job(directory: Path, seed: int, monkeypatch: pytest.MonkeyPatch, *, in_threads: bool) -> tuple[str, Record]:
    """What names every decision of a job of random shape with deaths at random moments, and the bytes of its outer parameters.
    `in_threads`: arithmetic goes the way of large fragments."""
    record = Record()
    record.watch(monkeypatch)
    if in_threads:
        monkeypatch.setattr(exchange, "INLINE_ELEMENTS", 0)
        monkeypatch.setattr(Arithmetic, "__init__", _inline_arithmetic)
    choice = random.Random(seed)
    interval = choice.choice([2, 4, 6, 9])
    training = a_training(
        60,
        interval=interval,
        fragments=choice.randint(1, min(4, interval)),
        overlap=choice.randrange(interval),
        grace=choice.choice([0, 1, 4]),
    ).model_copy(update={"quorum": choice.choice([1, 1, 2, 3])})
    speeds = [UnitSpeed(choice.uniform(1.0, 8.0)) if choice.random() < 0.5 else None for _ in range(3)]
    world = World(directory, seed, training, speeds)
    run_virtual(world.run(8))
    assert world.engine is not None
    core = world.engine.exchanges.core
    assert core is not None
    digest = hashlib.sha256("\n".join(record.lines).encode())
    for array in (*core.shard.values, *core.shard.momentum):
        digest.update(array.tobytes())
    return digest.hexdigest()[:16], record


def _inline_arithmetic(arithmetic: Any) -> None:
    arithmetic._decoding = arithmetic._merging = Inline()
