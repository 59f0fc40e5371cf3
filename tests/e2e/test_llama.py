"""A job whose units train the Llama-type decoder, torch and JAX side by side, on a user's own text and tokenizer: from files to a
checkpoint that transformers loads."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import yaml
from builders.jobs import JobBuilder, Obj, gpu_pool, template, tpu_pool
from builders.local_jobs import a_fleet

DILOCO = Path(sys.executable).parent / "diloco"
SHAPE = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}


def a_text_and_its_tokenizer(folder: Path) -> int:
    """play.txt and tokenizer.json in `folder`; the size of the vocabulary."""
    words = ["".join(pair) for pair in itertools.product("bdfgklmn", ("ada", "ebe", "ili", "oro"))]
    text = "".join(f"{word} " for word in np.random.default_rng(0).choice(words, 20_000))
    (folder / "play.txt").write_text(text)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([text], tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    made.save(str(folder / "tokenizer.json"))
    return int(made.get_vocab_size())


def a_job(folder: Path, steps: int) -> Obj:
    """One torch and one JAX unit."""
    data = ["--config", folder / "config.json", "--data", folder / "play.txt", "--tokenizer", folder / "tokenizer.json"]
    flags = [str(each) for each in (*data, "--cache", folder / "cache", "--held-out-tokens", 512, "--learning-rate", 1e-2, "--warmup", 5)]
    programs = {kind: template(command=["python", "-m", f"diloco.trainers.llama_{kind}", *flags]) for kind in ("jax", "torch")}
    return (
        JobBuilder("tales")
        .with_learners(2, 2)
        .with_pools(
            tpu_pool(topology="2x2x1", max=1, template=programs["jax"]),
            gpu_pool(hosts=1, acceleratorsPerHost=8, max=1, template=programs["torch"]),
        )
        .with_training(
            # Without momentum: on a busy machine one unit trains hundreds of steps before the other has compiled, and its first
            # contribution would be carried far beyond what it found.
            steps=steps,
            syncInterval=8,
            fragments=8,
            overlapSteps=2,
            quorum=2,
            outerOptimizer={"learningRate": 0.7, "momentum": 0.0},
        )
        .build()
    )


@pytest.mark.full
@pytest.mark.timeout(1800)  # beside other work it takes several times its usual 40 s
def test_torch_and_jax_train_a_llama_on_text_and_transformers_loads_the_checkpoint(tmp_path: Path) -> None:
    vocabulary = a_text_and_its_tokenizer(tmp_path)
    config = {"model_type": "llama", "vocab_size": vocabulary, "max_position_embeddings": 32, "rms_norm_eps": 1e-6, **SHAPE}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump(a_job(tmp_path, steps=48)))
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump_all(a_fleet(tpus=1, gpus=1)))

    command = [str(DILOCO), "up", "jobs.yaml", "--fleet", "fleet.yaml", "--state-dir", "state", "-o", "json", "--timeout", "1500s"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    job = json.loads(ran.stdout.splitlines()[-1])["jobs"][0]
    assert ran.returncode == 0, job
    assert {unit["name"]: unit["tokens"] > 0 for unit in job["units"]} == {"v5p-0": True, "h100-0": True}
    # Each of the 32 words is as likely as any other: ln 32 = 3.47 nats a word, which is one token or more. A uniform guess costs
    # ln 300 = 5.70 a token.
    held_out = job["progress"]["heldOutLoss"]
    assert held_out < 4.5

    subprocess.run([str(DILOCO), "export", "state", "-o", str(tmp_path)], cwd=tmp_path, capture_output=True, check=True)
    printed = subprocess.run(
        [sys.executable, "-m", "diloco.trainers.llama", "--config", "config.json"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    (tmp_path / "config.json").write_text(printed.stdout)
    # These programs are needed here alone: who collects this file need not pay for them.
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    text = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(
        (tmp_path / "play.txt").read_text(), add_special_tokens=False
    )
    tokens = torch.tensor(text.ids[-513:])
    windows = torch.stack([tokens[start : start + 33] for start in range(0, 512, 32)])
    with torch.no_grad():
        logits = model(windows[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()
    assert loss == pytest.approx(held_out, abs=1e-3), "it is the model that the units evaluated"
