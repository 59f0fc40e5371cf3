"""A small torch model with AdamW, a schedule over local steps and a generator: for tests of what a process begins with.

Of several ranks, the model is sharded over them.

ADAMW_STEP_MS  a step lasts this long (default 20)
ADAMW_TRACE    append one JSON line {"unit", "attempt", "rank", "steps", "warm", "rate", "draw", "moments"} to this file before the first
               step: what the optimizer has counted by then, the first rate of a schedule that warms up over 20 steps to 1, that of one
               that was handed over, the generator's next number, and the sum of the unit's second moments
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import diloco.torch
import torch
from diloco import contract
from diloco.schedules import Schedule
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(8)))
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks > 1:
        distributed.init_process_group("gloo")
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.999**step)
    generator = torch.Generator().manual_seed(1 + rank)
    seconds = float(os.environ.get("ADAMW_STEP_MS", "20")) / 1000
    with diloco.torch.join(model, optimizer=optimizer, state=[rate, generator]) as session:
        _trace(optimizer, rate, generator, rank, Schedule("constant", warmup=20).next_share(session))
        for numbers in session.batches(lambda numbers: numbers, 2):
            begun = time.monotonic()
            source = torch.randn(2, 16, generator=generator)
            loss = (model(source) - source).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            rate.step()
            time.sleep(max(0.0, begun + seconds - time.monotonic()))
            session.step(tokens=16 * len(numbers), loss=loss.item())
        if session.done:
            session.evaluate(0.5, 100)
    if ranks > 1:
        distributed.destroy_process_group()


def _trace(
    optimizer: torch.optim.Optimizer, rate: torch.optim.lr_scheduler.LRScheduler, generator: torch.Generator, rank: int, warm: float
) -> None:
    steps = [int(state["step"]) for state in optimizer.state.values()]
    moments = [state["exp_avg_sq"] for state in optimizer.state.values()]
    whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in moments]
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    said = {
        "unit": os.environ[contract.ENV_UNIT],
        "attempt": int(os.environ[contract.ENV_ATTEMPT]),
        "rank": rank,
        "steps": steps,
        "warm": warm,
        "rate": rate.get_last_lr()[0],
        "draw": torch.rand(1, generator=copy).item(),
        "moments": sum(float(each.sum()) for each in whole),
    }
    with Path(os.environ["ADAMW_TRACE"]).open("a", encoding="utf-8") as trace:
        trace.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
