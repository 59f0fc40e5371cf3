"""A frozen base has one digest in all frameworks, and a unit with another one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from builders.exchange import LocalSyncer, Place, job_file, training
from diloco.algorithm.frozen import BLOCK, digest
from diloco.canonical import Canonical
from diloco.contract import Exit
from diloco.jax import TreeStore
from diloco.session.session import Session
from diloco.torch import ModuleStore
from torch import nn

CHANCE = np.random.default_rng(1)
MATRIX = CHANCE.standard_normal((6, 10), np.float32)
LAYERS = CHANCE.integers(-128, 128, (3, 4, 5), np.int8)
PHASES = (MATRIX + 1j * MATRIX[::-1]).astype(np.complex64)


def digests(store: Any) -> dict[str, tuple[tuple[int, ...], int]]:
    return {tensor.name: (tensor.shape, tensor.digest) for tensor in store.frozen()}


def in_torch(turned: bool, dtype: torch.dtype = torch.float32) -> ModuleStore:
    """With the canonical matrix, its first axis last where `turned`."""
    values = {
        "matrix": torch.tensor(MATRIX).T.contiguous().to(dtype) if turned else torch.tensor(MATRIX).to(dtype),
        "layers": torch.tensor(LAYERS),
        "phases": torch.tensor(PHASES),
    }
    module = nn.ParameterDict({name: nn.Parameter(value, requires_grad=False) for name, value in values.items()})
    module["trained"] = nn.Parameter(torch.zeros(2))
    return ModuleStore(module, canonical=mapping(turned))


def in_jax(turned: bool, dtype: Any = jnp.float32) -> TreeStore[Any]:
    values = {"matrix": jnp.asarray(MATRIX.T if turned else MATRIX, dtype), "layers": LAYERS, "phases": jnp.asarray(PHASES)}
    return TreeStore({**values, "trained": jnp.zeros(2)}, canonical=mapping(turned), trained=lambda path: path == "trained")


def mapping(turned: bool) -> dict[str, Canonical | str]:
    return {
        "matrix": Canonical("weight", axes=(1, 0) if turned else None),
        "layers": Canonical("layer.{layer}", stacked=True, axes=(1, 0)),
    }


def test_all_frameworks_and_all_orders_of_axes_give_one_digest() -> None:
    expected = {
        "weight": ((6, 10), digest((6, 10), (0, 0), MATRIX)),
        **{f"layer.{index}": ((5, 4), digest((5, 4), (0, 0), layer.T)) for index, layer in enumerate(LAYERS)},
        "phases": ((6, 10, 2), digest((6, 10, 2), (0, 0, 0), np.stack([PHASES.real, PHASES.imag], -1))),
    }
    for turned in (False, True):
        assert digests(in_torch(turned)) == expected
        assert digests(in_jax(turned)) == expected


def test_a_base_in_a_shorter_type_is_that_of_its_values() -> None:
    short = digests(in_torch(False, torch.bfloat16))["weight"]
    assert short == digests(in_jax(False, jnp.bfloat16))["weight"] != digests(in_torch(False))["weight"]
    rounded = torch.tensor(MATRIX).bfloat16().float().numpy()
    assert short[1] == digest((6, 10), (0, 0), rounded)


def test_a_tensor_of_many_blocks_is_digested_as_one() -> None:
    values = np.arange(BLOCK + 10, dtype=np.float32)
    module = nn.ParameterDict({"base": nn.Parameter(torch.tensor(values), requires_grad=False), "w": nn.Parameter(torch.zeros(1))})
    store = TreeStore({"base": jnp.asarray(values), "w": jnp.zeros(1)}, trained=lambda path: path == "w")
    assert digests(ModuleStore(module)) == digests(store) == {"base": (values.shape, digest(values.shape, (0,), values))}


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
