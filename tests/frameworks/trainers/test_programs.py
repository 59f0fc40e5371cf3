"""The trainers as programs, alone: they learn, and they learn the same."""

import contextlib
import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from diloco.trainers import byte_lm_jax, byte_lm_torch, llama_jax, llama_torch

pytestmark = pytest.mark.slow

SMALL = [
    "--alone",
    "--steps",
    "40",
    "--layers",
    "1",
    "--width",
    "16",
    "--heads",
    "2",
    "--context",
    "16",
    "--batch",
    "8",
    "--warmup",
    "5",
    "--learning-rate",
    "1e-2",
    "--threads",
    "0",
    "--corpus-bytes",
    "20000",
    "--held-out-bytes",
    "4000",
    "--log-every",
    "20",
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(60):
        (folder / f"module{number}.py").write_text("\n".join(f"def function_{n}(x):\n    return x + {n}" for n in range(20)))
    return folder


@pytest.fixture(scope="module")
def alone_in_jax(corpus: Path) -> str:
    """What the program in JAX prints when it trains alone, on one device."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert byte_lm_jax.main([*SMALL, "--corpus", str(corpus)]) == 0
    return printed.getvalue()


def test_alone_both_frameworks_learn_the_same(corpus: Path, alone_in_jax: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert byte_lm_torch.main([*SMALL, "--corpus", str(corpus)]) == 0
    losses = {}
    for framework, printed in (("torch", capsys.readouterr().out), ("jax", alone_in_jax)):
        result = json.loads(printed)
        assert (result["framework"], result["unit"], result["localSteps"], result["tokens"]) == (framework, "alone", 40, 40 * 8 * 16)
        losses[framework] = result["heldOutLoss"]
    # Before training the loss is ln 256 = 5.55; the text has some 25 different bytes, so ln 25 = 3.2 needs no context at all.
    assert losses["torch"] < math.log(25)
    assert losses["jax"] == pytest.approx(losses["torch"], rel=1e-2)


def on_devices(count: int, program: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a program in JAX on so many devices, as a process on a TPU host finds its chips."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(count)}
    return subprocess.run([sys.executable, "-m", program, *flags], env=environment, capture_output=True, text=True, check=False)


def test_in_jax_the_devices_of_a_host_share_each_batch_and_learn_what_one_learns(corpus: Path, alone_in_jax: str) -> None:
    one = json.loads(alone_in_jax)
    ran = on_devices(4, "diloco.trainers.byte_lm_jax", *SMALL, "--corpus", str(corpus))
    assert ran.returncode == 0, ran.stderr
    assert "each batch of 8 samples on 4 devices" in ran.stderr
    four = json.loads(ran.stdout)
    assert (four["localSteps"], four["tokens"]) == (one["localSteps"], one["tokens"])
    assert four["heldOutLoss"] == pytest.approx(one["heldOutLoss"], rel=1e-3)


def test_devices_that_do_not_share_a_batch_evenly_say_what_to_change(corpus: Path) -> None:
    ran = on_devices(4, "diloco.trainers.byte_lm_jax", *SMALL, "--corpus", str(corpus), "--batch", "6")
    assert ran.returncode != 0
    assert "4 devices do not share 6 samples evenly: change --batch" in ran.stderr


@pytest.fixture(scope="module")
def llama_flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A small model, and tokens of which each follows from the one before."""
    folder = tmp_path_factory.mktemp("llama")
    config = {"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16, "rms_norm_eps": 1e-5}
    (folder / "config.json").write_text(json.dumps(config))
    (np.arange(20_000) * 7 % 64).astype("<u2").tofile(folder / "tokens.bin")
    flags = ["--config", str(folder / "config.json"), "--data", str(folder / "tokens.bin"), "--held-out-tokens", "320"]
    return [*flags, "--alone", "--steps", "30", "--warmup", "5", "--learning-rate", "2e-2", "--threads", "0"]


@pytest.mark.full
def test_the_llamas_learn_the_same_on_one_device_and_on_two(llama_flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    losses = {}
    for framework, program in (("torch", llama_torch), ("jax", llama_jax)):
        assert program.main([*llama_flags, "--micro-batch", "4"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["framework"], result["unit"], result["localSteps"], result["tokens"]) == (framework, "alone", 30, 30 * 8 * 16)
        losses[framework] = result["heldOutLoss"]
    ran = on_devices(2, "diloco.trainers.llama_jax", *llama_flags)
    assert "M parameters on 2 devices" in ran.stderr
    # Before training the loss is ln 64 = 4.16.
    assert losses["torch"] < 2.0
    assert losses["jax"] == pytest.approx(losses["torch"], rel=1e-2)
    assert json.loads(ran.stdout)["heldOutLoss"] == pytest.approx(losses["jax"], rel=1e-2)


def in_two_ranks(program: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "diloco.launch", "--nproc-per-node", "2", "-m", program, *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_two_ranks_train_what_one_process_trains(corpus: Path, llama_flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each trains half of every batch, so the mean of their gradients is the gradient of the batch."""
    programs = {byte_lm_torch: [*SMALL, "--corpus", str(corpus)], llama_torch: [*llama_flags, "--micro-batch", "2"]}
    for program, flags in programs.items():
        assert program.main(flags) == 0
        one = json.loads(capsys.readouterr().out)
        ran = in_two_ranks(program.__name__, *flags)
        assert ran.returncode == 0, ran.stderr
        [line] = [line for line in ran.stdout.splitlines() if "heldOutLoss" in line]
        two = json.loads(line[line.index("{") :])
        assert (two["localSteps"], two["tokens"]) == (one["localSteps"], one["tokens"])
        assert two["heldOutLoss"] == pytest.approx(one["heldOutLoss"], rel=1e-3)


@pytest.mark.full
def test_ranks_that_do_not_share_a_batch_evenly_say_what_to_change(corpus: Path) -> None:
    ran = in_two_ranks("diloco.trainers.byte_lm_torch", *SMALL, "--corpus", str(corpus), "--batch", "7")
    assert ran.returncode != 0
    assert "2 ranks do not share 7 samples evenly: change --batch, or processesPerHost of the pool" in ran.stdout + ran.stderr
