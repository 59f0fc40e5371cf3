"""The documents name files, functions and headings that exist, and their lines are wrapped."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTH = 120
"""Columns of a document's line, so that a change of one sentence is a change of few lines."""
_TARGET = re.compile(r"(?<=\]\()[^)]*(?=\))|https?://\S+")
"""Where a link leads. It cannot be wrapped."""
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_ROW = re.compile(r"^\| `([^`]+\.py)` \| `([^`]+)` \|", re.MULTILINE)
_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
_PATH = re.compile(r"`((?:controller|runtimes|tests|benchmarks|hack|docs|crds|helm|examples)/[^\s`*…<{]+)`")


def _tracked(pattern: str) -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for line in listed.splitlines() if (path := ROOT / line).is_file()]


DOCUMENTS = _tracked("*.md")


def _without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


@cache
def _anchors(path: Path) -> frozenset[str]:
    """The anchors that GitHub makes of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)


def _is_dead(document: Path, target: str) -> bool:
    if re.match(r"[a-z]+:", target):
        return False
    name, _, anchor = target.partition("#")
    file = (document.parent / name).resolve() if name else document
    return not file.exists() or bool(anchor and file.suffix == ".md" and anchor not in _anchors(file))


def test_links_lead_to_files_and_headings() -> None:
    links = ((document, target) for document in DOCUMENTS for target in _LINK.findall(_without_code(document.read_text())))
    dead = [f"{document.relative_to(ROOT)}: {target}" for document, target in links if _is_dead(document, target)]
    assert not dead


def test_paths_in_documents_exist() -> None:
    named = {(document.relative_to(ROOT), path) for document in DOCUMENTS for path in _PATH.findall(document.read_text())}
    missing = sorted(f"{document}: {path}" for document, path in named if not (ROOT / path.partition(":")[0]).exists())
    assert not missing


def test_the_journey_passes_functions_that_exist() -> None:
    rows = _ROW.findall((ROOT / "docs/journey.md").read_text())
    assert len(rows) > 30
    for file, function in rows:
        defined = re.search(rf"^ *(?:async )?def {function}\b", (ROOT / file).read_text(), re.MULTILINE)
        assert defined, f"docs/journey.md: {file} has no function {function}"


def test_each_row_of_the_threat_model_names_tests_that_exist() -> None:
    rows = [line for line in (ROOT / "docs/threat-model.md").read_text().splitlines() if line.startswith("| ")]
    named = [(file, name) for row in rows for file, name in _TEST.findall(row)]
    assert len(named) > 30
    for file, name in named:
        assert re.search(rf"^(?:async )?def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), f"{file} has no {name}"


def _long_lines(text: str) -> list[int]:
    """Numbers of the lines that are too wide. Code blocks, tables and targets of links may be as wide as they are."""
    found, fence = [], ""
    for number, line in enumerate(text.splitlines(), 1):
        start = line.lstrip()
        if fence:
            fence = "" if start.startswith(fence) else fence
        elif start.startswith(("```", "~~~")):
            fence = start[:3]
        elif not start.startswith("|") and len(_TARGET.sub("", line)) > WIDTH:
            found.append(number)
    return found


def test_lines_are_wrapped() -> None:
    long = [f"{document.relative_to(ROOT)}:{number}" for document in DOCUMENTS for number in _long_lines(document.read_text())]
    assert not long


def test_what_cannot_be_wrapped_may_be_long() -> None:
    word = "x" * WIDTH
    assert _long_lines(f"```\n{word} code\n```\n| {word} | table |\nsee [this]({word}) and https://example.com/{word}\n") == []
    assert _long_lines(f"short\n{word} long\n") == [2]


_VAGUE = re.compile(r"\b(?:nobody|somebody|whoever)\b", re.IGNORECASE)
"""Words that hide who acts: a sentence names the program, the object or the person."""


@pytest.mark.parametrize("folder", ["controller", "runtimes", "benchmarks", "hack", "docs"])
def test_sentences_name_who_acts(folder: str) -> None:
    files = sorted(path for suffix in ("py", "md", "sh", "c", "proto") for path in (ROOT / folder).rglob(f"*.{suffix}"))
    assert files
    lines = ((path, number, line) for path in files for number, line in enumerate(path.read_text().splitlines(), 1))
    assert [f"{path.relative_to(ROOT)}:{number}" for path, number, line in lines if _VAGUE.search(line)] == []
