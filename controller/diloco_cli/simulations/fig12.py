"""`diloco simulate fig-12`: what a unit that joins costs the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree.ElementTree import Element

import click
from diloco.simulation.fig12 import (
    CONNECTIONS,
    FREE,
    LEAST_STEPS,
    MOST_STEPS,
    OTHERS,
    PREDICTED_FREE,
    PUBLISHED_FREE,
    Distance,
    H,
    Join,
    free_until,
    joins,
    lost_by_waiting,
)
from diloco_operator.program.duration import Duration

from diloco_cli.plots import COLOURS, Axis, Line, Plot, Rule, picture
from diloco_cli.simulations.options import LOST_HELP, LOST_SHARE
from diloco_cli.simulations.output import (
    MERGED_AND_STALE,
    output_option,
    print_json,
    print_svg,
    print_table,
    print_text,
    seed_option,
)


@click.command("fig-12", short_help="What a unit that joins costs the others.")
@click.option("--seeds", type=click.IntRange(min=1), default=8, show_default=True, help="Jobs of each row.")
@click.option("--latency", type=Duration(), default="0s", show_default=True, help="From each unit to the syncer, one way, such as 40ms.")
@click.option("--loss", type=LOST_SHARE, default=0.0, show_default=True, help=LOST_HELP)
@seed_option
@output_option
def fig_12(seeds: int, latency: float, loss: float, seed: int, output: str) -> None:
    """Show what three learners lose while a fourth joins, by the time that the syncer's link takes for a copy of the model, beside
    Figure 12 of Decoupled DiLoCo (arXiv 2604.21428). H = 24, steps of 1 s. Nothing is fitted.

    The link carries the broadcasts of all and the newcomer's parameters. Elastic data parallel stops all learners for the copy. The paper's
    learners are near the syncer; with --latency and --loss they are far away.

    \b
    Exit status:
      0  done, whatever the errors are
    """
    distance = Distance(latency, loss)
    found = joins(seeds, seed, distance)
    if output == "json":
        print_json(_lines(found))
        return
    if output == "svg":
        print_svg(plot_fig_12(found))
        return
    print_table(
        ("COPY", "TRAINS", "ALONE", "BESIDE", "LOST", "STEPS", "WAITED", "PARALLEL", "MERGED", "STALE", ""),
        (_cells(join) for join in found),
        left=("",),
    )
    print_text(
        "COPY: steps that the link takes for one copy, as broadcasts carry it (bf16); a newcomer gets float32, twice as much. "
        f"ALONE: work of the {OTHERS} others that is merged without the newcomer, in percent of that on a link that costs no time. "
        f"BESIDE: with it, until it trains after so many steps (TRAINS), {LEAST_STEPS:.0f} at least. LOST: what that costs, STEPS: in "
        "steps of each of the others. WAITED: the same in closed form, if learners waited for their exchanges. PARALLEL: elastic data "
        f"parallel stops for the copy. {MERGED_AND_STALE}",
        *([_far(distance)] if distance.latency else []),
        f"Joining is free (the others lose at most {100 * FREE:.1f} %) until a copy takes {free_until(found)} steps; published "
        f"{PUBLISHED_FREE}, predicted {PREDICTED_FREE}. From {H / OTHERS:g} steps on the link does not carry the broadcasts of the "
        f"{OTHERS} alone. Published for {H} steps: as slow as elastic data parallel, which is so if learners wait "
        f"({lost_by_waiting(H)} steps). Ours train on, and {100 * found[-1].alone:.0f} % is merged over such a link without a newcomer.",
    )


def plot_fig_12(found: Sequence[Join]) -> Element:
    """Return the merged work of the others over the time of a copy."""
    alone = Line("three learners alone", [(join.copy_steps, 100 * join.alone) for join in found], COLOURS[0], dashes="6 4", marks=True)
    beside = Line("the three while a fourth joins", [(join.copy_steps, 100 * join.beside) for join in found], COLOURS[1], marks=True)
    published = Rule("published: free until here", PUBLISHED_FREE, "#999999", vertical=True)
    x, y = (
        Axis("steps that the link takes for one copy of the model", 0, max(join.copy_steps for join in found)),
        Axis("merged work, %", 0, 105),
    )
    return picture(Plot("What a unit that joins costs the others, H = 24", x, y, [published, alone, beside]))


def _cells(join: Join) -> tuple[str, ...]:
    return (
        f"{join.copy_steps}",
        f"{join.steps:.0f}" if join.trains else f"> {MOST_STEPS:.0f}",
        f"{100 * join.alone:.1f}",
        f"{100 * join.beside:.1f}",
        f"{100 * join.lost:.1f}",
        f"{join.lost_steps:.1f}",
        f"{lost_by_waiting(join.copy_steps)}",
        f"{join.copy_steps}",
        f"{join.contributions:.2f}",
        f"{join.staleness:.2f}",
        "free" if join.free else "",
    )


def _far(distance: Distance) -> str:
    return (
        f"Each learner is {1000 * distance.latency:g} ms from the syncer, and {100 * distance.loss:g} % of the segments are lost; it has "
        f"{CONNECTIONS} connections, and a copy has 10 GB. What was published has neither."
    )


def _lines(found: Sequence[Join]) -> Iterator[dict[str, Any]]:
    for join in found:
        yield {
            "copySteps": join.copy_steps,
            "trainsAfterSteps": round(join.steps, 1) if join.trains else None,
            "mergedAlone": round(join.alone, 4),
            "mergedBeside": round(join.beside, 4),
            "lostSteps": round(join.lost_steps, 2),
            "lostStepsIfWaiting": lost_by_waiting(join.copy_steps),
            "contributionsPerMerge": round(join.contributions, 3),
            "staleness": round(join.staleness, 3),
            "free": join.free,
        }
    yield {
        "figure": "fig-12",
        "value": free_until(found),
        "unit": "steps of a copy",
        "limit": PUBLISHED_FREE,
        "predicted": PREDICTED_FREE,
    }
