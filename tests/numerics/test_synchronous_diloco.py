"""The oracle: with K = M, tau = 0, P = 1 and averaging, the syncer's core is plain synchronous DiLoCo, bit for bit.

The reference below is written from the algorithm's definition and shares no code with the package: M replicas take H steps of an
inner optimizer each from the same parameters; the mean of `anchor - theta` is the outer gradient of SGD with Nesterov momentum.
"""

from typing import Any

import numpy as np
import pytest
from builders.core import InlineCore, Push
from builders.regression import BATCH, LAYOUT, Parameters, Regression
from diloco.algorithm import codec
from diloco.algorithm.effects import Broadcast, Pull
from diloco.algorithm.events import Metadata, Offer
from diloco.algorithm.fragments import pack, unpack
from diloco.contract import Grace, Merge, OuterOptimizer, Training


def synchronous_diloco(replicas: int, rounds: int, interval: int, rate: float, mu: float) -> Parameters:
    """Plain DiLoCo, the reference. Returns the parameters after all rounds."""
    learners = [Regression(m) for m in range(replicas)]
    anchor = Regression.initial()
    momentum = {name: np.zeros_like(x) for name, x in anchor.items()}
    for _ in range(rounds):
        thetas = []
        for learner in learners:
            theta = anchor
            for _ in range(interval):
                theta = learner.train(theta)
            thetas.append(theta)
        for name in anchor:
            total = anchor[name] - thetas[0][name]
            for theta in thetas[1:]:
                total = total + (anchor[name] - theta[name])
            delta = total / np.float32(replicas)
            momentum[name] = np.float32(mu) * momentum[name] + delta
            updated = anchor[name] - np.float32(rate) * (delta + np.float32(mu) * momentum[name])
            anchor = anchor | {name: updated.astype(np.float32, copy=False)}
    return anchor


def a_training(replicas: int, rounds: int, interval: int, rate: float, mu: float, **changes: Any) -> Training:
    values = {
        "steps": rounds * interval,
        "sync_interval": interval,
        "fragments": 1,
        "overlap_steps": 0,
        "quorum": replicas,
        "grace": Grace(max_steps=16, safety_factor=1.0),
        "merge": Merge(method="Average", embeddings="Average"),
        "outer_optimizer": OuterOptimizer(learning_rate=rate, momentum=mu),
        "compression": "None",
    }
    return Training(**(values | changes))


def in_lock_step(training: Training, replicas: int) -> tuple[InlineCore, dict[str, Parameters]]:
    """The core with real learners, all of which take their steps at the same times. Returns (core, learners' parameters)."""
    core = InlineCore(LAYOUT, training)
    assert core.begin([pack(f, Regression.initial()) for f in core.fragments]) is None
    learners = {f"u{m}": Regression(m) for m in range(replicas)}
    theta = {unit: Regression.initial() for unit in learners}
    steps = {unit: [0] * len(core.fragments) for unit in learners}
    held = {unit: [core.value(p) for p in range(len(core.fragments))] for unit in learners}
    for unit in learners:
        core.join(unit, 0.0)
    now = 0.0
    while not core.done:
        now += 1.0
        for unit, learner in learners.items():
            theta[unit] = learner.train(theta[unit])
            steps[unit] = [n + 1 for n in steps[unit]]
            core.progress(unit, Metadata(learner.step, tuple(steps[unit]), tuple(n * BATCH for n in steps[unit]), 1.0), now)
        actions = core.advance(now)
        while actions:
            for action in actions:
                if isinstance(action, Pull):
                    for unit in action.units:
                        n, p = steps[unit][action.fragment], action.fragment
                        value = pack(core.fragments[p], theta[unit])
                        payload = codec.encode(core.coding, value - core.value(p) if core.coding.delta else value)
                        push = Push(Offer(p, action.t, core.coding, core.version(p), n, n * BATCH), payload)
                        assert core.push(unit, push, now) is None
                if isinstance(action, Broadcast):
                    fragment = core.fragments[action.fragment]
                    for unit in learners:
                        base = held[unit][action.fragment]
                        value = held[unit][action.fragment] = codec.value_of(action.coding, bytes(action.payload), base)
                        theta[unit] = theta[unit] | unpack(fragment, value)
                        steps[unit][action.fragment] = 0
            actions = core.advance(now)
        assert now <= training.steps, "the core fell behind the learners"
    return core, theta


def parameters_of(core: InlineCore) -> Parameters:
    return {name: x for f in core.fragments for name, x in unpack(f, core.value(f.index)).items()}


@pytest.mark.parametrize(
    ("replicas", "rounds", "interval", "rate", "mu"), [(3, 12, 5, 0.7, 0.9), (4, 8, 10, 1.0, 0.6), (1, 10, 4, 0.7, 0.9)]
)
def test_core_in_lock_step_is_synchronous_diloco_bit_for_bit(replicas: int, rounds: int, interval: int, rate: float, mu: float) -> None:
    core, theta = in_lock_step(a_training(replicas, rounds, interval, rate, mu), replicas)
    expected = synchronous_diloco(replicas, rounds, interval, rate, mu)
    for name, array in parameters_of(core).items():
        assert array.tobytes() == expected[name].tobytes(), name
        assert all(held[name].tobytes() == expected[name].tobytes() for held in theta.values())
    # The oracle is worth something only if training happened.
    x, y = Regression.batch(99, 0)
    assert Regression.loss_and_gradients(expected, x, y)[0] < 0.8 * Regression.loss_and_gradients(Regression.initial(), x, y)[0]


def test_every_step_with_outer_sgd_at_rate_one_is_averaging_of_weights() -> None:
    """H = 1, lr 1, mu 0: global = anchor - mean(anchor - theta) = mean(theta), up to float32 rounding."""
    replicas, rounds = 4, 20
    core, _ = in_lock_step(a_training(replicas, rounds, 1, 1.0, 0.0), replicas)
    learners = [Regression(m) for m in range(replicas)]
    mean = Regression.initial()
    for _ in range(rounds):
        thetas = [learner.train(mean) for learner in learners]
        mean = {name: np.mean([theta[name] for theta in thetas], axis=0) for name in mean}
    for name, array in parameters_of(core).items():
        np.testing.assert_allclose(array, mean[name], rtol=1e-4, atol=1e-5)


def test_one_learner_gets_the_same_bytes_from_rda_as_from_averaging() -> None:
    rda = a_training(1, 10, 4, 0.7, 0.9, merge=Merge(method="RDA", embeddings="RDA"))
    average = a_training(1, 10, 4, 0.7, 0.9)
    assert in_lock_step(rda, 1)[0].value(0).tobytes() == in_lock_step(average, 1)[0].value(0).tobytes()


@pytest.mark.parametrize("compression", ["BFloat16", "Int4"])
def test_compression_stays_close_to_plain_diloco(compression: str) -> None:
    core, _ = in_lock_step(a_training(3, 12, 5, 0.7, 0.9, compression=compression), 3)
    expected = synchronous_diloco(3, 12, 5, 0.7, 0.9)
    initial = Regression.initial()
    travelled = np.sqrt(sum(float(((expected[n] - initial[n]) ** 2).sum()) for n in expected))
    off = np.sqrt(sum(float(((x - expected[n]) ** 2).sum()) for n, x in parameters_of(core).items()))
    # relative error of a coded delta: 2^-9 for bfloat16, at most half a level of seven for int4
    assert off < travelled * {"BFloat16": 2**-6, "Int4": 1 / 7}[compression]


def test_several_fragments_keep_every_learner_on_the_syncers_bytes() -> None:
    core, theta = in_lock_step(a_training(3, 8, 4, 0.7, 0.9, fragments=4, overlap_steps=0), 3)
    last = [core.version(p) for p in range(4)]
    assert sorted(last) == [29, 30, 31, 32]  # 32 steps, one fragment at each of the last four
    newest = core.fragments[last.index(32)]
    for held in theta.values():
        assert pack(newest, held).tobytes() == core.value(newest.index).tobytes()


def test_contributions_are_those_of_all_learners_in_every_round() -> None:
    core, _ = in_lock_step(a_training(2, 3, 2, 0.7, 0.9), 2)
    assert [core.contributions_of(u).contributions for u in ("u0", "u1")] == [3, 3]
    assert [core.contributions_of(u).share for u in ("u0", "u1")] == [0.5, 0.5]
