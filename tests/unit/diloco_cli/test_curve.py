"""The loss curve in a terminal."""

from __future__ import annotations

import math

import pytest
from diloco_cli.curve import FEWEST_POINTS, Paper, curve_lines
from diloco_operator.api.losses import LossPoint
from diloco_operator.api.status import Progress
from hypothesis import given
from hypothesis import strategies as st


def progress(training: list[tuple[int, float]], held_out: list[tuple[int, float]] | None = None) -> Progress:
    return Progress(
        losses=tuple(LossPoint(step, loss) for step, loss in training),
        held_out_losses=tuple(LossPoint(step, loss) for step, loss in held_out or []),
    )


DECAY = progress([(step, 1 + 4 * 2 ** (-step / 10)) for step in range(0, 61, 2)], [(60, 1.5)])
"""From 5 to 1.0625, halved every ten steps."""


def test_a_curve_at_a_fixed_width() -> None:
    assert (
        "\n".join(curve_lines(DECAY, Paper(60, unicode=True)))
        == """\
loss by outer step: 1.062 at step 60; ◆ held-out loss 1.5 at step 60
5.00 ┤⠑⢄
     │  ⠑⢄⡀
     │    ⠈⠒⢄
3.03 ┤       ⠉⠢⠤⣀⡀
     │           ⠈⠒⠒⠤⣀
     │                ⠉⠑⠒⠒⠒⠤⢄⣀⣀⣀⡀                          ◆
1.06 ┤                          ⠈⠉⠉⠉⠒⠒⠒⠒⠒⠤⠤⠤⠤⠤⠤⠤⠤⠤⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀
     └──────────────────────────────────────────────────────
      0                        30                         60"""
    )


def test_a_curve_in_ascii_alone() -> None:
    lines = curve_lines(DECAY, Paper(60, unicode=False))
    assert (
        "\n".join(lines)
        == """\
loss by outer step: 1.062 at step 60; o held-out loss 1.5 at step 60
5.00 +'.
     |  ''.
     |     '.
3.03 +       ''...
     |            ''....
     |                  '''.....                           o
1.06 +                          '''''''''''''...............
     +------------------------------------------------------
      0                        30                         60"""
    )
    assert all(line.isascii() for line in lines)


@pytest.mark.parametrize("count", range(FEWEST_POINTS))
def test_too_few_points_are_no_curve(count: int) -> None:
    assert curve_lines(progress([(step, 1.0) for step in range(count)], [(step, 1.0) for step in range(9)]), Paper(80, unicode=True)) == []


LOSSES = st.floats(allow_nan=False, allow_infinity=False)
CURVES = st.dictionaries(st.integers(0, 2**63 - 1), LOSSES, min_size=3, max_size=64).map(lambda points: sorted(points.items()))


@given(CURVES, st.lists(st.tuples(st.integers(0, 2**63 - 1), LOSSES), max_size=3), st.integers(0, 300), st.booleans())
def test_every_curve_fits_its_paper(
    training: list[tuple[int, float]], held_out: list[tuple[int, float]], width: int, unicode: bool
) -> None:
    lines = curve_lines(progress(training, sorted(dict(held_out).items())), Paper(width, unicode))
    assert len(lines) == 10
    assert max(map(len, lines[1:])) <= max(width, 40)
    assert unicode or "".join(lines).isascii()
    assert "inf" not in "".join(lines)


def test_a_curve_begins_and_ends_at_its_values() -> None:
    """Loss 2 at the first step is the top left corner of the plot, loss 1 at the last step the bottom right one."""
    rows = curve_lines(progress([(1, 2.0), (51, 1.5), (101, 1.0)]), Paper(57, unicode=False))[1:8]
    assert rows[0].startswith("2.00 +'")
    assert rows[-1].startswith("1.00 +")
    assert rows[-1].endswith(".")
    assert len(rows[-1]) == 57
    assert rows[3].startswith("1.50 +")


def test_a_loss_that_never_changes_is_a_line_in_the_middle() -> None:
    rows = curve_lines(progress([(step, 3.0) for step in range(10)]), Paper(60, unicode=False))[1:8]
    assert [row for row in rows if "." in row[7:] or "'" in row[7:]] == [rows[3]]
    assert rows[3].startswith("3.000 +")


@pytest.mark.parametrize(
    ("encoding", "environment", "unicode"),
    [
        ("utf-8", {"LANG": "en_US.UTF-8"}, True),
        ("UTF-8", {"LANG": "C", "LC_CTYPE": "C.utf8"}, True),
        ("utf-8", {"LANG": "en_US.UTF-8", "LC_ALL": "C"}, False),
        ("utf-8", {"LANG": "de_DE.ISO-8859-1"}, False),
        ("utf-8", {}, False),
        ("utf-8", {"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),  # as Python makes it of LANG=C
        ("utf-8", {"LC_CTYPE": "C.UTF-8", "LC_ALL": "C.UTF-8"}, True),
        ("utf-8", {"LANG": "C.UTF-8", "LC_CTYPE": "C.UTF-8"}, True),
        ("ascii", {"LANG": "en_US.UTF-8"}, False),
        ("utf-8", {"LANG": "en_US.UTF-8", "TERM": "linux"}, False),
        ("utf-8", {"LANG": "en_US.UTF-8", "TERM": "xterm-256color"}, True),
    ],
)
def test_a_terminal_without_unicode_gets_ascii(encoding: str, environment: dict[str, str], unicode: bool) -> None:
    assert Paper.of(80, encoding, environment) == Paper(80, unicode)


def test_labels_tell_close_losses_apart() -> None:
    lines = curve_lines(progress([(step, 2 + step * 1e-4) for step in range(3)]), Paper(60, unicode=False))
    labels = [line.split(" +")[0].strip() for line in lines[1:8] if " +" in line]
    assert labels == ["2.000200", "2.000100", "2.000000"]
    assert math.isclose(float(labels[0]), 2.0002)
