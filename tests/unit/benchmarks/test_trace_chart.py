from xml.etree.ElementTree import Element

from diloco_cli.svg import as_file

from benchmarks.trace.chart import COLOUR_OF, draw

RATIO = {"mean": 1.1, "least": 1.0, "largest": 1.3}
BY_RULE = {rule: {"tokens": RATIO, "mean_completion": RATIO} for rule in COLOUR_OF}


def bars(svg: Element) -> list[Element]:
    return [each for each in svg.iter("rect") if each.get("fill") in COLOUR_OF.values() and each.get("rx") is None]


def test_a_week_has_a_bar_and_a_whisker_for_each_rule_load_and_measure() -> None:
    svg = draw({0.8: BY_RULE, 1.5: BY_RULE})
    assert {text for each in svg.iter("text") if (text := each.text)} >= {*COLOUR_OF, "load 0.8", "load 1.5"}
    found = bars(svg)
    assert len(found) == 6 * 2 * 2
    whiskers = [each for each in svg.iter("line") if each.get("class") == "axis" and each.get("x1") == each.get("x2")]
    assert len(whiskers) == len(found)
    assert len({each.get("x") for each in found}) == len(found), "no bar hides another"


def test_the_same_figures_give_the_same_bytes() -> None:
    assert as_file(draw({0.8: BY_RULE})) == as_file(draw({0.8: BY_RULE}))
