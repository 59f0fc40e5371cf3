"""Checks the torch adapter with programs of many kinds. Each runs with a session and without, compared step by step.

    python -m benchmarks.device.torch_variants --device cuda KIND…

Prints a line for each kind, see `Outcome`. If a kind fails, its line says why, and the next one begins. The exit status is 1 if a kind
fails or its outcome is not good.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import torch
from builders.master_sgd import MasterSGD
from builders.scripted_connection import ScriptedSession
from diloco.algorithm.fragments import pack
from diloco.torch import ModuleStore
from diloco.torch.adoption_check import AdoptionCheck
from diloco.torch.optimizers import UpdateCounts
from torch import nn
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.device.outcome import Outcome, look_at_each
from benchmarks.device.script import ADOPTED_AT, BATCH, EQUAL, QUIET, READS, STEPS, adopted, comes_before, read, seeds

SYNCHRONISING: Final = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cuCtxSynchronize")
"""Calls of CUDA's runtime in which the host waits for the device."""

LAG_CYCLES: Final = 20_000_000
"""In each step the device lags this many cycles, about 10 ms, behind the host. So a copy that does not wait for the step would be wrong."""

type Values = dict[str, torch.Tensor]


class Program:
    """A model of linear layers. Its gradients are summed in a fixed order, so that a step gives the same result in every run."""

    width, layers, rows = 256, 6, 64

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        blocks = [nn.Sequential(nn.LayerNorm(self.width), nn.Linear(self.width, self.width), nn.GELU()) for _ in range(self.layers)]
        self.model: nn.Module = self.prepared(nn.Sequential(*blocks).to(device))
        self.optimizer = self.make_optimizer()
        self.run = self.wrapped(self.model)

    def prepared(self, model: nn.Module) -> nn.Module:
        return model

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def wrapped(self, model: nn.Module) -> nn.Module:
        return model

    def loss(self, number: int) -> torch.Tensor:
        inputs = torch.randn(self.rows, self.width, generator=torch.Generator().manual_seed(number)).to(self.device)
        outputs: torch.Tensor = self.run(inputs.to(next(self.model.parameters()).dtype))
        return (outputs.float() - inputs).square().mean()

    def update(self, number: int) -> None:
        self.loss(number).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()

    def values(self) -> Values:
        """Copy the parameters on their device. The host does not wait."""
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}


class Compiled(Program):
    mode = "default"

    def wrapped(self, model: nn.Module) -> nn.Module:
        # On the CPU the real compiler would take half a minute, and its code is not what is checked.
        options = {"backend": "aot_eager"} if self.device == "cpu" else {"mode": self.mode}
        compiled: nn.Module = torch.compile(model, **options)  # type: ignore[call-overload]
        return compiled


class CudaGraphs(Compiled):
    mode = "reduce-overhead"


class AutocastBfloat16(Program):
    def loss(self, number: int) -> torch.Tensor:
        with torch.autocast(self.device, torch.bfloat16):
            return super().loss(number)


class ScaledFloat16(Program):
    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.scaler = torch.amp.GradScaler(device, init_scale=256.0)

    def update(self, number: int) -> None:
        with torch.autocast(self.device, torch.float16):
            loss = self.loss(number)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


class Fused(Program):
    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)


class Masters(Program):
    """bfloat16 parameters, and an optimizer that keeps float32 masters of them."""

    def prepared(self, model: nn.Module) -> nn.Module:
        return model.bfloat16()

    def make_optimizer(self) -> torch.optim.Optimizer:
        return MasterSGD(self.model.parameters(), 1e-2)


KINDS: Final[Mapping[str, Callable[[str], Program]]] = {
    "plain": Program,
    "autocast-bfloat16": AutocastBfloat16,
    "gradscaler-float16": ScaledFloat16,
    "fused-adamw": Fused,
    "bfloat16-with-masters": Masters,
    "compile": Compiled,
    "cuda-graphs": CudaGraphs,
}


def alone(program: Program) -> list[Values]:
    """The parameters after each step of the program by itself."""
    after = []
    for step in range(1, STEPS + 1):
        program.update(step)
        after.append(program.values())
    return after


class InJob:
    """The same program in a job, whose messages come from `script`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.after: list[Values] = []
        """The parameters after each step's boundary."""
        store = ModuleStore(program.model)
        store.adoption_check = AdoptionCheck([program.optimizer])
        self.job = ScriptedSession(store=store, updates=UpdateCounts([program.optimizer]), stepped=store.adoption_check.stepped)
        seeds(self.job)

    def train(self) -> None:
        batches = self.job.session.batches(lambda numbers: numbers, BATCH)
        for step in range(1, STEPS + 1):
            next(batches)
            if self.program.device == "cuda":
                torch.cuda._sleep(LAG_CYCLES)  # type: ignore[no-untyped-call]
            self.program.update(step)
            if step == ADOPTED_AT:
                self.wait()  # then the reads have arrived, which this step's message needs; the boundary itself must not wait for them
            comes_before(self.job, step)
            with record_function(boundary(step)):
                self.job.session.step(tokens=16)
            self.after.append(self.program.values())
        self.wait()

    def wait(self) -> None:
        if self.program.device == "cuda":
            torch.cuda.synchronize()

    def staged_equal(self) -> bool:
        """Whether the values that were read are the parameters after those steps."""
        values = read(self.job)
        return len(values) == len(READS) and all(
            np.array_equal(values[fragment], self.packed(fragment, self.after[step - 1])) for step, fragment in READS.items()
        )

    def adopted_equal(self) -> bool:
        """Whether the parameters after the adoption are the adopted values, rounded to the parameters' type."""
        dtype = next(iter(self.after[0].values())).dtype
        wanted = torch.from_numpy(adopted(self.job)).to(dtype).float().numpy()
        return np.array_equal(wanted, self.packed(0, self.after[ADOPTED_AT - 1]))

    def packed(self, fragment: int, values: Values) -> np.ndarray:
        return pack(self.job.fragments[fragment], {name: value.float().cpu().numpy() for name, value in values.items()})


def boundary(step: int) -> str:
    return f"boundary {step}"


def waits(events: Sequence[FunctionEvent], steps: tuple[int, ...]) -> int:
    """Number of calls that wait for the device in the boundaries of these steps."""
    names = {boundary(step) for step in steps}
    # A boundary has a second span, for the time when the device got to it. Only the host's span counts.
    spans = [event.time_range for event in events if event.name in names and event.device_type is DeviceType.CPU]
    calls = [event.time_range.start for event in events if event.name in SYNCHRONISING]
    return sum(span.start <= call <= span.end for span in spans for call in calls)


def same(one: Values, other: Values) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def outcome(kind: str, device: str) -> Outcome:
    make = KINDS[kind]
    reference, again = alone(make(device)), alone(make(device))
    in_job = InJob(make(device))
    events: Sequence[FunctionEvent] = ()
    if device == "cuda":
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            in_job.train()
        events = profiler.events() or ()
    else:
        in_job.train()  # there is no device to wait for
    return Outcome(
        f"torch {kind}",
        equal=sum(same(one, other) for one, other in zip(reference[:EQUAL], in_job.after, strict=False)),
        repeats=all(same(one, other) for one, other in zip(reference, again, strict=True)),
        staged=in_job.staged_equal(),
        adopted=in_job.adopted_equal(),
        waits=waits(events, QUIET),
        waits_of_adoption=waits(events, (ADOPTED_AT,)),
        waits_seen=sum(event.name in SYNCHRONISING for event in events) if device == "cuda" else None,
    )


def main() -> int:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    return look_at_each("torch", KINDS, outcome)


if __name__ == "__main__":
    sys.exit(main())
