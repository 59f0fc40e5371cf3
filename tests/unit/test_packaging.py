"""What pyproject.toml promises must be enough for what is in the tree."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROTOCOL = ROOT / "runtimes" / "diloco" / "protocol"


def _lower_bound(package: str) -> tuple[int, ...]:
    project = tomllib.loads((ROOT / "runtimes" / "pyproject.toml").read_text())["project"]
    declared = next(each for each in project["dependencies"] if re.match(rf"{package}\b", each))
    bound = re.fullmatch(rf"{package}>=([\d.]+)", declared)
    assert bound, f"{declared} has no plain lower bound"
    return _version(bound[1])


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _generated_by(file: str, pattern: str) -> tuple[int, ...]:
    found = re.search(pattern, (PROTOCOL / file).read_text())
    assert found, f"{file} does not say what generated it"
    return _version(found[1])


def test_what_people_are_told_to_install_is_there() -> None:
    """Nothing is on PyPI: packages come from dist/ or from a checkout."""
    extras = tomllib.loads((ROOT / "runtimes" / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = {path: path.read_text() for path in [*pages, *(ROOT / "runtimes").rglob("*.py"), *(ROOT / "controller").rglob("*.py")]}
    assert [path for path, text in texts.items() if re.search(r"pip install '?diloco", text)] == []
    named = [
        name for text in texts.values() for found in re.findall(r"(?:diloco|\./runtimes)\[([a-z,]+)\]'", text) for name in found.split(",")
    ]
    assert {"torch", "jax", "hf"} <= set(named) <= set(extras)


def test_the_generated_wire_code_runs_with_the_oldest_protobuf_that_is_allowed() -> None:
    """The runtime refuses code that a newer generator made."""
    assert _lower_bound("protobuf") >= _generated_by("diloco_pb2.py", r"Protobuf Python Version: ([\d.]+)")
