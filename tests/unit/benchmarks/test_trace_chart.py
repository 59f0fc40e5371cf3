from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest


def a_line(load: float) -> str:
    ratio = {"mean": 1.1, "least": 1.0, "largest": 1.3}
    names = ("flow", "flow-known", "flow-blind", "first-fit-best", "first-fit-random", "gangs")
    by_random = {name: {"tokens": ratio, "mean_completion": ratio} for name in names}
    return json.dumps({"figure": f"placement-trace-{load}", "load": load, "by_random": by_random})


@pytest.mark.slow  # the drawing library takes a second to import
def test_equal_lines_draw_equal_charts_that_name_each_rule_and_load(tmp_path: Path) -> None:
    from benchmarks.trace.chart import COLOURS, draw, lines_of

    lines = lines_of("\n".join(['{"figure": "stability"}', a_line(0.8), a_line(1.5)]))
    paths = [tmp_path / "first.svg", tmp_path / "second.svg"]
    for path in paths:
        draw(lines, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    words = {text.strip() for text in ET.parse(paths[0]).getroot().itertext()}
    assert {*COLOURS, "load 0.8", "load 1.5"} <= words


@pytest.mark.slow
def test_a_file_without_lines_of_the_trace_is_refused() -> None:
    from benchmarks.trace.chart import lines_of

    with pytest.raises(ValueError, match="no line of placement-trace"):
        lines_of('{"figure": "stability"}')
