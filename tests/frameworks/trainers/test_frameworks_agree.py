"""One canonical layout, two frameworks: the same numbers from the same parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diloco.jax import TreeStore
from diloco.torch import ModuleStore
from diloco.trainers import byte_lm, byte_lm_jax, byte_lm_torch, steps_torch
from diloco.trainers.byte_lm import ModelConfig
from diloco.trainers.inner_optimizer import InnerConfig

pytestmark = pytest.mark.slow

CONFIGS = [ModelConfig(layers=3, width=16, heads=2, context=12), ModelConfig(layers=1, width=24, heads=4, context=8, tied=True)]


def in_torch(config: ModelConfig) -> tuple[byte_lm_torch.ByteLM, ModuleStore]:
    model = byte_lm_torch.initial_model(config, seed=0)
    return model, ModuleStore(model, canonical=byte_lm_torch.canonical_names(config))


def in_jax(config: ModelConfig) -> TreeStore[byte_lm_jax.Params]:
    return TreeStore(byte_lm_jax.initial_params(config, seed=0), canonical=byte_lm_jax.canonical_names(config))


def some_parameters(config: ModelConfig) -> dict[str, np.ndarray]:
    """Values everywhere, also where the first values are 0 or 1, so that no term of the model can be missing unseen."""
    generator = np.random.default_rng(7)
    shapes = byte_lm.parameter_shapes(config)
    return {name: generator.normal(0.5 if name.endswith("scale") else 0.0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def windows(config: ModelConfig, batch: int = 3) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (batch, config.context + 1)).astype(np.uint8)


@pytest.mark.parametrize("config", CONFIGS)
def test_both_have_the_canonical_layout_and_the_first_values(config: ModelConfig) -> None:
    _, torch_store = in_torch(config)
    jax_store = in_jax(config)
    assert torch_store.specs() == jax_store.specs()
    assert {spec.name: spec.shape for spec in jax_store.specs()} == byte_lm.parameter_shapes(config)
    assert {spec.name for spec in jax_store.specs() if spec.embedding} == {"embedding", "position"}
    expected = byte_lm.initial_parameters(config, 0)
    for store in (torch_store, jax_store):
        for name, value in store.read(list(expected)).items():
            np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize("config", CONFIGS)
def test_equal_parameters_give_equal_logits_and_loss(config: ModelConfig) -> None:
    values, rows = some_parameters(config), windows(config)
    model, torch_store = in_torch(config)
    jax_store = in_jax(config)
    torch_store.write(values)
    jax_store.write(values)
    tokens = torch.from_numpy(rows.astype(np.int64))
    logits = model(tokens[:, :-1]).detach().numpy()
    other = byte_lm_jax.forward(jax_store.hand_out(), jnp.asarray(rows[:, :-1]), config.heads)
    assert logits.shape == (3, config.context, 256)
    np.testing.assert_allclose(logits, other, rtol=1e-5, atol=1e-5)
    loss = steps_torch.mean_loss(model, tokens).item()
    assert loss == pytest.approx(float(byte_lm_jax.mean_loss(jax_store.hand_out(), jnp.asarray(rows), config.heads)), rel=1e-5)


def test_a_uniform_head_predicts_every_byte_alike() -> None:
    config = CONFIGS[0]
    model, _ = in_torch(config)
    loss = steps_torch.mean_loss(model, torch.from_numpy(windows(config).astype(np.int64))).item()
    assert loss == pytest.approx(np.log(256), rel=1e-6)


def test_a_later_byte_does_not_change_an_earlier_prediction() -> None:
    config = CONFIGS[0]
    model, store = in_torch(config)
    store.write(some_parameters(config))
    rows = torch.from_numpy(windows(config)[:, :-1].astype(np.int64))
    changed = rows.clone()
    changed[:, 6] = (changed[:, 6] + 1) % 256
    before, after = model(rows), model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6], after[:, 6])


def test_optimizer_steps_stay_close_over_several_batches_and_in_jax_update_in_place_of_their_arguments() -> None:
    config, inner = CONFIGS[0], InnerConfig(learning_rate=1e-3)
    values = some_parameters(config)
    model, torch_store = in_torch(config)
    jax_store = in_jax(config)
    torch_store.write(values)
    jax_store.write(values)
    torch_optimizer = byte_lm_torch.make_optimizer(model, config, inner)
    jax_optimizer = byte_lm_jax.make_optimizer(config, inner)
    first = params = jax_store.hand_out()
    state = jax_optimizer.init(params)
    step = byte_lm_jax.make_train_step(config, jax_optimizer)
    for number in range(5):
        rows = np.random.default_rng(number).integers(0, 256, (2, config.context + 1)).astype(np.uint8)
        rate = inner.rate(number + 1, 0.0)
        torch_loss = steps_torch.train_step(model, torch_optimizer, torch.from_numpy(rows.astype(np.int64)), rate)
        params, state, jax_loss = step(params, state, rows, rate)
        assert torch_loss.item() == pytest.approx(float(jax_loss), rel=1e-4)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first))
    jax_store.take_back(params)
    torch_values, jax_values = torch_store.read(list(values)), jax_store.read(list(values))
    # Adam's first steps are about sign(g) x rate for every element; 5 steps at <= 1e-3 x 5/40 move it by at most 4e-4. Rounding
    # can turn the sign where a gradient is nearly 0, so single elements may differ by a step; on the whole they must not.
    for name, value in values.items():
        moved, difference = np.abs(torch_values[name] - value).mean(), np.abs(torch_values[name] - jax_values[name]).mean()
        assert moved > 0, name
        assert difference < 0.01 * moved, name
