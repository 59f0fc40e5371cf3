"""The decision records keep one form, and the links between records, documents and code hold in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
HEADINGS = ["Context", "Decision", "Alternatives", "Consequences"]
LONGEST_RECORD = 70
"""Lines: a page."""
MODULE_ROOTS = (ROOT / "controller" / "diloco_operator", ROOT / "controller", ROOT / "runtimes" / "diloco", ROOT)
"""Paths in `Explains` are relative to one of these."""
SCANNED = ("benchmarks", "controller", "docs", "examples", "hack", "helm", "runtimes", "tests", ".github", ".ci")
"""Folders that may refer to a record; the files beside them in the root may, too."""
TEXT = {".md", ".py", ".sh", ".proto", ".toml", ".yaml", ".yml", ".tpl", ".txt", ".Dockerfile", ""}

_NAME = re.compile(r"\d{4}-[a-z0-9]+(-[a-z0-9]+)*\.md")
_METADATA = re.compile(r"Area: (?P<area>[A-Za-z]+( [a-z]+)*(, [A-Za-z]+( [a-z]+)*)*)")
_DOCSTRING = re.compile(r'\A(?:#[^\n]*\n)*"""(.*?)"""', re.DOTALL)
_LINE = re.compile(r"^- \[(\d{4})\]\(([^)]+)\): (.+)$", re.MULTILINE)
_SEE = re.compile(r"See docs/decisions/(\S+?\.md)\.")
_LINK = re.compile(r"decisions/([\w.-]+\.md)")
_NUMBER = re.compile(r"\bdecisions? (\d{4})\b", re.IGNORECASE)


@dataclass(frozen=True)
class Record:
    """One file of docs/decisions."""

    name: str
    number: str
    title: str
    area: str
    explains: tuple[str, ...]


def _paths() -> list[Path]:
    return sorted(path for path in DECISIONS.glob("*.md") if path.name not in ("README.md", "template.md"))


def _paragraph(text: str, start: str) -> str:
    """The paragraph that begins with `start` as one line; "" if there is none."""
    return next((" ".join(part.split()) for part in text.split("\n\n") if part.startswith(start)), "")


def _record(path: Path) -> Record:
    text = path.read_text(encoding="utf-8")
    title = re.match(r"# (\d{4})\. (.+)\n", text)
    assert title, f"{path.name} must begin with '# NNNN. Short noun title'"
    metadata = _METADATA.fullmatch(_paragraph(text, "Area: "))
    assert metadata, f"{path.name} has no line 'Area: …' of the form in template.md"
    return Record(
        path.name,
        title[1],
        title[2],
        metadata["area"],
        tuple(re.findall(r"`([^`]+)`", _paragraph(text, "Explains: "))),
    )


RECORDS = {path.name: _record(path) for path in _paths()}


@cache
def _texts() -> list[tuple[Path, str]]:
    """Every text file of the repository that refers to a record."""
    return [(path, text) for path, text in _all_texts() if "ecision" in text]


def _all_texts() -> Iterator[tuple[Path, str]]:
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in SCANNED:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    for path in found:
        if path.suffix in TEXT and path != Path(__file__):
            try:
                yield path, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def _resolve(path: str) -> Path:
    found = {root / path for root in MODULE_ROOTS if (root / path).is_file()}
    assert len(found) == 1, f"`{path}` names {len(found)} files; give the path from the repository root"
    return found.pop()


def test_a_record_has_the_headings_and_fits_on_a_page() -> None:
    for path in _paths():
        text = path.read_text(encoding="utf-8")
        assert _NAME.fullmatch(path.name), f"{path.name} must be called NNNN-short-noun.md"
        assert path.name.startswith(RECORDS[path.name].number), f"the title has another number than the file {path.name}"
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS, path.name
        assert not re.search(r"^## [^\n]+\n+(## |\Z)", text, re.MULTILINE), f"{path.name} has a heading without text below it"
        assert text.count("\n") <= LONGEST_RECORD, path.name


def test_numbers_are_unique() -> None:
    numbers = [record.number for record in RECORDS.values()]
    assert len(numbers) == len(set(numbers)), "a number stands for two records"


def test_the_index_has_every_record_under_its_first_area() -> None:
    areas = (DECISIONS / "README.md").read_text(encoding="utf-8").split("\n## ")[1:]
    lines = {
        (heading.lower(), number, name, title)
        for heading, _, listed in (area.partition("\n") for area in areas)
        for number, name, title in _LINE.findall(listed)
    }
    assert lines == {(record.area.split(", ")[0].lower(), record.number, record.name, record.title) for record in RECORDS.values()}


@pytest.mark.slow
def test_every_link_to_a_record_points_to_a_file() -> None:
    numbers = {record.number for record in RECORDS.values()}
    allowed = {*RECORDS, "README.md", "template.md", "NNNN-name.md"}
    wrong = []
    for path, text in _texts():
        where = path.relative_to(ROOT)
        wrong += [f"{where}: decisions/{name}" for name in _LINK.findall(text) if name not in allowed]
        wrong += [f"{where}: decision {number}" for number in _NUMBER.findall(text) if number not in numbers]
    for path in DECISIONS.glob("*.md"):
        inside = re.findall(r"\]\(([\w-]+\.md)\)", path.read_text(encoding="utf-8"))
        wrong += [f"{path.name}: {name}" for name in inside if name not in allowed]
    assert not wrong


@pytest.mark.slow
def test_the_modules_that_a_record_explains_refer_to_it() -> None:
    for record in RECORDS.values():
        assert record.explains, f"name the modules that {record.name} explains: 'Explains: `path`, `path`'"
        for module in record.explains:
            path = _resolve(module)
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".py":
                text = "".join(_DOCSTRING.findall(text))
            assert record.name in _SEE.findall(text), f"{module} must say 'See docs/decisions/{record.name}.'"


@pytest.mark.slow
def test_a_record_names_the_modules_that_refer_to_it() -> None:
    explained = {(record.name, _resolve(module)) for record in RECORDS.values() for module in record.explains}
    seen = {(name, path) for path, text in _texts() if path.suffix != ".md" for name in _SEE.findall(text)}
    missing = sorted(f"{name}: {path.relative_to(ROOT)}" for name, path in seen - explained)
    assert not missing, "add these modules to 'Explains' of the record"
