import os
from pathlib import Path

import pytest
from diloco.contract import ENV_HOSTS, ENV_SYNCER_ADDRESS, Exit
from diloco.trainers.alone import AloneSession
from diloco.trainers.options import parse, pin_threads

IN_A_JOB = {ENV_SYNCER_ADDRESS: "127.0.0.1:7077", ENV_HOSTS: "1"}


def test_outside_of_a_job_it_says_how_to_start_one_or_train_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("trainer", [], {})
    assert ended.value.code == Exit.BAD_CONTRACT
    said = capsys.readouterr().err
    assert "diloco up" in said
    assert "python -m trainer --alone --steps" in said


def test_a_unit_of_several_hosts_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("trainer", [], IN_A_JOB | {ENV_HOSTS: "2"})
    assert ended.value.code == Exit.BAD_CONTRACT
    assert "2 hosts" in capsys.readouterr().err


def test_in_a_job_the_defaults_need_no_flag() -> None:
    options = parse("trainer", [], IN_A_JOB)
    assert options.alone_steps is None
    assert (options.batch, options.threads) == (8, 1)


def test_flags_reach_the_configuration() -> None:
    given = "--alone --steps 7 --layers 3 --width 24 --heads 3 --context 9 --tied --learning-rate 0.5 --warmup 2 --corpus /somewhere"
    options = parse("trainer", given.split(), {})
    assert options.alone_steps == 7
    assert (options.model.layers, options.model.width, options.model.heads, options.model.context, options.model.tied) == (
        3,
        24,
        3,
        9,
        True,
    )
    assert (options.inner.learning_rate, options.inner.warmup) == (0.5, 2)
    assert options.corpus == Path("/somewhere")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--alone"], "--alone and --steps go together"),
        (["--steps", "5"], "--alone and --steps go together"),
        (["--alone", "--steps", "5", "--width", "10", "--heads", "3"], "does not split"),
        (["--alone", "--steps", "5", "--batch", "0"], "--batch must be at least 1"),
        (["--alone", "--steps", "0"], "trains nothing"),
    ],
)
def test_options_that_make_no_sense_are_refused(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("trainer", argv, {})
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_threads_are_pinned_for_every_library_and_0_leaves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC", "XLA_FLAGS"]
    for name in names:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")  # so that what pin_threads sets is undone
    pin_threads(0)
    assert [os.environ[name] for name in names] == [""] * 5
    pin_threads(1)
    assert [os.environ[name] for name in names] == ["1"] * 4 + ["--xla_cpu_multi_thread_eigen=false"]


def test_alone_every_number_comes_once_in_order() -> None:
    session = AloneSession(3)
    seen = []
    for numbers in session.batches(list, 2):
        seen += numbers
        session.step(tokens=2)
    assert seen == [0, 1, 2, 3, 4, 5]
    assert (session.t, session.steps, session.done, session.draining) == (3, 3, True, False)
