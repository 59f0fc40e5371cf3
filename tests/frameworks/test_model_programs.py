"""The programs of docs/models.md train as they stand there, as a unit of a job with a real syncer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from builders.exchange import LocalSyncer, Place, job_file, training

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
ROWS = np.tile(np.arange(9), (8, 1)).astype(np.int64)
"""Every byte is followed by the next one: easily learnt."""
STEPS = 40

pytestmark = pytest.mark.slow


def train(mark: str, directory: Path, monkeypatch: pytest.MonkeyPatch, **given: Any) -> dict[str, Any]:
    """The program's variables at its end. The job is complete then."""
    found = re.search(rf"<!-- {re.escape(mark)} -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found, f"the page has no program marked {mark!r}"
    place = Place(directory, job_file(training(STEPS)))
    with LocalSyncer(place) as syncer:
        for name, value in place.of_learner(syncer.address, "a").items():
            monkeypatch.setenv(name, value)
        space: dict[str, Any] = dict(given)
        exec(found.group(1), space)
    assert space["session"].done
    assert space["session"].step_count > 0
    assert space["loss"].item() < np.log(256) / 2, "it has learnt more than half of what there is to learn"
    return space


def test_a_model_of_flax_nnx_ends_with_the_jobs_parameters_and_its_own_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = train("jax: nnx", tmp_path, monkeypatch, source=lambda numbers: ROWS)
    model, params = space["model"], jax.tree.leaves(space["session"].params)
    assert all(
        np.array_equal(own, final)
        for own, final in zip(jax.tree.leaves(space["nnx"].state(model, space["nnx"].Param)), params, strict=True)
    )
    assert np.asarray(model.norm.mean[...]).any(), "statistics are no part of the parameters, and are kept"


def test_a_model_of_equinox_ends_with_the_jobs_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = train("jax: equinox", tmp_path, monkeypatch, source=lambda numbers: ROWS)
    logits = space["model"](ROWS[0, :-1])
    assert np.array_equal(np.argmax(logits, axis=-1), ROWS[0, 1:]), "the whole module is there, with its functions"


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        ("torch: experts", {"0.weight": 0, "1.down": 1, "1.router.weight": 0, "1.up": 1, "2.bias": 0, "2.weight": 0}),
        ("jax: experts", {"embedding": 0, "experts/down": 1, "experts/up": 1, "head": 0, "router": 0}),
    ],
)
def test_the_experts_of_a_mixture_are_merged_each_by_itself(
    mark: str, expected: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.from_numpy(ROWS) if mark.startswith("torch") else ROWS
    train(mark, tmp_path, monkeypatch, source=lambda numbers: rows)
    [folder] = sorted((tmp_path / "state" / "snapshots").glob("*"))[-1:]
    layout = json.loads((folder / "manifest.json").read_text())["meta"]["core"]["layout"]
    assert {name: axes for name, _, _, axes in layout} == expected


def test_of_a_model_with_an_adapter_only_that_is_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = train("torch: lora", tmp_path, monkeypatch, source=lambda numbers: torch.from_numpy(ROWS))
    adapter = (64 + 256) * 8
    assert sum(parameter.numel() for parameter in space["trained"]) == adapter
    [folder] = sorted((tmp_path / "state" / "snapshots").glob("*"))[-1:]
    assert 4 * adapter <= (folder / "tensors.safetensors").stat().st_size < 4 * 256 * 64, "less than the base's embedding alone"


def test_statistics_of_batchnorm_are_taken_anew_when_the_job_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (64, 8, 9))

    def source(numbers: np.ndarray) -> torch.Tensor:
        batch = torch.from_numpy(rows[numbers % 64, numbers % 8])
        batch[:, -1] = 7
        return batch

    held_out = np.arange(800).reshape(100, 8)
    space = train("torch: batchnorm", tmp_path, monkeypatch, source=source, held_out=held_out)
    inputs = torch.cat([source(numbers)[:, :-1] / 256 for numbers in held_out])
    with torch.no_grad():
        expected = space["model"][0](inputs).mean(0)
    assert torch.allclose(space["model"][1].running_mean, expected, atol=1e-5), "the mean over all batches, under the final parameters"
