"""Trials of the law of learning, trained for a few steps."""

import json
from dataclasses import replace

import pytest
import torch
from diloco.trainers.steps_torch import held_out_loss

from benchmarks.law import trials
from benchmarks.law.corpus import read_corpus
from benchmarks.law.tapes import TapeTrial, outer_steps, trained_under
from benchmarks.law.train import Replica, trained
from benchmarks.law.trials import SIZES, Arm, Rates, Trial

UNDER_TAPE = TapeTrial("smoke", "spread", units=4, quorum=1, grace=1.0, interval=5, rates=Rates(), seed=3, warmup=2)


def test_one_unit_that_exchanges_each_step_at_the_rate_1_trains_as_data_parallel_does() -> None:
    alone = trained(Trial("smoke", Arm(0), Rates(), seed=3))
    of_job = trained(Trial("smoke", Arm(1, interval=1, compression="None"), Rates(tenths=10, momentum_tenths=0), seed=3))
    assert of_job == pytest.approx(alone, rel=1e-5)


def test_one_unit_with_one_fragment_trains_as_a_loop_with_torchs_nesterov_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "FRAGMENTS", 1)
    trial = Trial("smoke", Arm(1, interval=5, compression="None"), Rates(tenths=6, momentum_tenths=9), seed=3)
    size = SIZES["smoke"]
    corpus = read_corpus(context=size.context, seed=3, tokens=size.tokens, held_out=size.held_out)
    replica = Replica(trial, corpus, 0, 1)
    parameters = list(replica.model.parameters())
    outer = [one.detach().clone() for one in parameters]
    optimizer = torch.optim.SGD(outer, lr=0.6, momentum=0.9, nesterov=True)
    for replica.step in range(1, trial.steps + 1):
        replica.train_once()
        if replica.step % 5 == 0:
            for one, parameter in zip(outer, parameters, strict=True):
                one.grad = one - parameter.detach()
            optimizer.step()
            with torch.no_grad():
                for one, parameter in zip(outer, parameters, strict=True):
                    parameter.copy_(one)
    assert trained(trial) == pytest.approx(held_out_loss(replica.model, corpus), rel=1e-5)


def test_equal_trials_have_equal_losses_and_another_seed_has_another() -> None:
    losses = [trained(Trial("smoke", Arm(2, interval=5), Rates(), seed)) for seed in (3, 3, 4)]
    assert losses[0] == losses[1] != losses[2]


def test_a_trial_under_a_tape_reads_back_from_its_line() -> None:
    assert TapeTrial.from_json(json.loads(json.dumps(UNDER_TAPE.as_json()))) == UNDER_TAPE


@pytest.mark.parametrize("quorum", [1, 4])
def test_trials_under_a_tape_merge_the_tokens_of_their_size_whatever_the_quorum(quorum: int) -> None:
    trial = replace(UNDER_TAPE, quorum=quorum)
    outcome = trained_under(trial)
    # What comes into the last merges, and what is under way at the end, is less than the tokens of one round of all units.
    of_a_round = trial.units * trial.rows * SIZES["smoke"].context * trial.interval
    assert outcome["outerSteps"] == outer_steps(trial)
    assert float(outcome["mergedTokens"]) == pytest.approx(SIZES["smoke"].tokens, abs=of_a_round)


def test_replicas_whose_parameters_come_from_a_device_one_by_one_train_the_same_model() -> None:
    # "cpu:0" is the CPU under a name that replicas do not take for it: they read and write as on a GPU.
    trial = Trial("smoke", Arm(2, interval=5), Rates(), seed=3)
    assert trained(trial, "cpu:0") == trained(trial)
