"""A torch learner that trains on a DataLoader with two workers, with several batches in each update. Prints the indices of each update."""

from __future__ import annotations

import json

import diloco.torch as diloco
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

SAMPLES = 50
SEED = 7
BATCH = 3
BATCHES_PER_UPDATE = 4
TOKENS_PER_SAMPLE = 10


class Indices(Dataset[tuple[int, int]]):
    """Each sample is its own index, and the worker that read it."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, int]:
        worker = get_worker_info()
        return index, -1 if worker is None else worker.id


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))  # as many tensors as fragments
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Indices()
    with diloco.join(model, optimizer=optimizer) as session:
        loader = DataLoader(data, batch_sampler=session.numbers(BATCH, samples=len(data), seed=SEED), num_workers=2, prefetch_factor=4)
        held: list[int] = []
        for number, (indices, workers) in enumerate(loader, 1):
            if session.over:
                break
            assert set(workers.tolist()) <= {0, 1}
            held += indices.tolist()
            model(indices.float().mean().expand(8) / SAMPLES).square().mean().backward()
            if number % BATCHES_PER_UPDATE == 0:
                optimizer.step()
                optimizer.zero_grad()
                session.step(tokens=len(held) * TOKENS_PER_SAMPLE, batches=BATCHES_PER_UPDATE)
                print(json.dumps(held), flush=True)
                held = []


if __name__ == "__main__":
    main()
