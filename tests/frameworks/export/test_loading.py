"""What `diloco export` writes is loaded by the frameworks as any model of theirs."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.flax
import safetensors.numpy
import safetensors.torch
import torch
from builders.snapshots import Arrays, save_snapshot
from click.testing import CliRunner
from diloco.jax import TreeStore
from diloco.torch import ModuleStore
from diloco.trainers import byte_lm_jax, byte_lm_torch
from diloco.trainers.byte_lm import ModelConfig
from diloco_cli.diloco.main import main

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "model.md"
pytestmark = pytest.mark.slow


def guide_program(framework: str, folder: Path, space: dict[str, Any]) -> Any:
    """Runs the guide's program as it stands, in `folder`; gives its variables."""
    found = re.search(rf"<!-- load: {framework} -->\n```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found
    with contextlib.chdir(folder):
        exec(found.group(1), space)
    return space


def export(folder: Path, arrays: Arrays, *options: str) -> Path:
    """The command's file, of a snapshot with these parameters."""
    save_snapshot(folder / "snapshots", 5, arrays, fragments=2)
    result = CliRunner().invoke(main, ["export", str(folder / "snapshots"), "-o", str(folder), *options])
    assert result.exit_code == 0, result.output
    return folder / "model.safetensors"


def parameters(module: torch.nn.Module) -> Arrays:
    """As the syncer has them."""
    store = ModuleStore(module)
    return store.read([spec.name for spec in store.specs()])


def in_torch(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))


# --- torch ------------------------------------------------------------------------------------------------------------
def test_torch_loads_it_by_load_state_dict(tmp_path: Path) -> None:
    trained, fresh = in_torch(1), in_torch(2)
    export(tmp_path, parameters(trained))
    guide_program("torch", tmp_path, {"model": fresh})
    x = torch.randn(4, 6)
    assert torch.equal(trained(x), fresh(x))


def test_torch_loads_a_model_with_tied_parameters_by_load_model(tmp_path: Path) -> None:
    config = ModelConfig(layers=1, width=16, heads=2, context=8, tied=True)
    trained, fresh = (byte_lm_torch.initial_model(config, seed) for seed in (1, 2))
    safetensors.torch.load_model(fresh, export(tmp_path, parameters(trained)), strict=False)
    tokens = torch.arange(8)[None]
    assert torch.equal(trained(tokens), fresh(tokens))


# --- JAX --------------------------------------------------------------------------------------------------------------
def test_jax_loads_it_as_a_tree(tmp_path: Path) -> None:
    params = {"dense": {"kernel": jax.random.normal(jax.random.key(1), (6, 3)), "bias": jnp.arange(3.0)}}
    store = TreeStore(params)
    flat = safetensors.flax.load_file(export(tmp_path, store.read(["dense/bias", "dense/kernel"])))
    loaded = guide_program("jax", tmp_path, {"params": jax.tree.map(jnp.zeros_like, params)})["params"]
    np.testing.assert_array_equal(loaded["dense"]["kernel"], params["dense"]["kernel"])
    np.testing.assert_array_equal(flat["dense/kernel"], params["dense"]["kernel"])
    np.testing.assert_array_equal(flat["dense/bias"], params["dense"]["bias"])


def test_a_model_of_both_frameworks_gives_the_same_logits_in_each(tmp_path: Path) -> None:
    config = ModelConfig(layers=2, width=16, heads=2, context=8)
    model = byte_lm_torch.initial_model(config, seed=1)
    trained = ModuleStore(model, canonical=byte_lm_torch.canonical_names(config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)
    values = safetensors.numpy.load_file(export(tmp_path, trained.read([spec.name for spec in trained.specs()])))
    in_jax = TreeStore(byte_lm_jax.initial_params(config, seed=2), canonical=byte_lm_jax.canonical_names(config))
    in_jax.write(values)
    fresh = byte_lm_torch.initial_model(config, seed=2)
    ModuleStore(fresh, canonical=byte_lm_torch.canonical_names(config)).write(values)
    tokens = np.arange(8)[None]
    logits = model(torch.from_numpy(tokens)).detach().numpy()
    np.testing.assert_array_equal(fresh(torch.from_numpy(tokens)).detach().numpy(), logits)
    np.testing.assert_allclose(byte_lm_jax.forward(in_jax.hand_out(), jnp.asarray(tokens), config.heads), logits, atol=1e-4)


# --- transformers -----------------------------------------------------------------------------------------------------
def a_causal_lm(kind: str) -> Any:
    """A tiny model as a user makes one: Llama has a head of its own, that of GPT-2 is tied to the embedding."""
    import transformers

    torch.manual_seed(1)
    config = (
        transformers.LlamaConfig(
            vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
        )
        if kind == "llama"
        else transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    )
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_transformers_loads_it_by_from_pretrained(tmp_path: Path, kind: str) -> None:
    import transformers

    trained = a_causal_lm(kind)
    export(tmp_path, parameters(trained))
    trained.config.save_pretrained(tmp_path)
    _, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    loaded = guide_program("transformers", tmp_path, {"folder": tmp_path})["model"]
    tokens = torch.arange(10)[None]
    assert torch.equal(loaded.eval()(tokens).logits, trained(tokens).logits)


def test_transformers_loads_bfloat16(tmp_path: Path) -> None:
    import transformers

    trained = a_causal_lm("llama")
    export(tmp_path, parameters(trained), "--dtype", "bfloat16")
    trained.config.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    halved = trained.to(torch.bfloat16)
    for (name, one), (_, other) in zip(loaded.named_parameters(), halved.named_parameters(), strict=True):
        assert torch.equal(one, other), name


# --- PEFT -------------------------------------------------------------------------------------------------------------
def test_peft_loads_an_adapter_from_its_own_folder(tmp_path: Path) -> None:
    import peft

    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trained = peft.get_peft_model(a_causal_lm("llama"), config)
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if "lora_B" in name:  # begins at zero, where an adapter changes nothing
                parameter.add_(torch.randn_like(parameter))
    arrays = parameters(trained)
    assert len(arrays) == 8, "A and B of two projections in each of two layers"
    export(tmp_path, arrays)
    guide_program("peft", tmp_path, {"base": a_causal_lm("llama"), "config": config})
    loaded = peft.PeftModel.from_pretrained(a_causal_lm("llama"), tmp_path / "adapter")
    tokens = torch.arange(10)[None]
    assert torch.equal(loaded(tokens).logits, trained.eval()(tokens).logits)
    assert not torch.equal(loaded(tokens).logits, a_causal_lm("llama")(tokens).logits)
