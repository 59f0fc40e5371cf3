"""hack/quote_figures.py writes what benchmarks printed into the pages that quote it, and the pages agree.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

import json

import pytest
import quote_figures
from quote_figures import HEAD, MISSING, Unquotable, counted, figures, marks, number, pages, quoted, read_lines, rows, without_a_place

from benchmarks.__main__ import ALL

COMMIT = "0123456789ab"
PAGES = {str(page.relative_to(quote_figures.ROOT)): page.read_text() for page in pages()}
ALL_FIGURES = figures(PAGES.values())
PAGE = f"""Figures.

{HEAD}
|---|---|---|---|---|
| `speed`, of a step (ms) | ≤ 2 | 1.5 | `make bench` | fedcba98 |
| `speed` `worst.of_all`: the longest | | 9 | `make bench` | fedcba98 |
| `other` | ≤ 2 | {MISSING} | `make bench` | |

| figure | limit | ours | commit |
|---|---|---|---|
| `last` | ≤ 2 | 1.5 | fedcba98 |

The step took 1.5<!-- speed --> ms, and 9<!-- speed worst.of_all --> at worst.

| `speed` | in another table |
"""


def a_line(name: str = "speed", value: float = 1.23456, *, ok: bool = True, commit: str = COMMIT, **fields: object) -> str:
    return json.dumps({"figure": name, "value": value, "unit": "ms", "limit": 2.0, "ok": ok, "runs": 3, "commit": commit, **fields})


def test_rows_and_marks_of_a_figure_get_its_newest_line() -> None:
    lines = read_lines("\n".join(("make: nothing to do", a_line(value=7), a_line(worst={"of_all": 12345.6}), a_line("last"))))
    page = quoted(PAGE, lines)
    assert "| `speed`, of a step (ms) | ≤ 2 | 1.235 | `make bench` | 01234567 |\n" in page
    assert "| `speed` `worst.of_all`: the longest |  | 12,350 | `make bench` | 01234567 |\n" in page
    assert "took 1.235<!-- speed --> ms, and 12,350<!-- speed worst.of_all --> at worst" in page
    assert "| `last` | ≤ 2 | 1.235 | 01234567 |\n" in page
    assert "| `speed` | in another table |\n" in page
    assert f"| `other` | ≤ 2 | {MISSING} | `make bench` | |\n" in page


def test_the_limits_of_all_figures_are_counted_where_a_page_says_how_many_are_met() -> None:
    missed = quoted(PAGE, read_lines(a_line(ok=False, worst={"of_all": 1})))  # two of four rows have a limit and a value
    assert counted("So <!-- limits -->none.<!-- /limits --> End <!-- missed --><!-- /missed -->", rows(missed)) == (
        "So <!-- limits -->1 of our 2 limits for figures are met.<!-- /limits --> End <!-- missed -->`speed`<!-- /missed -->"
    )
    assert "2 of our 2 limits" in counted("<!-- limits --><!-- /limits -->", figures([PAGE, PAGE]))


def test_the_pages_count_the_limits_of_today() -> None:
    for name, page in PAGES.items():
        assert counted(page, ALL_FIGURES) == page, f"{name}: run hack/quote_figures.py with an empty file"


def test_a_missed_limit_is_bold() -> None:
    assert "| **1.235** |" in quoted(PAGE, read_lines(a_line(ok=False, worst={"of_all": 1})))


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (24, "24"), (1_288_431, "1,288,431"), (1.0016, "1.002"), (0.0000164, "0.0000164"), (98765.4, "98,770"), (0.5, "0.5")],
)
def test_numbers_have_four_significant_digits_and_no_exponent(value: float, written: str) -> None:
    assert number(value) == written


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (a_line(commit=f"{COMMIT}-dirty"), "speed is of commit 0123456789ab-dirty; commit what you changed"),
        (a_line(commit="unknown"), "commit unknown"),
        (a_line(smoke=True), "speed is of a smoke run"),
        ('{"figure": "speed"}', "line 1: no line of a benchmark"),
        ("{", "line 1: no line of a benchmark"),
    ],
)
def test_lines_that_no_page_may_quote_are_refused(line: str, what: str) -> None:
    with pytest.raises(Unquotable, match=what):
        read_lines(line)


@pytest.mark.parametrize("worst", [{}, 3, {"of_all": "much"}, {"of_all": None}])
def test_a_line_without_the_field_of_a_row_is_refused(worst: object) -> None:
    with pytest.raises(Unquotable, match=r"speed.*worst\.of_all"):
        quoted(PAGE, read_lines(a_line(worst=worst)))


def test_a_figure_that_has_no_row_is_named() -> None:
    assert without_a_place([PAGE], read_lines(a_line() + "\n" + a_line("new"))) == ["new"]


# --- the pages of this repository -------------------------------------------------------------------------------------
def test_a_page_has_a_row_for_each_figure_that_a_benchmark_prints() -> None:
    printed = {figure for benchmark in ALL.values() for figure in benchmark.figures}
    assert printed - {name for name, _ in ALL_FIGURES} == set(), "add a row to docs/results/further-figures.md"
    assert {name for name, _ in ALL_FIGURES} - printed == set(), "no benchmark prints these any more"


@pytest.mark.parametrize("page", PAGES)
def test_a_figure_is_the_same_on_every_page(page: str) -> None:
    text = PAGES[page]
    for key, (_, limit, value, *_, commit) in rows(text).items():
        assert (limit, value, commit) == (ALL_FIGURES[key][1], ALL_FIGURES[key][2], ALL_FIGURES[key][-1]), f"{page}: {key}"
    for key, value in marks(text).items():
        assert value == ALL_FIGURES[key][2].strip("*"), f"{page}: {key}"


def test_a_figure_has_a_commit_unless_it_was_not_recorded() -> None:
    for key, (_, _, value, *_, commit) in ALL_FIGURES.items():
        assert (value == MISSING) == (commit == ""), key
