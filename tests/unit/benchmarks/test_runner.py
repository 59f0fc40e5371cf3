from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

import pytest

from benchmarks.__main__ import ALL, KUBE, OPERATOR_AND_EXCHANGE, PEERS, PLACEMENT, QUALITY, SIZES, SMOKED, Benchmark, main, run
from benchmarks.figure import Figure, percentile


def a_figure(name: str = "speed", value: float = 1.5, *, within: bool = True) -> Figure:
    return Figure(name, value, "ratio", 1.0, within, runs=3, details={"worst": value})


@pytest.fixture
def a_benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Benchmark]:
    """A benchmark of the figure `speed` that measures what it is given, or raises it."""

    def make(*results: Figure | Exception) -> Benchmark:
        def measure(*, smoke: bool) -> Iterator[Figure]:
            for result in results:
                if isinstance(result, Exception):
                    raise result
                yield result

        module = ModuleType("a_benchmark")
        module.__dict__["measure"] = measure
        monkeypatch.setitem(sys.modules, "a_benchmark", module)
        return Benchmark("a_benchmark", ("speed",))

    return make


def test_a_figure_is_one_json_line_with_its_limit_and_its_commit(
    a_benchmark: Callable[..., Benchmark], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("speed", a_benchmark(a_figure()), smoke=False, commit="abc")
    expected = {"figure": "speed", "value": 1.5, "unit": "ratio", "limit": 1.0, "ok": True, "runs": 3, "commit": "abc", "worst": 1.5}
    assert json.loads(capsys.readouterr().out) == expected


def test_a_missed_limit_fails_a_run_but_not_a_smoke_run(a_benchmark: Callable[..., Benchmark], capsys: pytest.CaptureFixture[str]) -> None:
    missed = a_benchmark(a_figure(within=False))
    assert not run("speed", missed, smoke=False, commit="abc")
    assert run("speed", missed, smoke=True, commit="abc")
    judged, smoke = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert judged["ok"] is False
    assert smoke["smoke"] is True
    assert "ok" not in smoke


@pytest.mark.parametrize("smoke", [False, True])
def test_a_benchmark_that_raises_or_prints_no_line_fails(
    smoke: bool, a_benchmark: Callable[..., Benchmark], capsys: pytest.CaptureFixture[str]
) -> None:
    assert not run("speed", a_benchmark(), smoke=smoke, commit="abc")
    assert "speed: no line for speed" in capsys.readouterr().err
    assert not run("speed", a_benchmark(RuntimeError("broken")), smoke=smoke, commit="abc")
    assert "RuntimeError: broken" in capsys.readouterr().err
    assert not run("speed", a_benchmark(a_figure(), RuntimeError("broken")), smoke=smoke, commit="abc")


def test_a_value_that_is_not_finite_is_null_and_not_ok(a_benchmark: Callable[..., Benchmark], capsys: pytest.CaptureFixture[str]) -> None:
    assert not run("speed", a_benchmark(a_figure(value=math.nan)), smoke=False, commit="abc")
    line = json.loads(capsys.readouterr().out)
    assert (line["value"], line["worst"], line["ok"]) == (None, None, False)


def test_an_unknown_name_lists_the_names_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["speed"])
    assert ended.value.code == 2
    assert "the names are reconcile-pass, slice-flip" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reconcile-pass", "weight-error", "pods-512-hosts", "failure-to-replacement", "units-per-second"])
def test_a_benchmark_without_processes_prints_its_figures_in_small_size(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, ALL[name], smoke=True, commit="abc")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["figure"] for line in lines] == list(ALL[name].figures)


@pytest.mark.parametrize(
    ("arguments", "group"),
    [
        ([], OPERATOR_AND_EXCHANGE),
        (["--placement"], PLACEMENT),
        (["--sizes"], SIZES),
        (["--kube"], KUBE),
        (["--quality"], QUALITY),
        (["--peers"], PEERS),
        (["--smoke"], SMOKED),
    ],
)
def test_without_names_all_benchmarks_of_one_group_run(
    arguments: list[str], group: Mapping[str, Benchmark], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def note(name: str, benchmark: Benchmark, *, smoke: bool, commit: str) -> bool:
        ran.append(name)
        return True

    monkeypatch.setattr("benchmarks.__main__.run", note)
    assert main(arguments) == 0
    assert ran == list(group)


def test_every_benchmark_has_a_module() -> None:
    assert all(importlib.util.find_spec(benchmark.module) for benchmark in ALL.values())


@pytest.mark.parametrize(("share", "expected"), [(0.01, 1.0), (0.5, 2.0), (0.51, 3.0), (1.0, 4.0)])
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(share: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == expected
    assert math.isnan(percentile([], share))
