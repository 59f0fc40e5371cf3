"""The Llama-type decoder: one canonical layout, two frameworks, and transformers' own model as the reference."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from builders.exploration import full
from diloco.jax import TreeStore
from diloco.torch import ModuleStore
from diloco.trainers import llama, llama_jax, llama_torch, steps_jax, steps_torch
from diloco.trainers.inner_optimizer import InnerConfig
from diloco.trainers.llama import SIZES, LlamaConfig

pytestmark = pytest.mark.slow

CONFIGS = [
    LlamaConfig(vocabulary=50, layers=3, width=24, heads=3, kv_heads=1, hidden=40, context=12),
    LlamaConfig(vocabulary=50, layers=1, width=16, heads=4, kv_heads=2, hidden=24, context=12, tied=True, rope_theta=100.0),
]

type Values = dict[str, np.ndarray]


def some_parameters(config: LlamaConfig) -> Values:
    """Values everywhere, also where the first values are 1, so that no term of the model can be missing unseen."""
    generator = np.random.default_rng(7)
    shapes = llama.parameter_shapes(config)
    return {
        name: generator.normal(0.5 if name.endswith("norm.weight") else 0.0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def in_torch(config: LlamaConfig, values: Values | None = None) -> llama_torch.Llama:
    model = llama_torch.initial_model(config, seed=0)
    if values is not None:
        ModuleStore(model).write(values)
    return model


def in_jax(config: LlamaConfig, values: Values | None = None) -> TreeStore[llama_jax.Params]:
    store = TreeStore(llama_jax.initial_params(config, seed=0), canonical=llama_jax.canonical_names(config))
    if values is not None:
        store.write(values)
    return store


def in_transformers(config: LlamaConfig, values: Values, folder: Path) -> Any:
    """Loaded as a user does it: from a folder with config.json and model.safetensors."""
    import safetensors.numpy
    import transformers

    (folder / "config.json").write_text(json.dumps(config.to_transformers()))
    safetensors.numpy.save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def windows(config: LlamaConfig, batch: int = 4) -> np.ndarray:
    return np.random.default_rng(1).integers(0, config.vocabulary, (batch, config.context + 1)).astype(np.uint16)


@pytest.mark.parametrize("config", CONFIGS)
def test_both_frameworks_have_the_canonical_layout_and_the_first_values(config: LlamaConfig) -> None:
    torch_store, jax_store = ModuleStore(in_torch(config)), in_jax(config)
    assert torch_store.specs() == jax_store.specs()
    assert {spec.name: spec.shape for spec in jax_store.specs()} == llama.parameter_shapes(config)
    assert {spec.name for spec in jax_store.specs() if spec.embedding} == {llama.EMBEDDING}
    for store in (torch_store, jax_store):
        for name, value in store.read(list(llama.parameter_shapes(config))).items():
            np.testing.assert_array_equal(value, llama.initial_value(config, 0, name))


@pytest.mark.parametrize("config", CONFIGS)
def test_equal_parameters_give_equal_logits_and_loss_in_both_and_in_transformers(config: LlamaConfig, tmp_path: Path) -> None:
    values, rows = some_parameters(config), windows(config)
    tokens = torch.from_numpy(rows.astype(np.int64))
    model, params = in_torch(config, values), in_jax(config, values).hand_out()
    with torch.no_grad():
        reference = in_transformers(config, values, tmp_path)(tokens[:, :-1]).logits.numpy()
        np.testing.assert_allclose(model(tokens[:, :-1]).numpy(), reference, rtol=1e-5, atol=1e-5)
        loss = steps_torch.mean_loss(model, tokens).item()
    np.testing.assert_allclose(llama_jax.forward(params, jnp.asarray(rows[:, :-1]), config), reference, rtol=1e-5, atol=1e-5)
    assert loss == pytest.approx(float(llama_jax.mean_loss(params, jnp.asarray(rows), config)), rel=1e-5)


def test_a_later_token_does_not_change_an_earlier_prediction() -> None:
    config = CONFIGS[0]
    model = in_torch(config, some_parameters(config))
    rows = torch.from_numpy(windows(config)[:, :-1].astype(np.int64))
    changed = rows.clone()
    changed[:, 6] = (changed[:, 6] + 1) % config.vocabulary
    before, after = model(rows), model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6], after[:, 6])


@pytest.mark.parametrize("config", [CONFIGS[1], full(CONFIGS[0])])
def test_parts_of_a_batch_and_activations_computed_again_give_the_same_step_in_jax_in_place_of_its_arguments(
    config: LlamaConfig,
) -> None:
    rows = windows(config)
    values = some_parameters(config)
    stepped: list[Values] = []
    for micro, recompute in ((None, False), (2, True)):
        model = in_torch(config, values)
        model.recompute = recompute
        steps_torch.train_step(
            model, llama_torch.make_optimizer(model, InnerConfig()), torch.from_numpy(rows.astype(np.int64)), 1e-3, micro=micro
        )
        stepped.append(ModuleStore(model).read(list(values)))
    for micro, recompute in ((None, False), (2, True)):
        store = in_jax(config, values)
        optimizer = llama_jax.make_optimizer(config, InnerConfig())
        first = params = store.hand_out()
        step = steps_jax.make_train_step(partial(llama_jax.mean_loss, config=config, recompute=recompute), optimizer, micro)
        params, _, _ = step(params, optimizer.init(params), rows, 1e-3)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first))
        store.take_back(params)
        stepped.append(store.read(list(values)))
    # Adam's first step moves every element by about rate x sign(g). Where a gradient is nearly 0, rounding can turn the sign, so single
    # elements may differ by a step; on the whole they must not.
    for name, value in values.items():
        moved = np.abs(stepped[0][name] - value).mean()
        assert moved > 1e-4, name
        for other in stepped[1:]:
            assert np.abs(other[name] - stepped[0][name]).mean() < 0.01 * moved, name


def test_products_in_bfloat16_stay_near_those_in_float32() -> None:
    config, rows = CONFIGS[0], windows(CONFIGS[0])
    model, params = in_torch(config), in_jax(config).hand_out()
    tokens = torch.from_numpy(rows.astype(np.int64))
    wide = steps_torch.mean_loss(model, tokens).item()
    with torch.autocast("cpu", torch.bfloat16):
        half = steps_torch.mean_loss(model, tokens).item()
    # First values are small, so the loss is near ln 50 = 3.912; bfloat16 has 8 bits, and the mean of 48 losses errs less than one.
    for loss in (wide, half, float(llama_jax.mean_loss(params, jnp.asarray(rows), config, dtype=jnp.bfloat16))):
        assert loss == pytest.approx(np.log(50), abs=0.02)
    assert half != wide


@pytest.mark.parametrize(
    ("size", "parameters"), [("1m", 1e6), ("15m", 15e6), ("125m", 125e6), ("350m", 350e6), ("1b", 1e9), ("3b", 3e9), ("9b", 9e9)]
)
def test_sizes_have_about_as_many_parameters_as_they_say(size: str, parameters: float) -> None:
    config = SIZES[size]
    assert config.parameters - 2 * config.vocabulary * config.width == pytest.approx(parameters, rel=0.25)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_of_transformers_goes_both_ways(config: LlamaConfig) -> None:
    import transformers

    assert LlamaConfig.of_transformers(config.to_transformers()) == config
    assert LlamaConfig.of_transformers(json.loads(transformers.LlamaConfig(**config.to_transformers()).to_json_string())) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rotary positions are of type 'llama3'"),
        ({"head_dim": 64}, "head_dim is 64"),
        ({"hidden_size": 25}, "width 25 does not split into 3 heads"),
        ({"num_key_value_heads": 2}, "3 heads do not share 2 kv_heads"),
        ({"vocab_size": 0}, "vocabulary must be at least 1"),
    ],
)
def test_a_config_that_these_trainers_cannot_train_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LlamaConfig.of_transformers(CONFIGS[0].to_transformers() | change)


def test_a_config_without_a_field_names_it() -> None:
    config = CONFIGS[0].to_transformers()
    del config["intermediate_size"]
    with pytest.raises(ValueError, match="intermediate_size is missing"):
        LlamaConfig.of_transformers(config)


def test_the_command_prints_the_config_of_the_chosen_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert llama.main(["--size", "125m", "--vocabulary", "32000", "--tied"]) == 0
    printed = capsys.readouterr().out
    assert LlamaConfig.of_transformers(json.loads(printed)).parameters == pytest.approx(121e6 + 32000 * 768, rel=0.01)
    (tmp_path / "config.json").write_text(printed)
    assert llama.main(["--config", str(tmp_path / "config.json"), "--context", "64"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(printed) | {"max_position_embeddings": 64}


@pytest.mark.parametrize(("content", "message"), [("{", "config.json: "), ('{"model_type": "t5"}', "config.json: model_type is 't5'")])
def test_a_config_file_that_cannot_be_used_is_named(content: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(SystemExit, match="2"):
        llama.main(["--config", str(tmp_path / "config.json")])
    assert message in capsys.readouterr().err
