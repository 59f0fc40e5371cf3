"""[mixture-merge] Ways to merge a mixture of experts, by held-out loss: one radius for all experts of a tensor or one for each, and the
router merged by RDA or averaged.

Four units on virtual time train a byte model with one layer of experts with the real core. A router sends each byte to one expert, whose
output it scales. In `alike` all units read the same text; in `unlike` two read bytes that the other two never see, so that units move
different experts. Each way of merging gets the same first parameters and the same batches. For each setting and each other way, the line
has the mean of the loss with default merging ÷ the loss with that way, and its standard error. The value is the largest of these means.

`python -m benchmarks mixture-merge` takes 4 minutes on one idle core.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from builders.core import a_job
from builders.regression import LockStep, Parameters, Trainee
from diloco.algorithm.fragments import unpack
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.trainers.text import read_bytes, split_files
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy, gelu, one_hot

from benchmarks.figure import Figure

LIMIT = 1.01
UNITS = 4
CONTEXT = 8
"""Bytes from which the next one is predicted."""
EMBEDDED, WIDTH, HIDDEN = 8, 32, 64
BATCH = 64
RATE = 3e-3
BALANCE = 0.01
"""Weight of the loss term that keeps experts equally busy."""
BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class Size:
    steps: int
    seeds: int
    experts: tuple[int, ...]


FULL = Size(steps=300, seeds=5, experts=(2, 8))
SMOKE = Size(steps=30, seeds=1, experts=(2,))


@dataclass(frozen=True, slots=True)
class Way:
    """How the layer of experts is merged."""

    each_expert: bool
    average_router: bool


WAYS: Mapping[str, Way] = {
    "whole": Way(each_expert=False, average_router=False),
    "each": Way(each_expert=True, average_router=False),
    "whole-averaged": Way(each_expert=False, average_router=True),
    "each-averaged": Way(each_expert=True, average_router=True),
}
DEFAULT = "whole"
"""How a model is merged if its program declares nothing."""


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    torch.set_num_threads(1)
    corpus = Corpus.read()
    details: dict[str, object] = {}
    ratios = []
    for data in ("alike", "unlike"):
        for experts in size.experts:
            losses = {
                name: [_loss(corpus, data, experts, way, seed, size.steps) for seed in range(size.seeds)] for name, way in WAYS.items()
            }
            default_losses = losses.pop(DEFAULT)
            details[f"{data}-{experts}"] = round(statistics.mean(default_losses), 4)
            for name, way_losses in losses.items():
                pairs = [default_loss / way_loss for default_loss, way_loss in zip(default_losses, way_losses, strict=True)]
                error = statistics.stdev(pairs) / len(pairs) ** 0.5 if len(pairs) > 1 else 0.0
                ratios.append(statistics.mean(pairs))
                details[f"{data}-{experts}-{name}"] = [round(ratios[-1], 4), round(error, 4)]
    value = round(max(ratios), 4)
    yield Figure("mixture-merge", value, "x", LIMIT, value <= LIMIT, size.seeds, details)


@dataclass(frozen=True)
class Corpus:
    train: NDArray[np.uint8]
    held_out: NDArray[np.uint8]

    @classmethod
    def read(cls) -> Corpus:
        """Read Python source, without its few bytes that are not ASCII."""
        train, held_out = split_files()
        return cls(*(text[text < 128] for text in (read_bytes(train, BYTES), read_bytes(held_out, BYTES // 10))))

    @staticmethod
    def windows(text: NDArray[np.uint8], count: int, rng: np.random.Generator, shifted: bool) -> torch.Tensor:
        """Random windows of the text, int64 [count, CONTEXT + 1]. `shifted` adds 128 to each byte: the same text in bytes that units
        without it never see."""
        starts = rng.integers(0, len(text) - CONTEXT - 1, count)
        return torch.from_numpy(text[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int64) + 128 * shifted)


def shapes(experts: int) -> dict[str, tuple[int, ...]]:
    return {
        "embedding": (256, EMBEDDED),
        "mix": (CONTEXT * EMBEDDED, WIDTH),
        "router": (WIDTH, experts),
        "experts.up": (experts, WIDTH, HIDDEN),
        "experts.down": (experts, HIDDEN, WIDTH),
        "head": (WIDTH, 256),
    }


def layout(experts: int, way: Way) -> Layout:
    averaged = {"embedding", "router"} if way.average_router else {"embedding"}
    return Layout(
        TensorSpec(name, shape, name in averaged, int(way.each_expert and name.startswith("experts")))
        for name, shape in shapes(experts).items()
    )


def first_parameters(experts: int, seed: int) -> Parameters:
    rng = np.random.default_rng([seed, experts])
    return {
        name: rng.standard_normal(shape, dtype=np.float32) * np.float32(0.3 if name == "embedding" else shape[-2] ** -0.5)
        for name, shape in shapes(experts).items()
    }


def loss_of(theta: Mapping[str, torch.Tensor], windows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy of the last bytes, and how unequally busy the experts are (1 if equally)."""
    x = gelu(theta["embedding"][windows[:, :-1]].flatten(1) @ theta["mix"])
    chances = (x @ theta["router"]).softmax(-1)
    chosen = one_hot(chances.argmax(-1), chances.shape[-1]).to(x.dtype)
    # Each expert computes all rows, and `chosen` drops the rows of other experts. That is wasteful, but simple and exact.
    hidden = gelu(torch.einsum("bw,ewh->ebh", x, theta["experts.up"]))
    each = torch.einsum("ebh,ehw->ebw", hidden, theta["experts.down"])
    x = x + torch.einsum("ebw,be->bw", each, chosen * chances)
    balance = chances.shape[-1] * (chosen.mean(0) * chances.mean(0)).sum()
    return cross_entropy(x @ theta["head"], windows[:, -1]), balance


class Mixture:
    """The trainer of one unit."""

    def __init__(self, corpus: Corpus, experts: int, rng: np.random.Generator, shifted: bool, steps: int) -> None:
        self.step = 0
        self.rate = np.float32(RATE)
        self._corpus, self._rng, self._shifted, self._steps = corpus, rng, shifted, steps
        self._theta = {name: torch.zeros(shape, requires_grad=True) for name, shape in shapes(experts).items()}
        self._optimizer = torch.optim.AdamW(self._theta.values(), lr=float(self.rate), betas=(0.9, 0.99))

    def train(self, theta: Parameters) -> Parameters:
        with torch.no_grad():
            for name, value in self._theta.items():
                value.copy_(torch.from_numpy(theta[name].copy()))
        for group in self._optimizer.param_groups:
            group["lr"] = float(self.rate) * max(0.1, 1 - self.step / self._steps)
        self.step += 1
        loss, balance = loss_of(self._theta, Corpus.windows(self._corpus.train, BATCH, self._rng, self._shifted))
        self._optimizer.zero_grad()
        (loss + BALANCE * balance).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return {name: value.detach().numpy().copy() for name, value in self._theta.items()}


def _loss(corpus: Corpus, data: str, experts: int, way: Way, seed: int, steps: int) -> float:
    training = a_job(
        steps=steps,
        sync_interval=24,
        fragments=3,
        overlap_steps=2,
        quorum=UNITS,
        merge={"method": "RDA", "embeddings": "Average"},
        outer_optimizer={"learning_rate": 0.7, "momentum": 0.9},
    )
    trainees = {
        f"u{unit}": Trainee(
            Mixture(corpus, experts, np.random.default_rng([seed, unit]), data == "unlike" and unit % 2 == 1, steps),
            theta=first_parameters(experts, seed),
        )
        for unit in range(UNITS)
    }
    job = LockStep(training, trainees, layout=layout(experts, way), initial=lambda: first_parameters(experts, seed))
    while not job.core.done:
        job.tick()
    assert not job.refused
    assert not job.rejected
    final = {name: x for f in job.core.fragments for name, x in unpack(f, job.core.value(f.index)).items()}
    theta = {name: torch.from_numpy(value.copy()) for name, value in final.items()}
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        kinds = (False, True) if data == "unlike" else (False,)
        return statistics.mean(float(loss_of(theta, Corpus.windows(corpus.held_out, 8192, rng, kind))[0]) for kind in kinds)
