"""What is trained once: an arm, its rates, its seed and its size. Pure.

An arm is data parallel, or a job of so many units in which the global batch is split. Equal sizes and seeds give equal first parameters,
and equal samples in the same order, to every arm.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from diloco.contract import Training
from diloco.trainers.byte_lm import ModelConfig

FIRST_RATE: Final = 4e-3
"""Inner learning rate of `quarters` 0."""
FRAGMENTS: Final = 24
OVERLAP: Final = 2
"""As the API has them, or what the interval allows."""
TRAINED: Final = "trained"
"""Units push what they have trained."""


@dataclass(frozen=True, slots=True)
class Size:
    """A model and how much it is trained."""

    name: str
    layers: int
    width: int
    heads: int
    rows: int
    """Samples of the global batch."""
    steps: int
    """Steps of a unit: a multiple of every interval."""
    context: int = 128
    held_out: int = 1_048_576
    """Bytes of text that the final parameters are evaluated on."""

    @property
    def model(self) -> ModelConfig:
        """Return the model's shape."""
        return ModelConfig(self.layers, self.width, self.heads, self.context)

    @property
    def tokens(self) -> int:
        """Return the tokens of a whole run: at most one epoch."""
        return self.steps * self.rows * self.context


SIZES: Final = {
    size.name: size
    for size in (
        Size("98k", layers=2, width=64, heads=2, rows=16, steps=3000),
        Size("332k", layers=3, width=96, heads=3, rows=32, steps=4860),
        # The model of Table 4 of arXiv 2503.09799, for a GPU; its 700 M tokens are more than there is text.
        Size("35m", layers=11, width=512, heads=8, rows=64, steps=780, context=512),
        Size("smoke", layers=1, width=16, heads=2, rows=8, steps=20, context=16, held_out=4096),
    )
}
"""By name, which says how many parameters there are beside embeddings and the head."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train."""

    units: int
    """0: data parallel. Else a job of so many units."""
    interval: int = 30
    """H."""
    compression: str = "BFloat16"
    method: str = "RDA"
    batches: int = 1
    """Times the size's global batch, in as many fewer steps."""
    pushes: str = TRAINED
    """What units push, see `pushes`."""
    parameters: str = "float32"
    """What units keep their parameters in; "bfloat16" without masters."""

    @property
    def name(self) -> str:
        """Return a name that tells it from every other arm."""
        plain = Arm(self.units)
        parts = ["dp" if not self.units else f"m{self.units}"]
        parts += [f"{key}={value}" for key, value in asdict(self).items() if value != getattr(plain, key)]
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Rates:
    """What is tuned of both optimizers, as whole numbers, so that equal ones are equal."""

    quarters: int = 0
    """The inner rate is FIRST_RATE x 2^(quarters / 4)."""
    tenths: int = 6
    """The outer rate in tenths; without meaning for data parallel."""
    momentum_tenths: int = 6
    """The outer momentum in tenths; without meaning for data parallel."""

    @property
    def inner(self) -> float:
        """Return the highest learning rate of AdamW."""
        return float(FIRST_RATE * 2.0 ** (self.quarters / 4))

    @property
    def outer(self) -> float:
        """Return the learning rate of the outer optimizer."""
        return self.tenths / 10

    @property
    def momentum(self) -> float:
        """Return the Nesterov momentum of the outer optimizer."""
        return self.momentum_tenths / 10


def job(
    steps: int, interval: int, rates: Rates, *, quorum: int, compression: str = "BFloat16", method: str = "RDA", grace: float = 1.0
) -> Training:
    """Return `spec.training` of an arm's job. `steps`: outer steps. `grace`: most steps of its window."""
    return Training.model_validate(
        {
            "steps": steps,
            "syncInterval": interval,
            "fragments": min(FRAGMENTS, interval),
            "overlapSteps": min(OVERLAP, interval - 1),
            "quorum": quorum,
            "grace": {"maxSteps": grace},
            "merge": {"method": method},
            "outerOptimizer": {"learningRate": rates.outer, "momentum": rates.momentum},
            "compression": compression,
        }
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """One training to the end."""

    size: str
    arm: Arm
    rates: Rates
    seed: int
    halves: int = 2
    """Halves of the size's steps: 2 is the whole of them."""

    @property
    def steps(self) -> int:
        """Return the steps of a unit."""
        steps = SIZES[self.size].steps * self.halves // 2 // self.arm.batches
        return steps - steps % self.arm.interval if self.arm.units else steps

    @property
    def rows(self) -> int:
        """Return the samples of the global batch."""
        return SIZES[self.size].rows * self.arm.batches

    @property
    def rounds(self) -> int:
        """Return how often each fragment is merged."""
        return self.steps // self.arm.interval if self.arm.units else 0

    @property
    def training(self) -> Training:
        """Return the job. It goes on for nearly H outer steps in which nothing is trained, so that each fragment is merged once after its
        last training step, and none twice."""
        arm = self.arm
        return job(
            self.steps + arm.interval - 1, arm.interval, self.rates, quorum=arm.units, compression=arm.compression, method=arm.method
        )

    def as_json(self) -> dict[str, Any]:
        """Return it for a line."""
        return asdict(self)

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Self:
        """Return the trial of a line. Raises KeyError or TypeError when it is none."""
        return cls(line["size"], Arm(**line["arm"]), Rates(**line["rates"]), line["seed"], line["halves"])

    def __str__(self) -> str:
        outer = f", outer {self.rates.outer:.1f}/{self.rates.momentum:.1f}" if self.arm.units else ""
        return f"{self.size} {self.arm.name}, seed {self.seed}, inner {self.rates.inner:.5f}{outer}, {self.steps} steps"
