"""Units of several ranks in a job, as real processes."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.exchange import Place, Processes, job_file, training
from builders.exploration import full
from builders.rank_units import RankUnit
from diloco.contract import ENDED_BY_PROGRAM, ENV_LEADER_ADDRESS, Exit
from diloco.protocol.diloco_pb2 import UnitReport

pytestmark = pytest.mark.slow


@pytest.fixture(params=["None", full("Int4")])
def compression(request: pytest.FixtureRequest) -> str:
    return str(request.param)


type Jobs = Callable[..., Processes]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """Makes the test's job, of so many outer steps; its processes end with the test."""
    made: list[Processes] = []

    def make(steps: int, **changes: Any) -> Processes:
        made.append(Processes(Place(tmp_path, job_file(training(steps, sync_interval=4, **changes)))))
        return made[-1]

    yield make
    for job in made:
        job.end()


@pytest.fixture
def job(jobs: Jobs) -> Processes:
    """One that does not end by itself."""
    return jobs(100_000)


def tokens_of_a_step(job: Processes) -> float:
    """Return the tokens of a step of the job's only unit, in what was committed."""
    [unit] = job.report(lambda report: [each.tokens > 0 for each in report.units] == [True], "something is committed").units
    return unit.tokens / unit.steps


def in_lockstep(unit: RankUnit) -> list[list[list[str]]]:
    """What all ranks adopted after each local step; they must agree as far as all have come."""
    traces = [unit.of(rank) for rank in range(unit.ranks)]
    common = min(map(len, traces))
    found = [[line["adopted"] for line in trace[:common]] for trace in traces]
    assert all(one == found[0] for one in found), "all ranks adopt the same at the same steps"
    assert [[line["t"] for line in trace[:common]] for trace in traces] == [[line["t"] for line in traces[0][:common]]] * unit.ranks
    return found[0]


@pytest.mark.parametrize("counts", [(1, 4), full((1, 2, 4))], ids=str)
def test_units_of_any_number_of_ranks_end_with_the_same_bytes(jobs: Jobs, compression: str, counts: tuple[int, ...]) -> None:
    job = jobs(20, quorum=len(counts), compression=compression)
    syncer = job.syncer()
    units = [RankUnit(job, f"of-{ranks}", ranks).start(RANKS_BATCH=str(8 // ranks)) for ranks in counts]
    assert [unit.wait() for unit in units] == [[0] * ranks for ranks in counts]
    assert syncer.wait() == 0
    first = units[0].final()
    assert all(unit.final() == first for unit in units)
    for unit in units:
        assert any(in_lockstep(unit)), "something was adopted"
        trained = [number for line in unit.trace for number in line["numbers"]]
        assert len(trained) == len(set(trained)), "no two ranks train the same sample"
    result = job.place.result
    assert result is not None
    assert (result.step, result.held_out_loss) == (20, 0.25)


@pytest.mark.parametrize(
    ("environment", "of_a_rank", "of_all"),
    [({"RANKS_BATCHES": "3"}, 6, 12), ({"RANKS_SAME": "1"}, 2, 2)],
    ids=["several batches a step", "ranks that train the same samples"],
)
def test_a_step_counts_each_sample_that_the_ranks_train_once(
    job: Processes, environment: dict[str, str], of_a_rank: int, of_all: int
) -> None:
    job.syncer()
    unit = RankUnit(job, "u", 2).start(**environment)
    assert tokens_of_a_step(job) == 16 * of_all, "a sample has 16 tokens"
    drawn = [line["numbers"] for [line] in unit.first_steps(1)]
    assert ([len(numbers) for numbers in drawn], len(set().union(*drawn))) == ([of_a_rank] * 2, of_all)


@pytest.mark.full
def test_a_unit_that_takes_the_jobs_parameters_meets_in_the_collective_of_each_adoption(jobs: Jobs, tmp_path: Path) -> None:
    """Its first adoptions are carried out at the boundary at which the leader orders them: the others must hear of them before it waits."""
    job = jobs(20, quorum=2)
    job.syncer()
    first = RankUnit(job, "first", 1).start()
    job.report(lambda report: report.seeded, "the job has parameters")
    fills = tmp_path / "fills"
    fills.mkdir()
    unit = RankUnit(job, "u", 2).start(RANKS_FILLS=str(fills))
    assert unit.wait() == [0, 0]
    assert first.wait() == [0]
    assert unit.final() == first.final()


def test_a_rank_whose_part_of_the_model_was_changed_at_the_end_ends_with_an_error_that_names_it(jobs: Jobs) -> None:
    job = jobs(20)
    syncer = job.syncer()
    unit = RankUnit(job, "u", 2).start(RANKS_CHANGES_MODEL="1")
    assert unit.wait() == [0, Exit.CRASHED]
    assert syncer.wait() == 0
    assert "no longer holds its final parameters: layer changed after the last step" in unit.programs[1].text


@pytest.mark.full
def test_each_rank_reads_shards_of_its_own_to_their_ends_at_different_steps(jobs: Jobs) -> None:
    job = jobs(40)
    job.syncer()
    unit = RankUnit(job, "u", 2).start(RANKS_SHARDS="10")
    assert unit.wait() == [0, 0]
    in_lockstep(unit)
    read = [Counter((line["numbers"][0], line["numbers"][1]) for line in unit.of(rank)) for rank in range(2)]
    assert not read[0].keys() & read[1].keys(), "no shard is read by both"
    # 40 outer steps are 40 local steps at least, and a shard has three batches at most: 13 shards of each rank, in two epochs.
    assert {index for of_rank in read for epoch, index in of_rank if epoch == 0} == set(range(10)), "each is read in the first epoch"
    for of_rank in read:
        *whole, _ = of_rank.items()
        assert all(steps == index % 3 + 1 for (_, index), steps in whole), "each to its end, but for the last"
    assert list(read[0].values()) != list(read[1].values()), "they come to the ends at different steps"


def test_a_rank_that_wants_more_batches_than_the_others_gets_them_while_its_leader_waits_for_it(job: Processes, tmp_path: Path) -> None:
    """The leader deals out 16 batches before the first step, and then waits for rank 1 in a collective, which wants 20 for this step."""
    job.syncer()
    unit = RankUnit(job, "u", 2).start(RANKS_BATCHES_OF_1="20", RANKS_MEETS=str(tmp_path))
    assert set(unit.wait()) <= {1, Exit.RANK_LOST}
    said = "in local step 1 rank 0 settled 1 batch, and rank 1 settled 20 batches"
    assert all(said in program.text for program in unit.programs)


@pytest.mark.full
def test_a_rank_that_wants_more_batches_once_the_job_has_ended_ends_with_it(jobs: Jobs, tmp_path: Path) -> None:
    """Its leader has done all steps and is gone, so that it gets no other batch."""
    job = jobs(100_000)
    syncer = job.syncer()
    gate = tmp_path / "gate"
    unit = RankUnit(job, "u", 2).start(RANKS_FINISH_AT_STEP="5", RANKS_TAKES_FROM_STEP="5", RANKS_GATE=str(gate), RANKS_STEP_MS="300")
    leader, other = unit.programs
    assert leader.wait() == 0
    gate.touch()
    assert other.wait() == 0
    assert syncer.wait() == 0
    assert len(unit.of(1)) == 5 < len(unit.of(0))
    assert unit.final().keys() == {"embedding", "layer", "scale"}


@pytest.mark.parametrize("stray", [1, full(0)])
def test_a_rank_that_takes_batches_without_a_step_ends_with_an_error_while_the_others_wait_for_it(
    job: Processes, tmp_path: Path, stray: int
) -> None:
    job.syncer()
    unit = RankUnit(job, "u", 2).start(**{f"RANKS_BATCHES_OF_{stray}": "1000", "RANKS_MEETS": str(tmp_path)})
    expected = [Exit.RANK_LOST, Exit.RANK_LOST]
    expected[stray] = Exit.CRASHED
    assert unit.wait() == expected
    who = ("rank 0 (the leader) of unit u (64 batches taken so far;", "rank 1 of unit u (64 batches taken so far, rank 0: 1;")[stray]
    for program in unit.programs:
        assert f"{who} all ranks settle the same number in each step) holds 64 batches that no step() has settled" in program.text


def test_sigterm_to_one_rank_drains_all_of_them_at_one_step(job: Processes) -> None:
    job.syncer()
    unit = RankUnit(job, "u", 3).start()
    job.report(lambda report: report.t > 8, "every fragment is merged, so something is committed")
    unit.programs[2].signal(signal.SIGTERM)
    assert unit.wait() == [Exit.DRAINED] * 3
    assert len({len(unit.of(rank)) for rank in range(3)}) == 1, "all of them after the same step"
    assert [program.text.count("unit u drained after") for program in unit.programs] == [1] * 3
    report = job.report(lambda report: [each.state for each in report.units] == [UnitReport.DISCONNECTED], "it has left")
    assert report.tokens > 0


def test_a_unit_that_the_syncer_refuses_ends_with_its_status_on_all_ranks(job: Processes) -> None:
    job.syncer()
    job.learner("first")
    job.report(lambda report: report.seeded, "another model is the job's")
    unit = RankUnit(job, "u", 3).start()
    assert unit.wait() == [Exit.REFUSED_LAYOUT] * 3


@pytest.mark.full
def test_a_unit_trains_on_when_the_syncer_comes_back_with_an_older_state(job: Processes) -> None:
    syncer = job.syncer()
    unit = RankUnit(job, "u", 3).start()
    job.report(lambda report: report.t > 20, "it merges")
    syncer.signal(signal.SIGKILL)
    syncer.wait()
    before = len(unit.trace)
    job.syncer()
    job.report(lambda report: report.t > 40, "it merges again")
    assert len(unit.trace) > before
    in_lockstep(unit)
    unit.programs[0].signal(signal.SIGTERM)
    assert unit.wait() == [Exit.DRAINED] * 3


def test_ranks_that_keep_a_tensor_in_different_types_end_before_they_train(job: Processes) -> None:
    job.syncer()
    unit = RankUnit(job, "u", 2).start(RANKS_DTYPES_OF_1='{"layer": "bfloat16"}')
    assert unit.wait() == [Exit.RANK_LOST] * 2
    said = "rank 1 of unit u keeps tensor 'layer' in bfloat16, rank 0 (the leader) in float32: give the model the same types on all ranks"
    assert all(said in program.text for program in unit.programs)
    assert not unit.trace


def test_ranks_with_different_batch_sizes_are_told_so(job: Processes) -> None:
    job.syncer()
    unit = RankUnit(job, "u", 2).start(RANKS_BATCH="2", RANKS_BATCH_OF_1="3")
    assert unit.wait() == [Exit.RANK_LOST, 1]
    assert "ValueError: this rank asks for a batch of 3 samples, and its leader has dealt out 2 to each" in unit.programs[0].text


def test_ranks_that_cut_their_data_into_different_numbers_of_shards_are_told_so(job: Processes) -> None:
    job.syncer()
    unit = RankUnit(job, "u", 2).start(RANKS_SHARDS="8", RANKS_SHARDS_OF_1="9")
    assert unit.wait() == [Exit.CRASHED, Exit.RANK_LOST]
    assert all(f"for shards={count}, seed=0" in unit.programs[0].text for count in (8, 9))
    assert "all ranks give the same samples, seed and number of shards" in unit.programs[0].text


@pytest.mark.parametrize("address", ["10.0.0.1:99999", full("nowhere")])
def test_an_address_of_the_leader_that_cannot_be_is_named(job: Processes, address: str) -> None:
    unit = RankUnit(job, "u", 2).start(**{ENV_LEADER_ADDRESS: address})
    assert unit.wait() == [Exit.BAD_CONTRACT] * 2
    for program in unit.programs:
        assert f"the leader's address must be host:port, not {address!r}" in program.text


@pytest.mark.full
def test_the_ranks_of_a_unit_end_a_job_together_and_see_the_same_progress_until_then(jobs: Jobs) -> None:
    # 100,000 outer steps, and a budget of which the unit trains 28,800 by then, 96 in each step: progress comes from the tokens. The other
    # unit makes ten steps of 32 tokens in a second, so that it alone does not come to the end of the budget while ranks of this one start.
    job = jobs(100_000, tokens=100_000)
    syncer = job.syncer()
    unit = RankUnit(job, "u", 3).start(RANKS_FINISH_AT_STEP="300")
    alone = RankUnit(job, "alone", 1).start(RANKS_STEP_MS="100")
    assert (unit.wait(), alone.wait()) == ([0] * 3, [0])
    assert syncer.wait() == 0
    assert "lost rank" not in syncer.text, "all end at their own pace"
    assert unit.final() == alone.final()
    result = job.place.result
    assert result is not None
    assert (result.ended_by, result.end_reason) == (ENDED_BY_PROGRAM, "u: as requested at this step")
    seen = [[line["progress"] for line in unit.of(rank)] for rank in range(3)]
    assert seen[0] == seen[1] == seen[2], "or ranks would train with different rates"
    assert seen[0] == sorted(seen[0])
    assert seen[0][-2] > 0.003, "of outer steps it would be no more"
