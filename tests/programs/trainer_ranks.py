"""A rank of a unit that trains with the Trainer of transformers or of Lightning: trainer_ranks.py hf|lightning FOLDER.

Its first line is the guide's: the ranks' process group, before join. At its end it writes what it holds into FOLDER/RANK.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from diloco.session.session import Session
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, LENGTH, BATCH, ACCUMULATION = 40, 6, 2, 2
WIDTH = 32


class Samples(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(LENGTH) + index) % WIDTH
        return {"input_ids": tokens, "labels": tokens}


def train_with_transformers(folder: Path) -> tuple[nn.Module, Session]:
    import diloco.torch.hf
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": WIDTH}
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    session = diloco.torch.join(model, optimizer=optimizer)
    args = TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATION,
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=20,
    )
    trainer = Trainer(model=model, args=args, train_dataset=Samples(), eval_dataset=Samples(), optimizers=(optimizer, None))
    diloco.torch.hf.attach(trainer, session, seed=1)
    trainer.train()
    return model, session


def train_with_lightning(folder: Path) -> tuple[nn.Module, Session]:
    import diloco.torch.lightning
    from lightning.pytorch import LightningModule, Trainer

    class Bytes(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Embedding(WIDTH, 8), nn.Linear(8, WIDTH))
            self.optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.optimizer

        def _loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch["input_ids"][:, :-1]).transpose(1, 2), batch["input_ids"][:, 1:])

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self._loss(batch)

        def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
            self.log("validation", self._loss(batch), sync_dist=True)

    module = Bytes()
    session = diloco.torch.join(module, optimizer=module.optimizer)
    loader = DataLoader(Samples(), batch_sampler=session.numbers(BATCH, samples=SAMPLES, seed=1))
    steps = diloco.torch.lightning.Steps(session, tokens=lambda batch: batch["input_ids"].numel())
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        max_epochs=-1,
        use_distributed_sampler=False,
        accumulate_grad_batches=ACCUMULATION,
        val_check_interval=20,
        check_val_every_n_epoch=None,
        callbacks=[steps],
        default_root_dir=folder,
        **quiet,
    )
    trainer.fit(module, loader, DataLoader(Samples(), batch_size=BATCH))
    return module, session


def main() -> None:
    folder, rank = Path(sys.argv[2]), os.environ["RANK"]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(int(rank))
    model, session = {"hf": train_with_transformers, "lightning": train_with_lightning}[sys.argv[1]](folder)
    held = hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())).hexdigest()
    (folder / f"{rank}.json").write_text(json.dumps({"done": session.done, "steps": session.step_count, "held": held}))
    session.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
