"""What `diloco plan --goodput` shows: a row or a JSON object for each setting, or a plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from diloco.goodput import BADPUT
from diloco.wording import plural
from diloco_operator.api.spec import Spec

from diloco_cli.plots import COLOURS, Axis, Line, Marks, Plot, picture
from diloco_cli.simulations.assumptions import Assumptions
from diloco_cli.simulations.goodput import NOISE, Found, Settings, Yield
from diloco_cli.simulations.options import rate_text
from diloco_cli.simulations.output import print_table, print_text
from diloco_cli.view_text import count


def print_goodput(found: Found, spec: Spec, assumptions: Assumptions, seconds: float) -> None:
    """Print the answer, the table, and what it means. `seconds`: of real time that the search took."""
    best = found.best
    print_text(
        f"Most tokens per hour: {_all(best.settings)}: {count(best.tokens_per_hour)} tokens an hour in merges, with "
        f"{plural(best.settings.hardware.accelerators, 'accelerator')}.",
        "",
    )
    links = bool(assumptions.conditions.links.parameters)
    columns = ("", "TOKENS/H", "%", "GOODPUT", "MERGED", "STALE", "ACCELERATORS", "TOKENS/H EACH", *(("UP", "DOWN") if links else ()))
    print_table(columns, (_cells(name, row, best, links=links) for name, row in _named(found)), left=("",))
    print_text(
        "",
        "Each row after those of the best and the file differs from the best in one thing. TOKENS/H: tokens that come into merges in an "
        "hour; %: of the best. GOODPUT: percent of the time of the units' slices that went into steps. MERGED: units in each merge. STALE: "
        "outer steps since a unit's last contribution. TOKENS/H EACH: of each accelerator.",
        *(["UP, DOWN: what all units and the syncer send, in the mean over all of the time, with what is sent again."] if links else []),
        f"Tokens that differ by less than {100 * NOISE:.0f} % are taken for equal; of equal settings the best one has the fewest "
        "accelerators, then the fewest changes of the file. What a model learns with other settings, no simulation says.",
        *_notes(found.best.settings, spec),
        f"{plural(found.simulations, 'simulation')} of {assumptions.seconds / 3600:g} virtual hours took {seconds:.0f} s.",
    )


def goodput_json(found: Found, seconds: float) -> dict[str, Any]:
    """Return all of it as data. Shares are 0..1."""
    return {
        "best": _object(found.best),
        "asInFile": _object(found.as_in_file),
        "hardware": [_object(row) for row in found.hardware],
        "exchange": [_object(row) for row in found.exchange],
        "quorum": [_object(row) for row in found.quorum],
        "simulations": found.simulations,
        "searchSeconds": round(seconds, 1),
    }


def plot_goodput(name: str, found: Found) -> Element:
    """Tokens per hour over accelerators, and over H by coding; the best setting is marked."""
    most = max(row.tokens_per_hour for row in (*found.hardware, *found.exchange))
    scale, unit = next(
        (scale, unit) for scale, unit in ((1e12, "T "), (1e9, "G "), (1e6, "M "), (1e3, "k "), (1.0, "")) if most >= scale or scale == 1
    )
    y = Axis(f"{unit}tokens an hour", 0, 1.05 * most / scale or 1.0)

    def points(rows: Sequence[Yield]) -> list[tuple[float, float]]:
        return [(row.settings.hardware.accelerators, row.tokens_per_hour / scale) for row in rows]

    accelerators = sorted({row.settings.hardware.accelerators for row in found.hardware})
    best = found.best
    hardware = [
        Marks("pools and units", points(found.hardware), COLOURS[0], hollow=True),
        Marks("the best", points([best]), COLOURS[1]),
    ]
    intervals = sorted({row.settings.sync_interval for row in found.exchange})
    lines = []
    for number, compression in enumerate(dict.fromkeys(row.settings.compression for row in found.exchange)):
        line = [
            (row.settings.sync_interval, row.tokens_per_hour / scale) for row in found.exchange if row.settings.compression == compression
        ]
        lines.append(Line(compression, sorted(line), COLOURS[(2, 3, 5)[number]], dashes=("", "6 4", "2 3")[number], marks=True))
    at_best = Marks("the best", [(best.settings.sync_interval, best.tokens_per_hour / scale)], COLOURS[1])
    return picture(
        Plot(f"{name}: pools and units", Axis("accelerators", 0, 1.05 * accelerators[-1]), y, hardware),
        Plot(
            "Exchange",
            Axis("H", intervals[0] / 1.3, intervals[-1] * 1.3, logarithmic=True, labels=[(each, f"{each}") for each in intervals]),
            y,
            [*lines, at_best],
        ),
    )


def _named(found: Found) -> Iterator[tuple[str, Yield]]:
    """Yield the rows with what each is called: the best, the file's, and what differs from the best."""
    best = found.best
    yield "best" if found.as_in_file != best else "best, as in the file", best
    if found.as_in_file != best:
        yield "as in the file", found.as_in_file
    for row in found.hardware:
        if row != best:
            yield _hardware(row.settings), row
    for row in found.exchange:
        if row != best:
            yield _exchange(row.settings), row
    for row in found.quorum:
        if row != best:
            yield f"quorum {row.settings.quorum}", row


def _hardware(settings: Settings) -> str:
    return ", ".join(f"{number} {pool}" for pool, number in settings.hardware.by_pool)


def _exchange(settings: Settings) -> str:
    return f"H {settings.sync_interval}, {settings.compression}"


def _all(settings: Settings) -> str:
    return f"{plural(settings.hardware.units, 'unit')} ({_hardware(settings)}), {_exchange(settings)}, quorum {settings.quorum}"


def _cells(name: str, row: Yield, best: Yield, *, links: bool) -> tuple[str, ...]:
    outcome = row.outcome
    traffic = (rate_text(outcome.up_bits / outcome.seconds), rate_text(outcome.down_bits / outcome.seconds)) if links else ()
    return (
        name,
        count(row.tokens_per_hour),
        f"{100 * row.tokens_per_hour / best.tokens_per_hour:.1f}" if best.tokens_per_hour else "-",
        f"{100 * outcome.goodput:.1f}",
        f"{outcome.contributions:.2f}",
        f"{outcome.staleness:.2f}",
        f"{row.settings.hardware.accelerators}",
        count(row.tokens_per_accelerator_hour),
        *traffic,
    )


def _notes(best: Settings, spec: Spec) -> Iterator[str]:
    """Yield what else of the file has to change."""
    if best.quorum > spec.learners.min:
        yield f"A quorum of {best.quorum} needs learners.min of as many."
    if best.sync_interval < spec.training.fragments:
        yield f"H = {best.sync_interval} needs at most as many fragments; a job that runs keeps those that it has."


def _object(row: Yield) -> dict[str, Any]:
    settings, outcome = row.settings, row.outcome
    return {
        "units": settings.hardware.units,
        "pools": dict(settings.hardware.by_pool),
        "accelerators": settings.hardware.accelerators,
        "syncInterval": settings.sync_interval,
        "compression": settings.compression,
        "quorum": settings.quorum,
        "tokensPerHour": round(row.tokens_per_hour),
        "tokensPerAcceleratorHour": round(row.tokens_per_accelerator_hour),
        "goodput": round(outcome.goodput, 4),
        "uptime": round(outcome.uptime, 4),
        "badput": {use.value: round(outcome.accounts.share(use), 4) for use in BADPUT},
        "contributionsPerMerge": round(outcome.contributions, 3),
        "mergedTokens": round(outcome.merged_tokens, 4),
        "staleness": round(outcome.staleness, 3),
        "failures": outcome.failures,
        "bytes": {"up": round(outcome.up_bits / 8), "down": round(outcome.down_bits / 8)},
    }
