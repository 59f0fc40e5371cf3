"""A Trainer of transformers on a small Llama, with the callback or alone, for [callback-tax].

    python -m benchmarks.trainer_learner TIMES --mebibytes 4 --step-seconds 0.05 [--alone | --bare]

TIMES gets one line for each update. An update takes the model's computing time, and `--step-seconds` more in which nothing is computed.
`--mebibytes` is the approximate size of the model. `--alone` runs the same Trainer without a session, `--bare` with a `BareExchange` in its
place.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import diloco.torch
import torch
from diloco.torch.hf import attach
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from benchmarks.bare_exchange import BareExchange
from benchmarks.fixed_step_learner import arguments, processor_times

CONTEXT, VOCABULARY, SAMPLES = 64, 1024, 4096


class Tokens(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(CONTEXT) * (index + 1)) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens}


class Exchanged(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Sends the bytes of a bare exchange after each update."""

    def __init__(self, bare: BareExchange) -> None:
        self._bare = bare

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._bare.step()


class Clock(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Notes when each update ended, after a pause that stands for a larger model."""

    def __init__(self, times: Path, seconds: float) -> None:
        self._file = times.open("w", encoding="ascii", buffering=1)
        self._seconds = seconds

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._file.write(f"{time.monotonic():.6f} {processor_times()}\n")

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        time.sleep(self._seconds)


def llama(mebibytes: int) -> LlamaForCausalLM:
    """A model of about `mebibytes` MiB of float32."""
    torch.manual_seed(0)
    width, layers = 128, max(1, round((mebibytes * (1 << 18) - 2 * VOCABULARY * 128) / 200_000))
    sizes = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, **sizes))


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    model = llama(given.mebibytes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=2, use_cpu=True, save_strategy="no", logging_strategy="no", report_to=[],
            disable_tqdm=True, num_train_epochs=1000,
        )  # fmt: skip
        trainer = Trainer(model=model, args=settings, train_dataset=Tokens(), optimizers=(optimizer, constant))
        if given.bare:
            trainer.add_callback(Exchanged(BareExchange(sum(parameter.numel() for parameter in model.parameters()))))
        if given.alone or given.bare:
            trainer.add_callback(Clock(given.times, given.step_seconds))
            trainer.train()
            return
        session = diloco.torch.join(model, optimizer=optimizer)
        attach(trainer, session)
        trainer.add_callback(Clock(given.times, given.step_seconds))  # after the session's, so that its work is in the update
        trainer.train()


if __name__ == "__main__":
    main()
