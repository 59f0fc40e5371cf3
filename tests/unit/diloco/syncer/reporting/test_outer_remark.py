from __future__ import annotations

import re
from pathlib import Path

import pytest
from builders.exchange import LocalLearner, LocalSyncer, Place, job_file, training, until
from diloco.contract import OuterOptimizer
from diloco.syncer.reporting import outer_remark as module
from diloco.syncer.reporting.outer_remark import LARGE, outer_remark


def test_a_large_model_with_the_default_is_told_what_was_measured_and_what_was_published() -> None:
    assert outer_remark(OuterOptimizer(), 1_100_000_000) == (
        "merges 1.1 B parameters with the default training.outerOptimizer, learning rate 0.6, momentum 0.3, which was measured with "
        "models of 0.1 to 0.5 M; publications of large models have a learning rate of 0.4 to 1 and a momentum of 0.9"
    )


@pytest.mark.parametrize(
    ("optimizer", "parameters"),
    [(OuterOptimizer(), LARGE), (OuterOptimizer(learning_rate=0.4, momentum=0.9), 10 * LARGE), (OuterOptimizer(momentum=0.0), 10 * LARGE)],
)
def test_a_small_model_or_other_values_need_no_remark(optimizer: OuterOptimizer, parameters: int) -> None:
    assert outer_remark(optimizer, parameters) == ""


@pytest.mark.slow
def test_report_and_result_have_the_remark_once_the_layout_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 10)  # the learner's model has some hundred parameters
    place = Place(tmp_path / "job", job_file(training(6, outer_optimizer=OuterOptimizer())))
    with LocalSyncer(place) as syncer:
        assert syncer.report().message == ""
        learner = LocalLearner(place, syncer.address, "u").start()
        until(lambda: syncer.report().message != "", "the layout is known")
        said = syncer.report().message
        learner.wait()
        syncer.wait()
    assert re.match(r"merges [0-9,]+ parameters with the default training\.outerOptimizer, ", said)
    assert place.result is not None
    assert place.result.message == said
