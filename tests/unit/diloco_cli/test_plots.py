"""Plots of figures, as elements of SVG."""

from xml.etree.ElementTree import Element

import pytest
from diloco_cli.plots import Axis, Bars, Line, Marks, Plot, Rule, picture
from diloco_cli.svg import as_file

RED = "#ff0000"


def drawn(*series: Line | Marks | Rule | Bars, x: Axis | None = None, y: Axis | None = None) -> Element:
    return picture(Plot("Title", x or Axis("a", 0, 10), y or Axis("b", 0, 100), series))


def all_of(svg: Element, tag: str) -> list[Element]:
    return [each for each in svg.iter(tag) if each.get("class") not in ("paper", "grid", "axis")]


def points(line: Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in (line.get("points") or "").split())]


def texts(svg: Element) -> list[str]:
    return [each.text or "" for each in svg.iter("text")]


def test_values_are_where_the_axes_say() -> None:
    svg = drawn(Line("", [(0, 0), (5, 50), (10, 100)], RED))
    (line,) = all_of(svg, "polyline")
    # From 60 to 760 - 16 pixels across; upwards from 420 - 52 to 46, where no legend is.
    assert points(line) == [(60.0, 368.0), (402.0, 207.0), (744.0, 46.0)]


def test_a_logarithmic_axis_has_equal_ratios_at_equal_distances() -> None:
    svg = drawn(Line("", [(1, 1), (1, 10), (1, 100)], RED), y=Axis("b", 1, 100, logarithmic=True))
    (_, low), (_, middle), (_, high) = points(all_of(svg, "polyline")[0])
    assert low - middle == pytest.approx(middle - high)
    assert {"1", "10", "100"} <= set(texts(svg))


def test_what_has_a_name_is_in_the_legend_once_and_what_has_none_is_not() -> None:
    line = Line("ours", [(0, 0), (1, 1)], RED)
    svg = picture(*(Plot(title, Axis("a", 0, 1), Axis("b", 0, 1), [line, Marks("", [(0, 0)], RED)]) for title in ("One", "Two")))
    assert texts(svg).count("ours") == 1
    assert {"One", "Two"} <= set(texts(svg))
    assert len(all_of(svg, "polyline")) == 3, "two plots and the sample"


def test_a_long_legend_goes_on_in_further_rows_above_the_plot() -> None:
    names = [f"a series with a long name, number {number}" for number in range(6)]
    svg = drawn(*(Line(name, [(0, 0), (10, 100)], RED) for name in names))
    entries = [each for each in svg.iter("text") if each.text in names]
    assert len({each.get("y") for each in entries}) > 1
    top = min(y for line in all_of(svg, "polyline") for _, y in points(line)[-1:] if len(points(line)) == 2 and y > 60)
    assert max(float(each.get("y") or 0) for each in entries) < top + 420


def test_a_bar_may_have_a_whisker_at_its_middle() -> None:
    svg = drawn(Bars("", [(5, 50)], RED, shift=1, whiskers=[(25, 75)]))
    bar = next(each for each in svg.iter("rect") if each.get("fill") == RED)
    whisker = next(each for each in svg.iter("line") if each.get("class") == "axis" and each.get("x1") == each.get("x2"))
    # 322 pixels upwards for 100, from 368; across 684 for 10, from 60: 6 is in the middle of the bar.
    assert (float(whisker.get("y1", 0)), float(whisker.get("y2", 0))) == (287.5, 126.5)
    assert float(whisker.get("x1", 0)) == pytest.approx(60 + 6 * 68.4)
    assert float(bar.get("x", 0)) + float(bar.get("width", 0)) / 2 == pytest.approx(60 + 6 * 68.4, abs=0.1)


def test_bars_stand_on_the_axis_and_rules_cross_the_plot() -> None:
    svg = drawn(Bars("", [(5, 50)], RED, width=2), Rule("", 4, RED, vertical=True), Rule("", 25, RED))
    (bar,) = all_of(svg, "rect")
    assert (float(bar.get("y") or 0), float(bar.get("height") or 0)) == (207.0, 161.0)
    upright, level = all_of(svg, "line")
    assert upright.get("x1") == upright.get("x2")
    assert level.get("y1") == level.get("y2")


def test_names_of_users_are_text_and_no_markup() -> None:
    assert "<script>" not in as_file(drawn(Line("<script>", [(0, 0), (1, 1)], RED)))
