"""transformers' own Trainer, and a loop with accelerate, as the program of a unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import diloco.torch
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from builders.exchange import LocalSyncer, Place, connection_of, job_file, training, until
from builders.scripted_connection import ScriptedSession
from diloco.learner.leave import Leave, LoopError
from diloco.torch.hf import attach, labelled_tokens
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

pytestmark = pytest.mark.slow

SAMPLES = 20
LENGTH = 6
PADDING = 2
"""Tokens of each sample without a label."""
BATCH = 2
ACCUMULATION = 3


class Samples(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + LENGTH)
        labels = tokens.clone()
        labels[-PADDING:] = -100
        return {"input_ids": tokens, "labels": labels}


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}
    return LlamaForCausalLM(LlamaConfig(**sizes))


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATION,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **{"logging_steps": 5, "save_strategy": "no", **more},
    )


def test_a_trainer_trains_on_leased_samples_until_the_job_is_done(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(40)))
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    with LocalSyncer(place) as syncer:
        with diloco.torch.join(net, optimizer=optimizer, environment=place.of_learner(syncer.address, "a")) as session:
            rate = diloco.torch.schedule(optimizer, session, "constant")
            trainer = Trainer(model=net, args=arguments(tmp_path / "out"), train_dataset=Samples(), optimizers=(optimizer, rate))
            attach(trainer, session)
            trainer.train()
            unit = syncer.unit("a")
            ledger = syncer.call(syncer.syncer.engine.work.ledger.summary)
        assert session.done
        final = connection_of(session).received()
    assert unit is not None
    assert 0 < unit.loss < 2 * np.log(32), "it reports what the Trainer logs"
    assert unit.tokens == unit.steps * ACCUMULATION * BATCH * (LENGTH - PADDING) > 0
    assert ledger.units["a"].samples == ledger.units["a"].steps * ACCUMULATION * BATCH
    assert final is not None
    held = np.sort(np.concatenate([parameter.detach().numpy().ravel() for parameter in net.parameters()]))
    assert np.array_equal(held, np.sort(np.concatenate(final))), "the final parameters are the job's"


def test_the_trainers_own_schedule_and_its_epochs_follow_the_job(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(40)))
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    args = arguments(tmp_path / "out", lr_scheduler_type="cosine", warmup_steps=0.05, logging_steps=1)
    with (
        LocalSyncer(place) as syncer,
        diloco.torch.join(net, optimizer=optimizer, environment=place.of_learner(syncer.address, "a")) as session,
    ):
        trainer = Trainer(model=net, args=args, train_dataset=Samples(), optimizers=(optimizer, None))
        attach(trainer, session)
        trainer.train()
        settled = session.step_count * ACCUMULATION * BATCH
    assert session.done
    logged = [entry for entry in trainer.state.log_history if "learning_rate" in entry]
    assert logged[0]["learning_rate"] == 0.0, "transformers begins a warm-up at 0"
    assert max(entry["learning_rate"] for entry in logged) > 0.5e-2
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)
    # The only unit trains the samples in order, so that its epochs are the job's.
    assert trainer.state.epoch == pytest.approx(settled / SAMPLES, abs=2 * ACCUMULATION * BATCH / SAMPLES)


def test_the_syncer_knows_of_evaluations_while_they_last(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(40)))
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    # At each step it logs, as by default: the loss of the training stays in status.
    args = arguments(tmp_path / "out", eval_strategy="steps", eval_steps=10, logging_steps=10)
    seen: list[str] = []
    with LocalSyncer(place) as syncer:

        class HeldOut(Samples):
            def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
                seen.append(until(lambda: (unit := syncer.unit("a")) and unit.pause, "the report of a pause"))
                return super().__getitem__(index)

        with diloco.torch.join(net, optimizer=optimizer, environment=place.of_learner(syncer.address, "a")) as session:
            pair = (optimizer, None)
            trainer = Trainer(model=net, args=args, train_dataset=Samples(), eval_dataset=HeldOut(), optimizers=pair)
            attach(trainer, session)
            trainer.train()
            until(lambda: (unit := syncer.unit("a")) and not unit.pause, "the end of the last pause")
            assert 0 < syncer.unit("a").loss < 2 * np.log(32)
    assert set(seen) == {"evaluation"}


def test_saves_and_predictions_are_pauses_as_long_as_the_program_says(tmp_path: Path) -> None:
    learner, net = ScriptedSession().join(), model()

    def tokens(batch: Mapping[str, Any]) -> int:
        if learner.session.step_count == 1:
            learner.member.drain()
        return labelled_tokens(batch)

    pair = (torch.optim.AdamW(net.parameters()), None)
    args = arguments(tmp_path / "out", save_strategy="steps", save_steps=1)
    trainer = Trainer(model=net, args=args, train_dataset=Samples(), optimizers=pair)
    attach(trainer, learner.session, tokens=tokens, longest_pause=600)
    trainer.train()
    assert ("checkpoint", 600) in learner.connection.pauses
    trainer.predict(Samples())
    assert learner.connection.pauses[-2:] == [("prediction", 600), ("", 0.0)]
    with pytest.raises(Leave):
        learner.session.close()
    told = len(learner.connection.pauses)
    trainer.save_model(str(tmp_path / "final"))
    assert len(learner.connection.pauses) == told, "once the session is closed there is no one to tell"


def test_a_drain_in_the_middle_of_an_update_ends_the_training(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(1_000_000)))
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    with LocalSyncer(place) as syncer:
        session = diloco.torch.join(net, optimizer=optimizer, environment=place.of_learner(syncer.address, "a"))
        trainer = Trainer(model=net, args=arguments(tmp_path / "out"), train_dataset=Samples(), optimizers=(optimizer, None))
        counted: list[int] = []

        def tokens(batch: Mapping[str, Any]) -> int:
            counted.append(labelled_tokens(batch))
            if len(counted) == 3 * ACCUMULATION + 1:
                session._drain(15, None)
            return counted[-1]

        attach(trainer, session, tokens=tokens)
        trainer.train()
        assert (session.step_count, len(counted)) == (3, 3 * ACCUMULATION + 1)
        with pytest.raises(Leave):
            session.close()


def test_a_trainer_that_resumes_from_its_own_checkpoint_in_a_job_ends(tmp_path: Path) -> None:
    before = model()
    args = arguments(tmp_path / "out", max_steps=1, save_steps=1, save_strategy="steps")
    Trainer(model=before, args=args, train_dataset=Samples(), optimizers=(torch.optim.AdamW(before.parameters()), None)).train()
    place = Place(tmp_path, job_file(training(1000)))
    net = model()
    pair = (torch.optim.AdamW(net.parameters()), None)
    with (
        LocalSyncer(place) as syncer,
        diloco.torch.join(net, optimizer=pair[0], environment=place.of_learner(syncer.address, "a")) as session,
    ):
        trainer = Trainer(model=net, args=arguments(tmp_path / "out"), train_dataset=Samples(), optimizers=pair)
        attach(trainer, session)
        with pytest.raises(LoopError, match=r"loads a state into its optimizer .*Trainer\.train\(resume_from_checkpoint=…\)"):
            trainer.train(resume_from_checkpoint=True)


def test_what_cannot_be_leased_or_would_end_by_itself_is_refused(tmp_path: Path) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(9))

    session = ScriptedSession().join().session
    with pytest.raises(ValueError, match=r"max_steps=7 would end this unit, not the job"):
        attach(Trainer(model=model(), args=arguments(tmp_path, max_steps=7), train_dataset=Samples()), session)
    with pytest.raises(ValueError, match=r"max_steps has to be specified"):  # transformers' own words, which lead to the next ones
        Trainer(model=model(), args=arguments(tmp_path), train_dataset=Stream())
    with pytest.raises(TypeError, match=r"a stream cannot be leased by index, also with max_steps.*session\.shards"):
        attach(Trainer(model=model(), args=arguments(tmp_path, max_steps=7), train_dataset=Stream()), session)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            {"eval_strategy": "steps", "save_strategy": "steps", "load_best_model_at_end": True},
            r"load_best_model_at_end would put a checkpoint of this unit in the place of the job's final parameters",
        ),
        ({"eval_strategy": "epoch"}, r"eval_strategy='epoch' would wait for the end of the job.*eval_strategy='steps' and eval_steps=N"),
        ({"logging_strategy": "epoch"}, r"logging_strategy='epoch' would wait"),
        ({"auto_find_batch_size": True}, r"auto_find_batch_size would train the same batches again.*per_device_train_batch_size"),
        ({"save_strategy": "steps", "save_steps": 0.1}, r"save_steps=0.1 is a share of this unit's updates"),
        (
            {"eval_strategy": "steps", "lr_scheduler_type": "reduce_lr_on_plateau"},
            r"(?s)'reduce_lr_on_plateau' follows.*diloco.torch.schedule\(",
        ),
    ],
)
def test_arguments_that_mean_something_else_in_a_job_are_refused(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    net = model()
    pair = (torch.optim.AdamW(net.parameters()), None)
    trainer = Trainer(model=net, args=arguments(tmp_path, **more), train_dataset=Samples(), eval_dataset=Samples(), optimizers=pair)
    with pytest.raises(ValueError, match=why):
        attach(trainer, ScriptedSession().join().session)


def test_sharding_after_the_join_is_refused(tmp_path: Path) -> None:
    trainer = Trainer(model=model(), args=arguments(tmp_path), train_dataset=Samples())
    trainer.args.fsdp = True  # The Trainer itself refuses it at its construction outside of ranks.
    with pytest.raises(ValueError, match=r"fsdp would shard the model after it has joined.*fully_shard before join"):
        attach(trainer, ScriptedSession().join().session)


def test_a_trainer_that_would_make_its_own_optimizer_or_schedule_is_refused(tmp_path: Path) -> None:
    class OwnSchedule(Trainer):  # type: ignore[misc]
        def create_scheduler(self, num_training_steps: int, optimizer: object = None) -> Any:
            raise AssertionError("it is never asked")

    net, session = model(), ScriptedSession().join().session
    given = {"model": net, "args": arguments(tmp_path), "train_dataset": Samples()}
    with pytest.raises(ValueError, match=r"an optimizer that has not joined"):
        attach(Trainer(**given), session)
    with pytest.raises(ValueError, match=r"create_scheduler would count the steps of this unit"):
        attach(OwnSchedule(**given, optimizers=(torch.optim.AdamW(net.parameters()), None)), session)


def test_tokens_are_those_with_a_label_else_those_that_are_no_padding() -> None:
    tokens = torch.ones(2, 5, dtype=torch.int64)
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
    labels = torch.tensor([[-100, 1, -100, -100, -100], [-100, 1, 1, 1, -100]])
    assert labelled_tokens({"input_ids": tokens, "attention_mask": mask, "labels": labels}) == 4
    assert labelled_tokens({"input_ids": tokens, "attention_mask": mask}) == 6
    assert labelled_tokens({"input_ids": tokens}) == 10
    with pytest.raises(ValueError, match=r"a batch with 'pixels' has no tokens to count"):
        labelled_tokens({"pixels": torch.ones(3)})


def test_a_loop_with_accelerate_accumulates_over_a_loader_that_is_one_batch_ahead(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(40)))
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION)
    net = model()
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
    with (
        LocalSyncer(place) as syncer,
        diloco.torch.join(net, optimizer=optimizer, environment=place.of_learner(syncer.address, "a")) as session,
    ):
        loader = accelerator.prepare(DataLoader(Samples(), batch_sampler=session.numbers(BATCH, samples=SAMPLES)))
        held: list[int] = []
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
            held.append(labelled_tokens(batch))
            if accelerator.sync_gradients:
                session.step(tokens=sum(held), batches=len(held))
                held.clear()
            if session.over:
                break
        unit = syncer.unit("a")
    assert session.done
    assert unit is not None
    assert unit.tokens == unit.steps * ACCUMULATION * BATCH * (LENGTH - PADDING) > 0
