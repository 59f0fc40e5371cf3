"""The trainers as programs, alone: they learn, and they learn the same."""

import json
import math
from pathlib import Path

import pytest
from diloco.trainers import byte_lm_jax, byte_lm_torch

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


def test_alone_both_frameworks_learn_the_same(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = {}
    for framework, program in (("torch", byte_lm_torch), ("jax", byte_lm_jax)):
        assert program.main([*SMALL, "--corpus", str(corpus)]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["framework"], result["unit"], result["localSteps"], result["tokens"]) == (framework, "alone", 40, 40 * 8 * 16)
        losses[framework] = result["heldOutLoss"]
    # Before training the loss is ln 256 = 5.55; the text has some 25 different bytes, so ln 25 = 3.2 needs no context at all.
    assert losses["torch"] < math.log(25)
    assert losses["jax"] == pytest.approx(losses["torch"], rel=1e-2)
