"""docs/metrics.md lists exactly the metrics of /metrics."""

from __future__ import annotations

import re
from pathlib import Path

from diloco_operator.operator.metrics import Metrics

PAGE = Path(__file__).parents[4] / "docs/metrics.md"


def test_the_metrics_page_lists_every_metric_with_its_type() -> None:
    registry = Metrics().registry
    families = {family.name + ("_total" if family.type == "counter" else ""): family for family in registry.collect()}
    there = {name: family.type for name, family in families.items() if not name.startswith("process_")}
    listed: dict[str, str] = {}
    for names, kind in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (\w*) \|", PAGE.read_text().partition("## Alerts")[0], re.MULTILINE):
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", names), kind)
    assert listed == there
