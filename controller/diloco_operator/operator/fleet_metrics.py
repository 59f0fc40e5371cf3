"""The slices of the fleet by state, for /metrics. docs/metrics.md lists every metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from diloco_operator.fleet.slices import SliceKind, SliceState


class FleetMetrics(Collector):
    """The fleet as one operator sees it. Only the leader reports it, or every sum over replicas would count slices twice."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._states: Callable[[], Mapping[tuple[SliceKind, SliceState], int]] = dict
        self._sees_other_pods: Callable[[], bool] | None = None
        self._seen: Mapping[tuple[SliceKind, SliceState], int] | None = None
        registry.register(self)

    def follow(self, states: Callable[[], Mapping[tuple[SliceKind, SliceState], int]], sees_other_pods: Callable[[], bool]) -> None:
        self._states, self._sees_other_pods = states, sees_other_pods

    def look(self) -> None:
        """Count the slices for the next `collect`, which may run in another thread while the loop changes the fleet."""
        self._seen = self._states()

    def describe(self) -> Iterable[Metric]:
        return _families()

    def collect(self) -> Iterator[Metric]:
        slices, visible = _families()
        counts: dict[tuple[str, str, str], int] = {}
        states = self._seen if self._seen is not None else self._states()
        self._seen = None
        for (kind, state), count in states.items():
            labels = (kind.accelerator, kind.topology, state.value)
            counts[labels] = counts.get(labels, 0) + count
        for labels, count in sorted(counts.items()):
            slices.add_metric(labels, count)
        if self._sees_other_pods is not None:
            visible.add_metric((), float(self._sees_other_pods()))
        yield slices
        yield visible


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily("diloco_fleet_slices", "Slices of the fleet by state", labels=("accelerator", "topology", "state")),
        GaugeMetricFamily("diloco_operator_sees_other_pods", "1: slices that other pods use are known"),
    )
