"""One rank of a unit with several torch processes, for benchmarks of ranks: parameters are replicated, and each step has one collective.

    python -m benchmarks.rank_learner TIMES --mebibytes 4 --step-seconds 0.05 [--alone | --bare]

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which rank it is. Rank 0 writes the times of its steps to TIMES, the others to
TIMES.<rank>. For comparison, `--alone` runs the same loop without a session, and `--bare` with a `BareExchange` in its place, with the
bytes of the rank's part of the model. The program ends with the process that started it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import diloco.torch
import torch
from torch import distributed, nn

from benchmarks.bare_exchange import BareExchange
from benchmarks.fixed_step_learner import BATCH, arguments, model, processor_times


class Replicated(nn.Module):
    """A model of `mebibytes` MiB, the same on all ranks."""

    def __init__(self, mebibytes: int) -> None:
        super().__init__()
        for name, value in model(mebibytes).items():
            self.register_parameter(name, nn.Parameter(torch.from_numpy(value)))


def steps(module: nn.Module, batches: Iterator[object], step_seconds: float) -> Iterator[None]:
    """Yield once for each step. A step takes `step_seconds`, and then all ranks wait for each other."""
    meeting = torch.zeros(1)
    parameters = list(module.parameters())
    for number, _ in enumerate(batches):
        deadline = time.monotonic() + step_seconds
        with torch.no_grad():
            parameters[number % len(parameters)].mul_(0.999)
        time.sleep(max(0.0, deadline - time.monotonic()))
        distributed.all_reduce(meeting)
        yield


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    path = given.times if rank == 0 else Path(f"{given.times}.{rank}")
    module = Replicated(given.mebibytes)
    with path.open("w", encoding="ascii", buffering=1) as times:
        if given.alone or given.bare:
            bare = BareExchange(sum(parameter.numel() for parameter in module.parameters()) // ranks) if given.bare else None
            for _ in steps(module, iter(lambda: 0, 1), given.step_seconds):
                if bare is not None:
                    bare.step()
                times.write(f"{time.monotonic():.6f} {processor_times()}\n")
            return
        # With a rate of 0 the optimizer does nothing: the work of a real one would be the same with and without a session.
        optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
        with diloco.torch.join(module, optimizer=optimizer) as session:
            for _ in steps(module, session.batches(lambda numbers: numbers, BATCH // ranks), given.step_seconds):
                optimizer.step()
                session.step(tokens=BATCH // ranks * 128)
                times.write(f"{time.monotonic():.6f} {processor_times()}\n")


if __name__ == "__main__":
    main()
