"""The learner for benchmarks of recovery: torch with AdamW, a given size of parameters and moments together, and steps of a given length.

    python -m benchmarks.recovery_learner TIMES --mebibytes 256 --step-seconds 0.05

TIMES gets one line for each step: seconds of CLOCK_MONOTONIC. The first step updates all parameters, so that all have moments. Each later
step updates one tensor, so that a step of a large model takes no longer than of a small one.
"""

from __future__ import annotations

import time

import diloco.torch
import torch

from benchmarks.fixed_step_learner import BATCH, arguments, shapes

ARRAYS = 3
"""Arrays of each element of the state: the parameter and two moments."""


class Model(torch.nn.Module):
    """A model with tensors of nearly equal size."""

    def __init__(self, mebibytes: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, shape in shapes(mebibytes).items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape) / 100))


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    model = Model(given.mebibytes / ARRAYS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    parameters = list(model.parameters())
    with given.times.open("w", encoding="ascii", buffering=1) as times, diloco.torch.join(model, optimizer=optimizer) as session:
        for _ in session.batches(lambda numbers: numbers, BATCH):
            deadline = time.monotonic() + given.step_seconds
            # All in the first step, then one of them in turn.
            trained = parameters if not session.step_count else [parameters[session.step_count % len(parameters)]]
            for parameter in trained:
                parameter.grad = parameter.detach() * 0.01
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(max(0.0, deadline - time.monotonic()))
            session.step(tokens=BATCH * 128)
            times.write(f"{time.monotonic():.6f}\n")


if __name__ == "__main__":
    main()
