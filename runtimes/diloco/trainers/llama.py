"""The Llama-type decoder of both frameworks' trainers: its shape, names and first values, in numpy.

Rotary positions, RMS norms, grouped-query attention and a gated feed-forward block (SwiGLU), without biases. Names and shapes of the
canonical tensors are those of `transformers.LlamaForCausalLM`, and so are the results: an exported model is a transformers checkpoint.
`python -m diloco.trainers.llama --size 125m --vocabulary 32000` prints the `config.json` that goes with it.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

EMBEDDING = "model.embed_tokens.weight"
"""The canonical tensor that the merge treats as an embedding. A head that is not tied is an output matrix and no embedding."""
HEAD = "lm_head.weight"
_DEVIATION = 0.02
"""Standard deviation of the first values of all matrices: `initializer_range` of transformers."""


@dataclass(frozen=True)
class LlamaConfig:
    """Shape of the model. The default has 0.85 M parameters with bytes as tokens."""

    vocabulary: int = 256
    layers: int = 4
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    """Heads of keys and values; `heads / kv_heads` heads of queries share one."""
    hidden: int = 384
    """Width of the feed-forward block."""
    context: int = 256
    """Longest sequence, in tokens."""
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    tied: bool = False
    """The output head is the transposed embedding."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "layers", "width", "heads", "kv_heads", "hidden", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(f"width {self.width} does not split into {self.heads} heads of even width")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not share {self.kv_heads} kv_heads evenly")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """The number of parameters. A tied head does not count beside the embedding."""
        return sum(math.prod(shape) for shape in parameter_shapes(self).values())

    @classmethod
    def of_transformers(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Read the content of a `config.json` of transformers. Raises ValueError for a model that is no such decoder."""
        if (kind := config.get("model_type")) != "llama":
            raise ValueError(f"model_type is {kind!r}, and these trainers train 'llama' only")
        for name, plain in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
            if config.get(name, plain) != plain:
                raise ValueError(f"{name} is {config[name]!r}, and these trainers have {plain!r} only")
        # transformers 5 keeps both in rope_parameters; before, they were rope_theta and rope_scaling.
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if (rope_type := rope.get("rope_type", rope.get("type", "default"))) != "default":
            raise ValueError(f"the rotary positions are of type {rope_type!r}, and these trainers have 'default' only")
        try:
            model = cls(
                vocabulary=config["vocab_size"],
                layers=config["num_hidden_layers"],
                width=config["hidden_size"],
                heads=config["num_attention_heads"],
                kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
                hidden=config["intermediate_size"],
                context=config["max_position_embeddings"],
                rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
                norm_epsilon=config["rms_norm_eps"],
                tied=config.get("tie_word_embeddings", False),
            )
        except KeyError as error:
            raise ValueError(f"{error.args[0]} is missing") from error
        if config.get("head_dim") not in (None, model.head_width):
            raise ValueError(
                f"head_dim is {config['head_dim']}, and these trainers have hidden_size / num_attention_heads = {model.head_width}"
            )
        return model

    def to_transformers(self) -> dict[str, Any]:
        """The content of the `config.json` that transformers needs to load an exported model."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "num_hidden_layers": self.layers,
            "hidden_size": self.width,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_width,
            "intermediate_size": self.hidden,
            "max_position_embeddings": self.context,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.norm_epsilon,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            "attention_bias": False,
            "mlp_bias": False,
            "initializer_range": _DEVIATION,
            "bos_token_id": None,
            "eos_token_id": None,
        }


SIZES: dict[str, LlamaConfig] = {
    "1m": LlamaConfig(),
    "15m": LlamaConfig(layers=10, width=384, heads=6, kv_heads=2, hidden=1024, context=512),
    "125m": LlamaConfig(layers=14, width=768, heads=12, kv_heads=4, hidden=3072, context=1024),
    "350m": LlamaConfig(layers=24, width=1024, heads=16, kv_heads=4, hidden=3584, context=2048),
    "1b": LlamaConfig(layers=16, width=2048, heads=32, kv_heads=8, hidden=8192, context=4096, rope_theta=500_000.0),
    "3b": LlamaConfig(layers=28, width=3072, heads=24, kv_heads=8, hidden=8192, context=4096, rope_theta=500_000.0),
    "9b": LlamaConfig(layers=40, width=4096, heads=32, kv_heads=8, hidden=14336, context=4096, rope_theta=500_000.0),
}
"""Models by size. The name says about how many parameters there are without embedding and head, whose size the vocabulary decides."""


def parameter_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name and shape of every tensor. Matrices are [out, in]."""
    width, keys = config.width, config.kv_heads * config.head_width
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocabulary, width)}
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (width,),
            f"{prefix}self_attn.q_proj.weight": (width, width),
            f"{prefix}self_attn.k_proj.weight": (keys, width),
            f"{prefix}self_attn.v_proj.weight": (keys, width),
            f"{prefix}self_attn.o_proj.weight": (width, width),
            f"{prefix}post_attention_layernorm.weight": (width,),
            f"{prefix}mlp.gate_proj.weight": (config.hidden, width),
            f"{prefix}mlp.up_proj.weight": (config.hidden, width),
            f"{prefix}mlp.down_proj.weight": (width, config.hidden),
        }
    shapes["model.norm.weight"] = (width,)
    if not config.tied:
        shapes[HEAD] = (config.vocabulary, width)
    return shapes


def is_decayed(name: str) -> bool:
    """Whether weight decay acts on the tensor: only on matrices, not on the embedding and the norms."""
    return name != EMBEDDING and not name.endswith("norm.weight")


def initial_value(config: LlamaConfig, seed: int, name: str) -> NDArray[np.float32]:
    """The first value of one tensor, float32 in canonical shape. It depends on the arguments alone, so that a large model can be made
    tensor by tensor.

    Norms are 1, matrices N(0, 0.02). Matrices that write to the residual stream are smaller by sqrt(2 layers), so that its variance does
    not grow with depth (GPT-2's rule). Raises KeyError for a name that the model does not have.
    """
    shapes = parameter_shapes(config)
    shape = shapes[name]
    if name.endswith("norm.weight"):
        return np.ones(shape, np.float32)
    deviation = _DEVIATION
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        deviation /= math.sqrt(2.0 * config.layers)
    # Philox takes two 64-bit words as its key: the seed, and the tensor's place in the layout.
    generator = np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, list(shapes).index(name)], np.uint64)))
    return generator.standard_normal(shape, dtype=np.float32) * np.float32(deviation)


def rope_tables(config: LlamaConfig, length: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return (cosines, sines) of the rotary positions 0..length-1, float32 [length, head width / 2] each.

    Element i of a head is rotated with element i + head width / 2 by the angle `position * theta^(-2 i / head width)`, as in transformers.
    """
    frequencies = config.rope_theta ** (-np.arange(0, config.head_width, 2, dtype=np.float64) / config.head_width)
    angles = np.arange(length, dtype=np.float64)[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `chosen_model` reads."""
    group = parser.add_argument_group("model", "the same for every learner of a job")
    group.add_argument("--config", type=Path, default=None, help="config.json of a Llama of transformers, instead of --size")
    group.add_argument("--size", choices=list(SIZES), default="1m", help="parameters without the embedding and the head")
    group.add_argument("--vocabulary", type=int, default=None, help="tokens that the model knows; default: 256, or --config's")
    group.add_argument("--context", type=int, default=None, help="tokens per sample; default: of --size or --config")
    group.add_argument("--tied", action="store_true", help="the output head is the transposed embedding")


def chosen_model(given: argparse.Namespace) -> LlamaConfig:
    """Return the model that the flags choose. Raises ValueError with the reason, and OSError if the file of --config cannot be read."""
    config = SIZES[given.size]
    if given.config is not None:
        try:
            config = LlamaConfig.of_transformers(json.loads(given.config.read_text()))
        except ValueError as error:
            raise ValueError(f"{given.config}: {error}") from error
    chosen = {name: value for name in ("vocabulary", "context") if (value := getattr(given, name)) is not None}
    return replace(config, tied=config.tied or given.tied, **chosen)


def main(argv: list[str]) -> int:
    """Print the `config.json` of the model that the flags choose."""
    parser = argparse.ArgumentParser(
        prog="python -m diloco.trainers.llama", description="Print the config.json with which transformers loads an exported model."
    )
    add_model_flags(parser)
    try:
        config = chosen_model(parser.parse_args(argv))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    sys.stdout.write(json.dumps(config.to_transformers(), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
