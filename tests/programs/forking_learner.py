"""A torch learner that forks while it is in a job: workers of a DataLoader, and a process pool that it ends by SIGTERM.

Ends with status 0 when the job is done; prints `forked` once every kind of child has come and gone.
"""

from __future__ import annotations

import multiprocessing

import diloco.torch as diloco
import torch
from torch.utils.data import DataLoader, TensorDataset

WORKERS = 2


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))  # as many tensors as fragments
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.arange(64.0).reshape(8, 8))
    forking = multiprocessing.get_context("fork")
    with diloco.join(model, optimizer=optimizer) as session:
        for _ in session.batches(lambda numbers: numbers, 4):
            if session.step_count % 40 == 0:
                pool = forking.Pool(WORKERS)
                pool.terminate()  # SIGTERM: the workers have nothing to drain
                pool.join()
                loader = DataLoader(data, batch_size=4, num_workers=WORKERS, multiprocessing_context=forking)
                assert sum(len(batch) for (batch,) in loader) == 8
                print("forked", flush=True)
            loss = model(torch.ones(8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.step(tokens=4, loss=loss.item())


if __name__ == "__main__":
    main()
