"""What counts as a frozen base, and a unit with another one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from builders.exchange import LocalSyncer, Place, job_file, training
from diloco.contract import Exit
from diloco.jax import TreeStore
from diloco.session.session import Session
from diloco.torch import ModuleStore
from torch import nn


def digests(store: Any) -> dict[str, tuple[tuple[int, ...], int]]:
    return {tensor.name: (tensor.shape, tensor.digest) for tensor in store.frozen()}


def test_numbers_and_random_keys_among_the_leaves_count_and_other_objects_do_not() -> None:
    def store(rate: float, seed: int) -> TreeStore[Any]:
        frozen = {"rate": rate, "key": jax.random.key(seed), "name": object()}
        return TreeStore({"w": jnp.zeros(1), "frozen": frozen}, trained=lambda path: path == "w")

    first = digests(store(0.5, 1))
    assert sorted(first) == ["frozen/key", "frozen/rate"]
    other = digests(store(0.25, 2))
    assert all(first[name] != other[name] for name in first)


def adapted(scale: float) -> nn.Sequential:
    base = nn.Linear(3, 4)
    with torch.no_grad():
        base.weight.fill_(scale)
        base.bias.fill_(1)
    return nn.Sequential(base.requires_grad_(False), nn.Linear(4, 2, bias=False))


def join(place: Place, address: str, unit: str, module: nn.Module) -> Session:
    return Session.join(ModuleStore(module), framework="torch", environment=place.of_learner(address, unit))


def test_a_unit_with_another_frozen_base_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path, job_file(training(60, fragments=1)))
    with LocalSyncer(place) as syncer:
        first = join(place, syncer.address, "a", adapted(0.5))
        with pytest.raises(SystemExit) as left:
            join(place, syncer.address, "b", adapted(0.25))
        assert left.value.code == Exit.REFUSED_LAYOUT
        assert "frozen tensor 0.weight: other values than in the job; every unit must load the same ones" in capsys.readouterr().err
        with pytest.raises(SystemExit) as left:
            join(place, syncer.address, "c", adapted(0.5).requires_grad_(True))
        assert "tensor 0.bias: (4) here, frozen in the job" in capsys.readouterr().err
        second = join(place, syncer.address, "d", adapted(0.5))
        second.__exit__(ValueError, ValueError(), None)
        first.__exit__(ValueError, ValueError(), None)
