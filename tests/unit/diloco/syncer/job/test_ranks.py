"""Units of several ranks against a real syncer: what each rank sends and gets, and what becomes of those that do it wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import grpc
import numpy as np
import pytest
from builders.exchange import LocalSyncer, Place, job_file, training, until, weights
from builders.scripted_learner import ScriptedLearner, a_round
from builders.shardings import Sharding, columns, dealt, grid, rows
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece, whole
from diloco.learner.store import Float32Array
from diloco.protocol.diloco_pb2 import Bye, Chunk, FromLearner, PieceMap, Pull, Refused, UnitReport, WorkWanted
from diloco.protocol.piece_maps import piece_maps
from diloco.syncer.job.exchange import INLINE_ELEMENTS
from diloco.syncer.streams.outgoing import INLINE_BYTES

SHARDINGS: dict[str, Sharding | None] = {
    "one process": None,
    "one rank": dealt(1),
    "rows over 2": rows(2),
    "columns over 2": columns(2),
    "2-D over 4": grid,
    "dealt over 4": dealt(4),
    "rows over 5": rows(5),  # w1 has 4 rows: one rank owns nothing of it
}

COMPRESSIONS = ["None", "BFloat16", "Int4"]


def place_for(path: Path, units: int, **changes: object) -> Place:
    return Place(path, job_file(training(100_000, **{"quorum": units, "compression": "None", **changes})))


@contextlib.contextmanager
def a_job(
    path: Path, shardings: Sequence[Sharding | None], arrays: Mapping[str, Float32Array] | None = None, **changes: object
) -> Iterator[tuple[LocalSyncer, list[ScriptedLearner]]]:
    """A job whose units are at version 0 of everything. Its quorum is all of them, unless `changes` of its training say otherwise."""
    with LocalSyncer(place_for(path, len(shardings), **changes)) as syncer, contextlib.ExitStack() as streams:
        units = [streams.enter_context(ScriptedLearner(syncer, arrays, unit=f"u-{i}", sharding=x)) for i, x in enumerate(shardings)]
        units[0].join().seed()
        until(lambda: syncer.report().seeded, "the seed")
        for unit in units[1:]:
            unit.join().adopt(count=2)
        yield syncer, units


def merged(syncer: LocalSyncer) -> list[bytes]:
    core = syncer.core
    return [core.value(fragment.index).tobytes() for fragment in core.fragments]


@pytest.mark.slow
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_units_of_every_sharding_train_one_job_and_hold_the_same_bytes(tmp_path: Path, compression: str) -> None:
    with a_job(tmp_path, list(SHARDINGS.values()), compression=compression) as (syncer, units):
        for number in range(1, 7):
            pull = a_round(units, number)
            value = merged(syncer)[pull.fragment]
            assert [unit.value(pull.fragment).tobytes() == value for unit in units] == [True] * len(units)
        assert np.abs(np.frombuffer(value, np.float32)).max() > 0.001, "nothing was trained"
        report = {one.unit: one for one in syncer.report().units}
        assert {name: one.contributions for name, one in report.items()} == dict.fromkeys((unit.unit for unit in units), 6)
        assert not any(one.refused for one in report.values())
        assert all(one.state == UnitReport.CONTRIBUTING for one in report.values())


@pytest.mark.slow
def test_the_merge_of_sharded_units_is_that_of_units_of_one_process(tmp_path: Path) -> None:
    values = []
    for name, shardings in (("whole", [None, None, None]), ("sharded", [grid, rows(3), columns(4)])):
        with a_job(tmp_path / name, shardings) as (syncer, units):
            for number in range(1, 5):
                a_round(units, number)
            values.append(merged(syncer))
    assert values[0] == values[1]


@pytest.mark.slow
def test_large_portions_are_cut_and_decoded_beside_the_event_loop(tmp_path: Path) -> None:
    arrays = {name: np.zeros((700, 512), np.float32) for name in ("w0", "w1")}  # 1.4 MiB each
    assert arrays["w0"].size > INLINE_ELEMENTS
    assert arrays["w0"].nbytes > INLINE_BYTES
    with a_job(tmp_path, [None, rows(3)], arrays) as (syncer, units):
        for number in range(1, 3):
            pull = a_round(units, number)
            assert [unit.value(pull.fragment).tobytes() for unit in units] == [merged(syncer)[pull.fragment]] * 2


@pytest.mark.slow
def test_each_rank_is_told_which_merge_had_its_units_contribution_last(tmp_path: Path) -> None:
    with a_job(tmp_path, [None, rows(2)], compression="Int4") as (_, units):
        one, two = units
        streams = [one, *two.streams]

        def exchange(number: int, **of_two: object) -> tuple[int, list[int]]:
            """The pull's outer step, and what the broadcast of its fragment says on each stream."""
            for unit in units:
                unit.step(number)
            pulls = [unit.pulled() for unit in units]
            one.push(pulls[0], one.trained(pulls[0]))
            two.push(pulls[1], two.trained(pulls[1]), **of_two)  # type: ignore[arg-type]
            return pulls[0].t, [stream.receive().header.merged for stream in streams]

        t, said = exchange(1)
        assert said == [t, t, t]
        t, said = exchange(2, steps=0)  # refused: it holds no work. The other fragment had nothing of the unit before
        assert said == [t, 0, 0]


@pytest.mark.parametrize("sharding", [None, grid], ids=["one process", "four ranks"])
def test_work_counts_whose_push_overtakes_the_progress_of_its_steps(tmp_path: Path, sharding: Sharding | None) -> None:
    """A busy machine delays the leader's progress; the pushes of the other ranks have streams of their own. H is 2."""
    with a_job(tmp_path, [sharding]) as (syncer, [unit]):
        pull = unit.step(733).pulled()
        unit.push(pull, unit.trained(pull), steps=1288, steps_done=1288, tokens=8 * 1288, tokens_done=8 * 1288)
        unit.adopt()
        assert (contributions(syncer, "u-0"), refused(syncer, "u-0")) == (1, {})


def test_streams_that_end_with_their_leaders_leave_no_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with a_job(tmp_path, [grid]) as (_, [unit]):
        unit.streams[0].cut()
        assert [stream.status() for stream in unit.streams[1:]] == [grpc.StatusCode.UNAVAILABLE] * 3
    errors = [record.message for record in caplog.records if record.levelname == "ERROR"]
    # gRPC has one poller for the whole process, which may wake the closed event loop of an earlier test.
    assert [message for message in errors if "PollerCompletionQueue" not in message] == []


@pytest.mark.slow
def test_a_rank_that_goes_at_the_end_of_the_job_before_its_leader_says_bye_is_no_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with LocalSyncer(Place(tmp_path, job_file(training(2)))) as syncer, ScriptedLearner(syncer, sharding=grid) as unit:
        unit.join().seed()
        until(lambda: syncer.report().seeded, "the seed")
        for number in (1, 2):
            a_round([unit], number)
        unit.hear("done")
        unit.streams[1].cut()
        until(lambda: "rank 1 of unit u-0 has ended its stream" in caplog.text, "the syncer to hear of it")
        assert "lost rank" not in caplog.text
        found = syncer.unit("u-0")
        assert (found.state, found.message) == (UnitReport.CONTRIBUTING, "")


def contributions(syncer: LocalSyncer, unit: str) -> int:
    return syncer.unit(unit).contributions


def gathered(syncer: LocalSyncer, unit: str) -> int:
    """Portions of the unit that wait."""

    def count() -> int:
        stream = next(stream for stream, session in syncer.syncer.engine._job.streams.joined() if session.unit == unit)
        return sum(len(answer.parts) for answer in stream.gathering._open.values())

    return int(syncer.call(count))


def state(syncer: LocalSyncer, unit: str) -> UnitReport.State:
    return syncer.unit(unit).state


@pytest.mark.slow
def test_a_rank_that_is_lost_sends_its_portion_again_and_the_contribution_counts(tmp_path: Path) -> None:
    with a_job(tmp_path, [None, grid]) as (syncer, units):
        one, four = units
        incarnation = four.incarnation
        for unit in units:
            unit.step(1)
        pull = one.pulled()
        four.pulled()
        four.push(pull, four.trained(pull), ranks=range(3))
        until(lambda: gathered(syncer, "u-1") == 3, "three portions")
        four.reopen(2)
        until(lambda: state(syncer, "u-1") == UnitReport.DISCONNECTED, "the loss to be seen")
        assert gathered(syncer, "u-1") == 2
        assert "connection of rank 2 lost" in syncer.unit("u-1").message
        welcome = four.welcomed_rank(2, incarnation=incarnation, versions=[0, 0])
        assert welcome.resumed, "it holds what it held"
        four.adopt(count=2, ranks=[2])  # a version 0 might be a seed of its own
        four.push(pull, four.trained(pull), ranks=(2, 3))
        one.push(pull, one.trained(pull))
        for unit in units:
            unit.adopt()
            assert unit.value(pull.fragment).tobytes() == merged(syncer)[pull.fragment]
        assert contributions(syncer, "u-1") == 1
        four.step(2)
        until(lambda: state(syncer, "u-1") == UnitReport.CONTRIBUTING, "the unit to contribute again")


def test_a_unit_that_lacks_a_rank_delays_no_other(tmp_path: Path) -> None:
    with a_job(tmp_path, [None, rows(2)], quorum=1) as (syncer, [one, two]):
        two.streams[1].cut()
        until(lambda: state(syncer, "u-1") == UnitReport.DISCONNECTED, "the loss to be seen")
        two.step(1)
        for number in range(1, 5):
            a_round([one], number)
        assert (contributions(syncer, "u-0"), contributions(syncer, "u-1")) == (4, 0)


def test_what_the_leader_reports_while_a_rank_is_away_counts_when_it_is_back(tmp_path: Path) -> None:
    with a_job(tmp_path, [rows(2)]) as (syncer, units):
        two = units[0]
        two.reopen(1)
        until(lambda: state(syncer, "u-0") == UnitReport.DISCONNECTED, "the loss to be seen")
        two.step(1)
        two.want(1).hear("work")  # the report came before
        assert syncer.report().t == 0
        two.welcomed_rank(1, incarnation=two.incarnation, versions=[0, 0])
        assert two.pulled().t == 1


@pytest.mark.slow
def test_an_answer_that_is_not_whole_when_its_exchange_closes_is_forgotten_and_refused_once(tmp_path: Path) -> None:
    with a_job(tmp_path, [None, rows(2)], quorum=1) as (syncer, [one, two]):
        two.step(1, step_seconds=0.01)  # so that it is silent after a second
        pull = two.pulled()
        two.push(pull, two.trained(pull), ranks=[0])
        until(lambda: gathered(syncer, "u-1") == 1, "the portion")
        until(lambda: syncer.report().t >= pull.t + 2 or one_more_step(one), "the exchange to close without it")
        assert gathered(syncer, "u-1") == 0
        two.push(pull, two.trained(pull))
        until(lambda: refused(syncer, "u-1") == {"StaleRound": 1}, "the refusal")
        two.step(2)
        until(lambda: syncer.unit("u-1").local_step == 2, "the unit to go on")


def one_more_step(unit: ScriptedLearner) -> bool:
    """It takes another local step, and nothing is known of it yet."""
    unit.step(unit.steps + 1)
    return False


@pytest.mark.slow
def test_a_rank_that_comes_back_gets_only_what_it_lacks(tmp_path: Path) -> None:
    with a_job(tmp_path, [None, rows(2)]) as (syncer, units):
        a_round(units, 1)
        pull = a_round(units, 2)
        two = units[1]
        two.reopen(1)
        until(lambda: state(syncer, "u-1") == UnitReport.DISCONNECTED, "the loss to be seen")
        # it lacks the version of the fragment that was merged last
        versions = [0 if p == pull.fragment else two.held[1][p][0] for p in (0, 1)]
        assert two.welcomed_rank(1, incarnation=two.incarnation, versions=versions).resumed
        two.adopt(ranks=[1])
        assert two.held[1][pull.fragment][0] == pull.t
        # and nothing at all if it is another process, which holds nothing
        two.reopen(1)
        until(lambda: state(syncer, "u-1") == UnitReport.DISCONNECTED, "the loss to be seen")
        assert not two.welcomed_rank(1, process=b"new", incarnation=two.incarnation, versions=[0, 0]).resumed
        two.adopt(count=2, ranks=[1])
        a_round(units, 3)


def test_ranks_try_again_until_their_leader_has_joined_and_end_with_it(tmp_path: Path) -> None:
    with LocalSyncer(place_for(tmp_path, 1)) as syncer, ScriptedLearner(syncer, unit="u-0", sharding=rows(2)) as two:
        assert two.hello_of(1).status() is grpc.StatusCode.UNAVAILABLE
        assert "rank 1 of unit u-0 waits for its leader" in two.streams[1].ending()
        two.reopen(1)
        assert not two.welcomed().seed_wanted, "not before all of its ranks are there"
        assert not two.welcomed_rank(1).seed_wanted
        assert all(stream.hear("welcome").welcome.seed_wanted for stream in two.streams)
        two.seed()
        until(lambda: syncer.report().seeded, "the seed")
        two.cut()
        assert two.streams[1].status() is grpc.StatusCode.UNAVAILABLE
        assert "leader, rank 0, has ended" in two.streams[1].ending()


def test_the_leader_says_bye_for_all_ranks(tmp_path: Path) -> None:
    with a_job(tmp_path, [rows(2)]) as (syncer, units):
        assert units[0].leave()[-1:] != ["refused"]
        assert units[0].streams[1].status() is grpc.StatusCode.OK
        until(lambda: state(syncer, "u-0") == UnitReport.DISCONNECTED, "the end")


@pytest.mark.slow
def test_the_seed_moves_on_when_a_rank_of_the_seeder_is_lost(tmp_path: Path) -> None:
    with (
        LocalSyncer(place_for(tmp_path, 2)) as syncer,
        ScriptedLearner(syncer, unit="u-0", sharding=rows(2)) as two,
        ScriptedLearner(syncer, unit="u-1") as one,
    ):
        two.join()
        assert two.hear("welcome").welcome.seed_wanted
        assert not one.welcomed().seed_wanted
        two.streams[1].cut()
        assert one.hear("welcome").welcome.seed_wanted
        for p, own in enumerate(two.portions[0]):  # the leader does not know yet
            two.transfer(Chunk(kind=Chunk.SEED, fragment=p, coding=Chunk.FLOAT32), bytes(4 * own.size))
        one.seed()
        until(lambda: syncer.report().seeded, "the seed")
        # what the ranks hold is their own: they get the job's
        two.adopt(count=2, ranks=[0])
        assert two.held[0][0][0] == 0
        two.reopen(1)
        two.welcomed_rank(1, incarnation=two.incarnation, versions=[0, 0])
        two.adopt(count=2, ranks=[1])
        a_round([two, one], 1)


# --- hostile ----------------------------------------------------------------------------------------------------------


def test_pieces_that_do_not_cover_the_model_once_are_refused_with_the_place(tmp_path: Path) -> None:
    with a_job(tmp_path, [None]) as (syncer, units), ScriptedLearner(syncer, unit="bad") as bad:
        others = [whole(tensor) for tensor in bad.layout.tensors if tensor.name != "w0"]
        owned = piece_maps(bad.layout, [[Piece("w0", (0, 0), (16, 4)), *others], [Piece("w0", (0, 5), (16, 3))]])
        refused = bad.hello(ranks=2, owned=owned).hear("refused").refused
        assert refused.code == Refused.LAYOUT
        assert "no rank owns w0[0:16, 4:5]" in refused.message
        assert state(syncer, "bad") == UnitReport.REFUSED
        a_round(units, 1)


def test_a_refused_first_learner_leaves_no_layout(tmp_path: Path) -> None:
    with LocalSyncer(place_for(tmp_path, 1)) as syncer:
        with ScriptedLearner(syncer, unit="bad", arrays=weights(tensors=3)) as bad:
            assert bad.hello(ranks=5000, owned=[PieceMap()] * 5000).hear("refused").refused.code == Refused.LAYOUT
        with ScriptedLearner(syncer, unit="u-0", sharding=rows(2)) as two:
            two.join().seed()
            until(lambda: syncer.report().seeded, "the seed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"rank": 2}, Refused.PROTOCOL, "cannot join as one of 2 ranks"),
        ({"ranks": 3}, Refused.PROTOCOL, "cannot join as one of 3 ranks: to its leader, rank 0, they are 2"),
        ({"process": b""}, Refused.PROTOCOL, "must name its process"),
        ({"process": b"another"}, Refused.DUPLICATE_IDENTITY, "another process is connected as rank 1 of unit u-0"),
        ({"session": b"another"}, Refused.DUPLICATE_IDENTITY, "another process is connected as attempt 1"),
        ({"job_uid": "another"}, None, "the certificate belongs to"),
        ({"attempt": 2}, None, "the certificate belongs to"),
        ({"unit": "u-1"}, None, "the certificate belongs to"),
    ],
)
def test_a_rank_that_is_none_of_the_unit_is_refused_alone(
    tmp_path: Path, changes: dict[str, object], code: Refused.Code | None, message: str
) -> None:
    with a_job(tmp_path, [rows(2)]) as (syncer, units), ScriptedLearner(syncer, unit="u-0") as stranger:
        usual: dict[str, object] = {"rank": 1, "ranks": 2, "process": b"p1", "tensors": [], "fingerprint": ""}
        stranger.hello(**(usual | changes))
        if code is None:
            assert stranger.status() is grpc.StatusCode.UNAUTHENTICATED
            assert message in stranger.ending()
        else:
            refused = stranger.hear("refused").refused
            assert (refused.code, message in refused.message) == (code, True), refused.message
        a_round(units, 1)


def test_a_rank_of_a_unit_of_one_process_is_refused(tmp_path: Path) -> None:
    with a_job(tmp_path, [None]) as (syncer, units), ScriptedLearner(syncer, unit="u-0") as stranger:
        refused = stranger.hello(rank=1, ranks=2, process=b"p1").hear("refused").refused
        assert (refused.code, "the unit is one process" in refused.message) == (Refused.PROTOCOL, True)
        a_round(units, 1)


@pytest.mark.slow
def test_the_same_process_may_open_another_stream_before_the_break_was_noticed(tmp_path: Path) -> None:
    with a_job(tmp_path, [rows(2)]) as (syncer, units):
        two = units[0]
        former, two.streams[1] = two.streams[1], ScriptedLearner(syncer, unit="u-0")
        assert two.welcomed_rank(1, incarnation=two.incarnation, versions=[0, 0]).resumed
        assert former.status() is grpc.StatusCode.UNAVAILABLE
        former.cut()
        a_round(units, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda rank: rank.transfer(Chunk(kind=Chunk.PUSH, fragment=0, t=1, coding=Chunk.FLOAT32), b"short"), "announces 5 bytes"),
        (lambda rank: rank.step(1), "rank 1 of unit u-1 sends Progress"),
        (lambda rank: rank.say(FromLearner(work_wanted=WorkWanted(samples=1))), "rank 1 of unit u-1 sends Work"),
        (lambda rank: rank.say(FromLearner(bye=Bye())), "rank 1 of unit u-1 sends Bye"),
        (lambda rank: rank.transfer(Chunk(kind=Chunk.SEED, fragment=0, coding=Chunk.FLOAT32), bytes(4)), "was not asked"),
        (lambda rank: rank.hello(), "Hello came twice"),
    ],
)
def test_what_a_rank_does_wrong_ends_its_unit_and_no_other(
    tmp_path: Path, break_it: Callable[[ScriptedLearner], object], message: str
) -> None:
    with a_job(tmp_path, [None, rows(3)]) as (syncer, units):
        one, three = units
        break_it(three.streams[1])
        for stream in three.streams:
            refused = stream.hear("refused").refused
            assert (refused.code, message in refused.message) == (Refused.PROTOCOL, True), refused.message
        assert state(syncer, "u-1") == UnitReport.REFUSED
        one.step(1)
        assert state(syncer, "u-0") in (UnitReport.JOINING, UnitReport.CONTRIBUTING)


def a_pull(units: Sequence[ScriptedLearner]) -> Pull:
    for unit in units:
        unit.step(1)
    pulls = [unit.pulled() for unit in units]
    return pulls[0]


def refused(syncer: LocalSyncer, unit: str) -> dict[str, int]:
    return dict(syncer.unit(unit).refused)


@pytest.mark.slow
def test_ranks_that_disagree_on_the_counters_end_their_unit(tmp_path: Path) -> None:
    with a_job(tmp_path, [None, rows(2)]) as (_, units):
        pull, two = a_pull(units), units[1]
        two.push(pull, two.trained(pull), ranks=[0])
        two.push(pull, two.trained(pull), ranks=[1], tokens=4)
        said = two.hear("refused").refused
        assert said.code == Refused.PROTOCOL
        assert "the ranks disagree on fragment" in said.message


@pytest.mark.slow
def test_a_portion_with_nan_spoils_the_whole_contribution_and_ends_the_unit(tmp_path: Path) -> None:
    with a_job(tmp_path, [None, rows(2)]) as (syncer, units):
        pull, (one, two) = a_pull(units), units
        two.push(pull, two.trained(pull), ranks=[0])
        size = two.portions[1][pull.fragment].size
        two.streams[1].transfer(two.offer(pull, 1), np.full(size, np.nan, np.float32).tobytes())
        assert two.streams[1].hear("refused").refused.code == Refused.NONFINITE
        one.push(pull, one.trained(pull))
        one.adopt()
        assert (contributions(syncer, "u-0"), contributions(syncer, "u-1")) == (1, 0)


@pytest.mark.slow
def test_portions_that_were_not_asked_for_or_come_twice_or_too_late_are_one_refusal_each(tmp_path: Path) -> None:
    with a_job(tmp_path, [grid]) as (syncer, units):
        (four,) = units
        theta = np.zeros(four.fragments[0].size, np.float32)
        four.push(Pull(fragment=0, t=9), theta, tokens_done=8, steps_done=1)
        until(lambda: refused(syncer, "u-0") == {"NotAsked": 1}, "the refusal")
        pull = a_pull(units)
        moved = four.trained(pull)
        four.push(pull, moved, ranks=[1])
        four.push(pull, moved, ranks=[1])
        until(lambda: refused(syncer, "u-0") == {"NotAsked": 1, "Duplicate": 1}, "the refusal")
        four.push(pull, moved, ranks=(0, 2, 3))
        four.adopt()
        four.push(pull, moved)  # its exchange is over
        until(lambda: refused(syncer, "u-0") == {"NotAsked": 1, "Duplicate": 2}, "the refusal")
        assert contributions(syncer, "u-0") == 1
        four.step(2)
        assert four.pulled().t == 2


@pytest.mark.slow
@pytest.mark.parametrize(("overlap_steps", "most"), [(0, 2), (1, 2), (3, 4)])
def test_a_unit_has_no_more_under_way_than_one_process_could(tmp_path: Path, overlap_steps: int, most: int) -> None:
    """As many fragments as exchanges may be open at a time, and as a stream may have transfers."""

    # Rank r owns all of tensor r, and there are as many fragments: so each rank may have a whole fragment under way.
    def tensors(layout: Layout) -> list[list[Piece]]:
        return [[whole(tensor)] for tensor in layout.tensors]

    arrays = {f"w{i}": np.zeros((64, 1024), np.float32) for i in range(5)}
    size = 4 * 64 * 1024
    with a_job(tmp_path, [tensors], arrays, fragments=5, sync_interval=5, overlap_steps=overlap_steps) as (syncer, [unit]):
        for rank in range(most + 1):
            p = next(p for p, own in enumerate(unit.portions[rank]) if own.size)
            header = Chunk(kind=Chunk.PUSH, fragment=p, t=1, coding=Chunk.FLOAT32, total=size, data=bytes(8))
            unit.streams[rank].say(FromLearner(chunk=header))
            if rank < most:
                until(lambda rank=rank: under_way(syncer) == rank + 1, "the transfer")  # type: ignore[misc]
        assert unit.streams[most].status() is grpc.StatusCode.UNAVAILABLE
        assert f"have pushes of {(most + 1) * size} bytes under way; {most * size} are the most" in unit.streams[most].ending()


def under_way(syncer: LocalSyncer) -> int:
    return int(syncer.call(lambda: sum(len(x.assembler._open) for x in syncer.syncer.engine._job.streams if x.assembler is not None)))
