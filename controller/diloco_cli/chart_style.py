"""Colours and CSS of all charts, for light and dark pages.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

from typing import Final

UNIT_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f")
"""Most are from Okabe and Ito's palette, so that people who do not tell red from green can tell them apart."""

STYLE: Final = """
.chart { --ink: #1d2329; --soft: #66707a; --line: #e3e6e9; --paper: #ffffff; --fault: #c4261d; --main: #0b62a8; }
.chart text { font: 12px system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; fill: var(--ink); }
.chart .title { font-weight: 600; font-size: 13px; }
.chart .soft { fill: var(--soft); font-size: 11px; }
.chart .paper { fill: var(--paper); }
.chart .grid { stroke: var(--line); stroke-width: 1; }
.chart .axis { stroke: var(--soft); stroke-width: 1; }
.chart .fault { stroke: var(--fault); stroke-width: 1.5; stroke-dasharray: 4 3; }
.chart .fault-text { fill: var(--fault); font-size: 11px; font-weight: 600; }
.chart .run { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 1 3; }
.chart .main { stroke: var(--main); stroke-width: 2; stroke-linejoin: round; }
.chart .thin { stroke-width: 1.5; stroke-linejoin: round; }
.chart .mark { fill: var(--main); }
.chart .bar { fill: var(--main); opacity: 0.55; }
@media (prefers-color-scheme: dark) {
  .chart { --ink: #e6e9ec; --soft: #9aa5af; --line: #343b43; --paper: #14181d; --fault: #ff7b6e; --main: #6cb6f5; }
}
"""
