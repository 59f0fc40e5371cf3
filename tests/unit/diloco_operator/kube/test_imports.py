"""Parts of a package without the rest of it."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from diloco_operator.kube.imports import without_init


@pytest.fixture
def _heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package `heavy` that imports `heavy.inner` and `heavy.rest`."""
    (tmp_path / "heavy" / "inner").mkdir(parents=True)
    (tmp_path / "heavy" / "__init__.py").write_text("from . import inner, rest\n")
    (tmp_path / "heavy" / "rest.py").touch()
    (tmp_path / "heavy" / "inner" / "__init__.py").write_text("from heavy.inner import part\n")
    (tmp_path / "heavy" / "inner" / "part.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in imported():
        del sys.modules[name]


def imported() -> set[str]:
    return {name for name in sys.modules if name.partition(".")[0] == "heavy"}


@pytest.mark.usefixtures("_heavy")
def test_a_part_comes_without_the_rest_and_later_importers_get_the_whole_package() -> None:
    with without_init("heavy"):
        part = importlib.import_module("heavy.inner.part")
    assert imported() == {"heavy.inner", "heavy.inner.part"}
    whole = importlib.import_module("heavy")
    assert (whole.rest.__name__, whole.inner.part) == ("heavy.rest", part)


@pytest.mark.usefixtures("_heavy")
def test_a_package_that_is_imported_already_stays_as_it_is() -> None:
    whole = importlib.import_module("heavy")
    with without_init("heavy"):
        assert sys.modules["heavy"] is whole
    assert sys.modules["heavy"] is whole


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="'not_installed'"), without_init("not_installed"):
        pass
    assert "not_installed" not in sys.modules


@pytest.mark.slow
def test_commands_start_without_the_libraries_that_they_do_not_use() -> None:
    program = """
import sys
import diloco_cli.cluster, diloco_local.memory
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"prompt_toolkit", "pygments", "requests", "requests_oauthlib"}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
