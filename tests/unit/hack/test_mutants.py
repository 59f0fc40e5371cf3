"""hack/mutants.py: which places of the code are changed."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = """
from __future__ import annotations

type Pair = tuple[1, 2]


def larger(a: int | None, b: int = 3) -> int | None:
    return a if a is not None and a > b else b
"""


@pytest.fixture
def mutants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, in a folder with one package of one file."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("mutants")


def places(drawn: list[tuple[str, object]]) -> list[tuple[int, int]]:
    return [mutation.start_pos for _, mutation in drawn]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_seed_draws_the_same_places_each_once(mutants: ModuleType) -> None:
    assert mutants._draw(["package"], 1, 4) == mutants._draw(["package"], 1, 4)
    everything = places(mutants._draw(["package"], 1, 1000))
    assert len(set(everything)) == len(everything)
    assert set(places(mutants._draw(["package"], 2, 4))) < set(everything)


@pytest.mark.slow
def test_types_are_not_changed(mutants: ModuleType) -> None:
    assert {line for line, _ in places(mutants._draw(["package"], 1, 1000))} == {7, 8}
    columns = [column for line, column in places(mutants._draw(["package"], 1, 1000)) if line == 7]
    assert columns == [SOURCE.splitlines()[6].index("3")]
