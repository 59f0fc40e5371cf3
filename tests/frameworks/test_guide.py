"""The guide's programs run, and a plain loop needs as few lines as it claims."""

import difflib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diloco.jax
import diloco.torch
import numpy as np
import pytest
import torch
from builders.exchange import LocalLearner, LocalSyncer, Place, job_file, training
from diloco.jax import TreeStore
from diloco.trainers.alone import AloneSession
from diloco.trainers.alone_jax import AloneTreeSession

CHAPTERS = sorted((Path(__file__).parents[2] / "docs" / "guide").glob("*.md"))
GUIDE = "\n".join(path.read_text() for path in CHAPTERS)
STEPS = 30
ROWS = np.tile(np.arange(9), (8, 1)).astype(np.int64)
"""Every byte is followed by the next one: easily learnt."""


def program(mark: str) -> str:
    found = re.search(rf"<!-- {re.escape(mark)} -->\n```python\n(.*?)```", GUIDE, re.DOTALL)
    assert found, f"the guide has no program marked {mark!r}"
    return found.group(1)


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The losses that a program reports. There is no syncer: joining gives a session of 30 steps."""
    reported: list[float] = []

    def count(tokens: int, loss: float | None, batches: int) -> None:
        assert tokens == 64 * batches
        if loss is not None:
            reported.append(loss)

    class Listening(AloneSession):
        def _count_step(self, tokens: int, loss: float | None, batches: int) -> None:
            super()._count_step(tokens, loss, batches)
            count(tokens, loss, batches)

    class ListeningTree(AloneTreeSession[Any, Any]):
        def _count_step(self, tokens: int, loss: float | None, batches: int) -> None:
            super()._count_step(tokens, loss, batches)
            count(tokens, loss, batches)

    monkeypatch.setattr(diloco.torch.Session, "join", lambda *_, **__: Listening(STEPS))
    monkeypatch.setattr(diloco.jax, "join", lambda params, state: ListeningTree(STEPS, TreeStore(params), state))
    return reported


def plain_batches[T](source: Callable[[np.ndarray], T], batch_size: int) -> Iterator[T]:
    return (source(np.arange(batch_size)) for _ in range(STEPS))


@pytest.mark.slow
def test_the_torch_program_trains(losses: list[float]) -> None:
    exec(program("torch: learner"), {"source": lambda numbers: torch.from_numpy(ROWS)})
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] / 2


@pytest.mark.slow
def test_the_jax_program_trains(losses: list[float]) -> None:
    exec(program("jax: learner"), {"source": lambda numbers: ROWS})
    assert len(losses) == STEPS - 1  # a loss on the device is reported one step later
    assert losses[-1] < losses[0] / 2


def test_the_plain_program_is_a_program() -> None:
    space: dict[str, Any] = {"source": lambda numbers: torch.from_numpy(ROWS), "batches": plain_batches}
    exec(program("torch: plain"), space)
    assert space["loss"].item() < np.log(256)


def test_a_plain_loop_becomes_a_learner_with_an_import_a_join_a_step_and_a_close() -> None:
    plain, learner = (program(f"torch: {kind}").splitlines() for kind in ("plain", "learner"))
    changes = [line for line in difflib.ndiff(plain, learner) if line.startswith("+ ")]
    assert [line.split("(")[0] for line in changes] == [
        "+ import diloco.torch as diloco",
        "+ session = diloco.join",
        "+ for batch in session.batches",
        "+     session.step",
        "+ session.close",
    ]


def test_the_source_gives_every_sample_once_in_each_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, samples = 256, 5
    np.arange(context * samples + 1, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    exec(program("torch: source"), space)
    for epoch in range(2):
        batch = space["source"](np.arange(epoch * samples, (epoch + 1) * samples))
        assert sorted(batch[:, 0].tolist()) == [context * sample for sample in range(samples)]
        assert torch.equal(batch - batch[:, :1], torch.arange(context + 1).expand(samples, -1)), "rows of neighbours, one more than inputs"


@pytest.mark.slow
def test_the_average_moves_with_what_the_job_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit itself trains nothing, so its average must be where the parameters are, however far another unit moves them."""
    place = Place(tmp_path, job_file(training(40, quorum=2)))  # so neither unit goes through the job before the other is there
    model = torch.nn.Linear(4, 3)
    began = {name: value.detach().clone() for name, value in model.named_parameters()}
    arrays = {name: value.numpy().copy() for name, value in began.items()}
    with LocalSyncer(place) as syncer:
        other = LocalLearner(place, syncer.address, "b", arrays=arrays, embeddings=(), goal=5.0).start()
        for variable, setting in place.of_learner(syncer.address, "a").items():
            monkeypatch.setenv(variable, setting)
        space: dict[str, Any] = {
            "torch": torch,
            "diloco": diloco.torch,
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.0),
            "source": lambda numbers: torch.zeros(len(numbers), 4),
            "loss_fn": lambda model, batch: model(batch).square().mean(),
        }
        exec(program("torch: average"), space)
        other.wait()
    assert space["session"].done
    for name, value in model.named_parameters():
        assert (value - began[name]).abs().min() > 0.1, "the other unit has moved the model"
        assert torch.equal(space["seen"][name], value), "the final parameters have been followed, too"
        torch.testing.assert_close(space["average"][name], value.detach(), atol=1e-4, rtol=0)
