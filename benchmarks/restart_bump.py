"""[restart-bump] How far the loss of a restarted unit is above that of its undisturbed twin, with the state of a peer and without.

Three units train a small next-token model with AdamW on different batches, and average with Nesterov every H steps, as one fragment without
overlap. In the middle of an interval one unit restarts: with a peer's parameters and state, as `OptimizerState` hands them over; or,
without a peer, with the parameters of the last average and an empty AdamW. Its twin has the same seeds and goes on. The value is the
largest difference of the held-out loss to the twin's over the next intervals, over the largest difference between the twin and the other
undisturbed units, which is due to chance.

The line also has `resumed`: all units restart from the last average, with moments that are some local steps old or empty. It is the rise of
the loss over that of the same job with the latest moments, and shows the benefit of storing states more often.

See docs/decisions/0266-stored-states.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
import torch
from diloco.algorithm.layout import Layout
from diloco.algorithm.outer import nesterov
from diloco.algorithm.pieces import wholes
from diloco.protocol.state_parts import cut
from diloco.protocol.state_values import decode, encode
from diloco.torch.inner_state import OptimizerState
from diloco.torch.store import ModuleStore
from diloco_cli.plots import COLOURS, Axis, Line, Plot, picture

from benchmarks.figure import Figure, rounded
from benchmarks.plots import plot

LIMIT = 1.0
H = 24
UNITS = 3
TOKENS, WIDTH, CONTEXT = 32, 64, 8
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9


@dataclass(frozen=True, slots=True)
class Size:
    before: int
    """Intervals before the restart."""
    after: int
    seeds: int
    ages: tuple[int, ...]
    """Ages of stored moments, in local steps, for `resumed`."""

    @property
    def steps(self) -> int:
        """Local steps before the restart, which comes in the middle of an interval."""
        return self.before * H + H // 2


FULL, SMOKE = Size(before=12, after=4, seeds=5, ages=(12, 24, 120, 240)), Size(before=2, after=1, seeds=1, ages=(24,))


class Chain:
    """A Markov chain of second order. All units of one seed have the same chain."""

    def __init__(self, seed: int) -> None:
        self._odds = torch.randn(TOKENS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(seed)).mul(2).softmax(-1)

    def batch(self, count: int, source: torch.Generator) -> torch.Tensor:
        """Draw sequences, int64 [count, CONTEXT + 1]."""
        tokens = torch.randint(TOKENS, (count, 2), generator=source)
        while tokens.shape[1] <= CONTEXT:
            following = torch.multinomial(self._odds[tokens[:, -2], tokens[:, -1]], 1, generator=source)
            tokens = torch.cat([tokens, following], 1)
        return tokens


class Unit:
    """One unit: a model, its optimizer and its own batches."""

    def __init__(self, chain: Chain, seed: int, number: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Embedding(TOKENS, WIDTH), torch.nn.Flatten(), torch.nn.Linear(2 * WIDTH, 2 * WIDTH), torch.nn.GELU(),
            torch.nn.Linear(2 * WIDTH, TOKENS),
        )  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self._chain = chain
        self._source = torch.Generator().manual_seed(1000 * seed + number)
        self.store = ModuleStore(self.model)

    def step(self) -> None:
        self.loss(self._chain.batch(32, self._source)).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        pairs = tokens.unfold(1, 3, 1).reshape(-1, 3)
        return torch.nn.functional.cross_entropy(self.model(pairs[:, :2]), pairs[:, 2])

    def values(self) -> np.ndarray:
        return np.concatenate([value.ravel() for value in self.store.read([spec.name for spec in self.store.specs()]).values()])

    def take(self, values: np.ndarray) -> None:
        start = 0
        for spec in self.store.specs():
            self.store.write({spec.name: values[start : start + spec.size].reshape(spec.shape)})
            start += spec.size

    def restart_with(self, peer: Unit) -> None:
        """Restart as a new process with the state of a peer, which comes in parts, as over the wire."""
        self.restart()
        giving, taking = OptimizerState(peer.store, [peer.optimizer]), OptimizerState(self.store, [self.optimizer])
        taking.begin()
        for part in cut(wholes(Layout(peer.store.specs()).tensors)):
            arrays = giving.arrays(part)
            staged = giving.stage(arrays)
            values, start = staged.wait(), 0
            for array in arrays:
                taking.put(array, values[start : start + array.piece.elements])
                start += array.piece.elements
            staged.release()
        taking.finish(decode(encode(giving.stage_rest().wait())))

    def restart(self) -> None:
        """Restart as a new process, with an empty optimizer. The parameters stay."""
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)


class Job:
    """The units and the outer optimizer."""

    def __init__(self, seed: int) -> None:
        chain = Chain(seed)
        self.units = [Unit(chain, seed, number) for number in range(UNITS)]
        self.average = self.units[0].values()
        self._momentum = np.zeros_like(self.average)
        self._held_out = chain.batch(512, torch.Generator().manual_seed(7))
        self._steps = 0

    def train(self, count: int) -> None:
        """Take `count` steps with each unit, and average where an interval ends. Deterministic for a seed."""
        for _ in range(count):
            for unit in self.units:
                unit.step()
            self._steps += 1
            if self._steps % H == 0:
                self._merge()

    def losses(self, count: int) -> np.ndarray:
        """The held-out loss of each unit after each of `count` further steps, [steps, units]."""
        rows = []
        for _ in range(count):
            self.train(1)
            with torch.no_grad():
                rows.append([float(unit.loss(self._held_out)) for unit in self.units])
        return np.array(rows)

    def states(self) -> list[dict[str, Any]]:
        """Copies of the optimizers' present states."""
        return [deepcopy(unit.optimizer.state_dict()) for unit in self.units]

    def resume(self, states: Sequence[dict[str, Any]] | None) -> None:
        """Restart all units from the last average, with these states. None means empty optimizers."""
        for number, unit in enumerate(self.units):
            unit.take(self.average)
            unit.restart()
            if states is not None:
                unit.optimizer.load_state_dict(states[number])

    def _merge(self) -> None:
        delta = self.average - np.mean([unit.values() for unit in self.units], axis=0, dtype=np.float32)
        merged = nesterov(delta, self._momentum, self.average, OUTER_RATE, OUTER_MOMENTUM)
        assert merged is not None
        self.average, self._momentum = merged
        for unit in self.units:
            unit.take(self.average)


@dataclass(frozen=True, slots=True)
class Curves:
    """Held-out losses after each step since the restart, [steps]."""

    twin: np.ndarray
    others: np.ndarray
    """The other undisturbed units, [steps, units]."""
    with_peer: np.ndarray
    without: np.ndarray

    @property
    def noise(self) -> float:
        return float(np.abs(self.others - self.twin[:, None]).max())

    def bump(self, curve: np.ndarray) -> float:
        return float((curve - self.twin).max())

    def rise(self, curve: np.ndarray) -> float:
        """How far the curve is above the twin's on average, until the units average again."""
        return float((curve - self.twin)[: H // 2 - 1].mean())


def curves(seed: int, size: Size) -> Curves:
    torch.set_num_threads(1)
    job, with_peer, without = (Job(seed) for _ in range(3))
    for each in (job, with_peer, without):
        each.train(size.steps)
    with_peer.units[0].restart_with(with_peer.units[1])
    without.units[0].take(without.average)
    without.units[0].restart()
    count = size.after * H
    undisturbed = job.losses(count)
    return Curves(undisturbed[:, 0], undisturbed[:, 1:], with_peer.losses(count)[:, 0], without.losses(count)[:, 0])


def resumed(seed: int, size: Size) -> dict[str, float]:
    """Age of the moments with which all units restart -> rise of the loss over that with the latest moments."""
    torch.set_num_threads(1)

    def losses(age: int | None) -> np.ndarray:
        job = Job(seed)
        job.train(size.steps - (age or 0))
        states = None if age is None else job.states()
        job.train(age or 0)
        job.resume(states)
        return job.losses(H // 2)

    newest = losses(0)
    return {str(age or "empty"): float((losses(age) - newest).mean()) for age in (*size.ages, None)}


def drawing(found: Curves) -> Element:
    """Draw the held-out loss of one seed, from the restart on."""
    lines = [
        Line("restarted without state", _points(found.without), COLOURS[1]),
        Line("restarted with the state of a peer", _points(found.with_peer), COLOURS[0]),
        Line("its undisturbed twin", _points(found.twin), "#555555", dashes="2 4"),
    ]
    losses = [loss for line in lines for _, loss in line.points]
    margin = 0.05 * (max(losses) - min(losses))
    y = Axis("held-out loss", min(losses) - margin, max(losses) + margin)
    return picture(
        Plot(f"A unit restarts in the middle of an interval, H = {H}", Axis("steps since the restart", 0, len(found.twin)), y, lines)
    )


def _points(losses: np.ndarray) -> list[tuple[float, float]]:
    return [(float(step), float(loss)) for step, loss in enumerate(losses, 1)]


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    all_curves = [curves(seed, size) for seed in range(size.seeds)]
    plot("restart-bump", partial(drawing, all_curves[0]), smoke=smoke)
    resumes = [resumed(seed, size) for seed in range(size.seeds)]
    ratios = [item.bump(item.with_peer) / item.noise for item in all_curves]
    without = [item.bump(item.without) / item.noise for item in all_curves]
    details = {
        "ratios": rounded(ratios, 3),
        "without": round(median(without), 3),
        "noise": round(median(item.noise for item in all_curves), 5),
        "rise": round(median(item.rise(item.with_peer) for item in all_curves), 5),
        "rise_without": round(median(item.rise(item.without) for item in all_curves), 5),
        "resumed": {age: round(median(item[age] for item in resumes), 5) for age in resumes[0]},
    }
    yield Figure("restart-bump", median(ratios), "ratio", LIMIT, median(ratios) <= LIMIT, size.seeds, details)
