"""Options of `diloco simulate` for what no job file says: failures, starts, spot capacity, links, time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import click
from diloco.simulation.fleet import ByPlace, Conditions, Links
from diloco.simulation.slices import Reclaims, Slowdowns
from diloco_operator.api.names import NODE_REGION, NODE_ZONE
from diloco_operator.program.duration import Duration

from diloco_cli.diloco.simulations.inputs import BadInput
from diloco_cli.diloco.simulations.options import LOST_HELP, LOST_SHARE, ForPlace, JoinTime, Rate
from diloco_cli.diloco.simulations.placement import SimulatedOperator
from diloco_cli.parameters_option import Finite, Parameters


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The options as the user gave them."""

    conditions: Conditions
    """All but `joining`, which needs the nodes of the fleet."""
    joining: tuple[tuple[str, float], ...]
    """Patterns of node names, and after how many seconds these nodes come."""
    seconds: float
    """Virtual time of a simulation."""
    seed: int

    def on(self, operator: SimulatedOperator) -> Conditions:
        """Add the times at which groups of nodes join: a group joins when its last node does. Raises `BadInput`."""
        joining: dict[str, float] = {}
        self._check_places(operator)
        for pattern, when in self.joining:
            groups = operator.groups_named(pattern)
            if not groups:
                raise BadInput(f"--join {pattern}: no node that the job could use has such a name")
            for group in groups:
                joining[group] = max(when, joining.get(group, 0.0))
        return replace(self.conditions, joining=joining)

    def _check_places(self, operator: SimulatedOperator) -> None:
        links, known = self.conditions.links, operator.places
        for flag, by_place in (("--bandwidth", links.bandwidth), ("--latency", links.latency), ("--loss", links.loss)):
            for place in by_place.of:
                if place not in known:
                    known_places = f"their places are {', '.join(known)}" if known else f"none has the label {NODE_ZONE} or {NODE_REGION}"
                    raise BadInput(f"{flag} {place}=…: no node that the job could use is in such a zone or region; {known_places}")


def assumption_options[C: Callable[..., Any]](command: C) -> C:
    """Add the options to a command, which passes their values to `assumptions_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def assumptions_of(given: Mapping[str, Any]) -> Assumptions:
    """Read the values of the options. Raises `click.UsageError` if they contradict each other."""
    bandwidth, latency, loss = (
        _by_place(given[name], default) for name, default in (("bandwidth", math.inf), ("latency", 0.0), ("loss", 0.0))
    )
    links = Links(given["parameters"], given["syncer_bandwidth"], bandwidth, latency, loss)
    if not links.parameters and not math.isinf(min(links.syncer, bandwidth.elsewhere, *bandwidth.of.values())):
        raise click.UsageError(
            "--bandwidth and --syncer-bandwidth need --parameters: what a link carries in a step depends on the size of the model"
        )
    conditions = Conditions(
        given["failure_rate"],
        given["step"],
        given["start"],
        given["compilation"],
        given["detect"],
        given["repair"],
        Reclaims(given["reclaims"], given["notice"], given["away"], given["reclaim_all"]),
        Slowdowns(given["slowdowns"], given["slow_factor"], given["slow_time"]),
        links,
    )
    return Assumptions(conditions, given["joining"], given["seconds"], given["seed"])


def _by_place(given: Sequence[tuple[str, float]], default: float) -> ByPlace:
    """Values by place. If a place has several, the last one counts."""
    values = dict(given)
    return ByPlace(values.pop("", default), values)


_OPTIONS: Final = (
    click.option(
        "--failure-rate",
        type=Finite(min=0.0),
        default=0.17,
        show_default=True,
        help="Failures of one accelerator in a year. Llama 3 reported one in 5.8 years.",
    ),
    click.option(
        "--step", type=Duration(above_zero=True), default="5s", show_default=True, help="Time of one step of a unit on a node of speed 1."
    ),
    click.option(
        "--start", type=Duration(), default="60s", show_default=True, help="Time from the slice to the running program: pod, image, start."
    ),
    click.option(
        "--compile",
        "compilation",
        type=Duration(),
        default="60s",
        show_default=True,
        help="Time from the running program to its first step.",
    ),
    click.option("--detect", type=Duration(), default="10s", show_default=True, help="Time from a failure to the next attempt."),
    click.option("--repair", type=Duration(), default="20m", show_default=True, help="Mean time until a failed slice is back."),
    click.option(
        "--reclaims",
        type=Finite(min=0.0),
        default=0.0,
        show_default=True,
        help="Times in a day that the cloud takes one spot slice or host away.",
    ),
    click.option(
        "--notice", type=Duration(), default="30s", show_default=True, help="Time between the cloud's notice and the loss of a spot slice."
    ),
    click.option("--away", type=Duration(), default="30m", show_default=True, help="Mean time until reclaimed spot capacity is back."),
    click.option("--reclaim-all", is_flag=True, help="All spot capacity goes and comes back at once."),
    click.option("--slowdowns", type=Finite(min=0.0), default=0.0, show_default=True, help="Slowdowns of one slice or host in a day."),
    click.option(
        "--slow-factor", type=Finite(min=1.0), default=2.0, show_default=True, help="Factor by which steps take longer during a slowdown."
    ),
    click.option("--slow-time", type=Duration(), default="10m", show_default=True, help="How long a slowdown takes."),
    click.option(
        "--join",
        "joining",
        type=JoinTime(),
        multiple=True,
        metavar="NODES=TIME",
        help="Nodes that come only after that time, by name or pattern, such as h100-*=2h. May be given several times.",
    ),
    click.option("--parameters", type=Parameters(), default=0, help="Parameters of the model, such as 7B: bytes and bandwidths need them."),
    click.option(
        "--bandwidth",
        type=ForPlace(Rate()),
        multiple=True,
        metavar="[PLACE=]RATE",
        help="Bandwidth of each unit's link, each direction, such as 5Gbit/s, or us-east1=1Gbit/s in that region or zone.  "
        "[default: no limit]",
    ),
    click.option(
        "--syncer-bandwidth",
        type=Rate(),
        default=math.inf,
        help="Bandwidth of the syncer's link, which all units share.  [default: no limit]",
    ),
    click.option(
        "--latency",
        type=ForPlace(Duration()),
        multiple=True,
        metavar="[PLACE=]DURATION",
        help="One-way latency between each unit and the syncer, such as 5ms, or us-east1=40ms for that region or zone.  [default: 0s]",
    ),
    click.option(
        "--loss",
        type=ForPlace(LOST_SHARE),
        multiple=True,
        metavar="[PLACE=]SHARE",
        help=f"{LOST_HELP}  [default: 0]",
    ),
    click.option(
        "--time", "seconds", type=Duration(above_zero=True), default="12h", show_default=True, help="Virtual time of each simulation."
    ),
    click.option(
        "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="The same seed gives the same figures on each machine."
    ),
)
