"""`python -m benchmarks [--placement | --evidence | --sizes | --kube | --quality | --peers] [--smoke] [name...]`: run benchmarks.

One JSON line for each figure.

Exit status 1 when a figure misses its limit, when a benchmark raises, or when it does not print a figure that it has; 2 for a wrong name.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from benchmarks.figure import Figure, measured_commit


class Module(Protocol):
    """A benchmark's module."""

    def measure(self, *, smoke: bool) -> Iterable[Figure]:
        """Measure, and yield the figures. `smoke`: use the smallest size that runs all of the code. The values mean nothing then."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    module: str
    """Imported only when it runs: not every benchmark needs every framework."""
    figures: tuple[str, ...]
    """The names of the benchmark's figures, in the order of their lines."""


# Within a group, the quick ones come first.
OPERATOR_AND_EXCHANGE: Mapping[str, Benchmark] = {
    "reconcile-pass": Benchmark("benchmarks.reconcile_pass", ("reconcile-pass", "reconcile-pass-linear")),
    "slice-flip": Benchmark("benchmarks.slice_flip", ("slice-flip",)),
    "strangers-memory": Benchmark("benchmarks.strangers_memory", ("strangers-memory",)),
    "allotment-stall": Benchmark("benchmarks.allotment_stall", ("allotment-stall", "lost-slice")),
    "competing-classes": Benchmark("benchmarks.competing_classes", ("competing-classes",)),
    "start-many-jobs": Benchmark("benchmarks.start_many_jobs", ("start-many-jobs", "start-many-jobs-neighbour")),
    "ledger-exact": Benchmark("benchmarks.ledger_exact", ("ledger-exact",)),
    "weight-error": Benchmark("benchmarks.weight_error", ("weight-error",)),
    "guard-false": Benchmark("benchmarks.guard_false", ("guard-false",)),
    "poison": Benchmark("benchmarks.poison", ("poison",)),
    "poison-loss": Benchmark("benchmarks.poison_loss", ("poison-loss", "poison-loss-let-through")),
    "uneven-clock": Benchmark("benchmarks.uneven_clock", ("uneven-clock", "uneven-windows", "uneven-merges", "grace-window")),
    "decision-cost": Benchmark("benchmarks.decision_cost", ("decision-cost", "decision-growth")),
    "idle-drift": Benchmark("benchmarks.idle_drift", ("idle-drift",)),
    "int4-feedback": Benchmark("benchmarks.int4_feedback", ("int4-feedback",)),
    "pods-512-hosts": Benchmark("benchmarks.pods_of_a_unit", ("pods-512-hosts",)),
    "dashboard": Benchmark("benchmarks.dashboard", ("dashboard-first-paint", "dashboard-update")),
    "failure-to-replacement": Benchmark("benchmarks.failure_to_replacement", ("failure-to-replacement",)),
    "exchange-overhead": Benchmark("benchmarks.exchange_overhead", ("exchange-overhead",)),
    "outer-step-cost": Benchmark("benchmarks.outer_step_cost", ("outer-step-cost-syncer", "outer-step-cost-learner")),
    "bytes-per-step": Benchmark("benchmarks.bytes_per_step", ("bytes-per-step-None", "bytes-per-step-BFloat16", "bytes-per-step-Int4")),
    "island-bytes": Benchmark("benchmarks.island_bytes", ("island-bytes",)),
    "pause": Benchmark("benchmarks.pause", ("pause-memory", "pause-writes")),
    "survivor-gap-1MiB": Benchmark("benchmarks.survivor_gap", ("survivor-gap-1MiB",)),
    "commit-record-4MiB": Benchmark("benchmarks.commit_record", ("commit-record-4MiB",)),
    "syncer-restart": Benchmark("benchmarks.syncer_restart", ("syncer-restart", "syncer-restart-lost")),
    "rejoin-12B": Benchmark("benchmarks.rejoin_large", ("rejoin-12B",)),
    "rejoin": Benchmark("benchmarks.rejoin", ("rejoin-4MiB", "donor-tax-4MiB", "rejoin-256MiB", "donor-tax-256MiB")),
    "snapshot-tax": Benchmark("benchmarks.snapshot_tax", ("snapshot-tax-4MiB", "snapshot-tax-256MiB")),
    "resume": Benchmark("benchmarks.resume", ("resume-4MiB", "resume-256MiB")),
    "restart-bump": Benchmark("benchmarks.restart_bump", ("restart-bump",)),
    "rank-tax": Benchmark("benchmarks.rank_tax", ("rank-tax",)),
    "rank-death": Benchmark("benchmarks.rank_death", ("rank-death", "rank-death-gap")),
    "callback-tax": Benchmark("benchmarks.callback_tax", ("callback-tax",)),
    "units-per-second": Benchmark("benchmarks.units_per_second", ("units-per-second",)),
}
"""`make bench`."""
PLACEMENT: Mapping[str, Benchmark] = {
    "placement-time": Benchmark(
        "benchmarks.placement_time",
        ("full-placement", "million-chips", "growth-slices", "growth-jobs"),
    ),
    "stability": Benchmark("benchmarks.placement_stability", ("stability",)),
    "fairness": Benchmark("benchmarks.placement_fairness", ("fairness",)),
    "placement-trace": Benchmark("benchmarks.placement_trace", ("placement-trace-0.8", "placement-trace-1.1", "placement-trace-1.5")),
    "placement-gap": Benchmark("benchmarks.placement_gap", ("optimality-small", "optimality-groups", "optimality-large")),
}
"""`make bench-placement`: the flow that places units, against an exact reference and against simpler rules."""
EVIDENCE: Mapping[str, Benchmark] = {
    "table-13": Benchmark("benchmarks.evidence.table13", ("table-13",)),
    "table-4": Benchmark("benchmarks.evidence.table4", ("table-4",)),
    "table-5": Benchmark("benchmarks.evidence.table5", ("table-5",)),
    "fig-12": Benchmark("benchmarks.evidence.fig12", ("fig-12",)),
    "table-1": Benchmark("benchmarks.evidence.table1", ("table-1",)),
    "simulator-truth": Benchmark("benchmarks.truth.truth", ("simulator-truth", "scavenged-units")),
    "wan": Benchmark("benchmarks.wan.wide_area", ("wan-speedup", "wan-step")),
    "parts": Benchmark("benchmarks.wan.parts", ("parts-step", "parts-gap")),
}
"""`make evidence`: what the simulator has beside published figures, with plots, and real jobs across regions."""
SIZES: Mapping[str, Benchmark] = {
    "int4": Benchmark("benchmarks.sizes.int4", ("int4-encode", "int4-decode")),
    "merge": Benchmark("benchmarks.sizes.merge", ("merge",)),
    "wire": Benchmark("benchmarks.sizes.wire", ("wire",)),
    "engine": Benchmark("benchmarks.sizes.engine", ("engine",)),
    "exchange-overhead-sizes": Benchmark("benchmarks.sizes.exchange_overhead", ("exchange-overhead-64MiB", "exchange-overhead-1GiB")),
    "loop-lag": Benchmark("benchmarks.sizes.loop_lag", ("loop-lag",)),
    "syncer-memory": Benchmark("benchmarks.sizes.syncer_memory", ("syncer-memory", "syncer-memory-64")),
    "rejoin-3GiB": Benchmark("benchmarks.sizes.rejoin", ("rejoin-3GiB", "donor-tax-3GiB")),
    "step-tax": Benchmark("benchmarks.sizes.step_tax", ("step-tax-torch", "step-tax-torch-axes", "step-tax-jax", "step-tax-jax-axes")),
    "link-heal": Benchmark("benchmarks.sizes.link_heal", ("link-heal-join", "link-heal-outage")),
    "uplink-overload": Benchmark(
        "benchmarks.sizes.uplink_overload", ("uplink-overload-1.05", "uplink-overload-1.2", "uplink-overload-2.0")
    ),
    "commit-record-64MiB": Benchmark("benchmarks.sizes.commit_record", ("commit-record-64MiB",)),
    "commit-record-1GiB": Benchmark("benchmarks.sizes.large_commit_record", ("commit-record-1GiB",)),
    "survivor-gap-sizes": Benchmark("benchmarks.sizes.survivor_gap", ("survivor-gap-64MiB", "survivor-gap-1GiB")),
}
"""`make bench-sizes`: models of real sizes. Needs 16 GiB of memory."""
QUALITY: Mapping[str, Benchmark] = {
    "mixture-merge": Benchmark("benchmarks.mixture_merge", ("mixture-merge",)),
    "learning-law": Benchmark("benchmarks.law.law", ("learning-law",)),
    "failure-quality": Benchmark("benchmarks.law.failures", ("failure-quality",)),
    "learning-parity": Benchmark("benchmarks.learning_parity", ("learning-parity",)),
}
"""`make bench-quality`: models are trained to the end."""
KUBE: Mapping[str, Benchmark] = {
    "blast-radius": Benchmark("benchmarks.kube.blast_radius", ("blast-radius",)),
    "memory-per-1000-pods": Benchmark("benchmarks.kube.memory", ("memory-per-1000-pods",)),
    "create-rate": Benchmark("benchmarks.kube.create_rate", ("writes-per-unit", "create-rate")),
    "mass-failure": Benchmark("benchmarks.kube.mass_failure", ("mass-failure",)),
    "noisy-neighbour": Benchmark("benchmarks.kube.noisy_neighbour", ("noisy-neighbour",)),
    "tenant-flood": Benchmark("benchmarks.kube.tenant_flood", ("tenant-flood", "loop-lag-operator")),
    "mixed-sizes": Benchmark("benchmarks.kube.mixed_sizes", ("mixed-sizes",)),
    "scale": Benchmark("benchmarks.kube.scale", ("scale-from-zero", "scale-to-zero")),
    "cuts": Benchmark("benchmarks.kube.cuts", ("cut-gap",)),
    "kueue-admission": Benchmark("benchmarks.kube.kueue_admission", ("kueue-admission",)),
}
"""`make bench-kube`: on a real API server and etcd, with Karpenter and Kueue, which hack/kube/assets.sh provides."""
PEERS: Mapping[str, Benchmark] = {
    "gradientmail": Benchmark("benchmarks.peers.gradientmail", ("peer-gradientmail",)),
    "torchft": Benchmark("benchmarks.peers.torchft", ("peer-torchft", "peer-torchft-tuned")),
    "jobset": Benchmark("benchmarks.peers.jobset", ("peer-jobset",)),
    "wan": EVIDENCE["wan"],
}
"""`make bench-peers`: other systems beside ours. Downloads them once, so no smoke run includes this group."""
SMOKED: Mapping[str, Benchmark] = {**OPERATOR_AND_EXCHANGE, **PLACEMENT, **EVIDENCE, **SIZES, **QUALITY, **KUBE}
ALL: Mapping[str, Benchmark] = {**SMOKED, **PEERS}


def run(name: str, benchmark: Benchmark, *, smoke: bool, commit: str) -> bool:
    """Print the benchmark's lines. True if every figure was printed and, except in a smoke run, is within its limit."""
    printed: list[str] = []
    ok = True
    try:
        module = cast("Module", importlib.import_module(benchmark.module))
        for figure in module.measure(smoke=smoke):
            sys.stdout.write(figure.line(smoke=smoke, commit=commit) + "\n")
            sys.stdout.flush()
            printed.append(figure.name)
            ok = ok and (smoke or figure.ok)
    except Exception:  # noqa: BLE001 -- the other benchmarks still run; the exit status reports it
        traceback.print_exc()
        ok = False
    missing = [figure for figure in benchmark.figures if figure not in printed]
    if missing:
        sys.stderr.write(f"{name}: no line for {', '.join(missing)}\n")
    return ok and not missing


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="One JSON line for each figure.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(ALL)}; default: all of the group")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--placement", action="store_true", help="the flow that places units")
    group.add_argument(
        "--evidence",
        action="store_true",
        help="figures beside published ones; draws docs/results/plots; real jobs across regions need root",
    )
    group.add_argument("--sizes", action="store_true", help="the group with models of real sizes")
    group.add_argument("--kube", action="store_true", help="the groups that need a real API server")
    group.add_argument("--quality", action="store_true", help="the group that trains models to the end")
    group.add_argument("--peers", action="store_true", help="other systems beside ours; downloads them, needs root")
    parser.add_argument("--smoke", action="store_true", help="all groups but that of peers in a small size; no limit is judged")
    given = parser.parse_args(arguments)
    group_of = [
        (given.placement, PLACEMENT),
        (given.evidence, EVIDENCE),
        (given.sizes, SIZES),
        (given.kube, KUBE),
        (given.quality, QUALITY),
        (given.peers, PEERS),
        (given.smoke, SMOKED),
    ]
    chosen = next((benchmarks for asked, benchmarks in group_of if asked), OPERATOR_AND_EXCHANGE)
    names: list[str] = given.names or list(chosen)
    if unknown := [name for name in names if name not in ALL]:
        parser.error(f"no benchmark is named {', '.join(unknown)}; the names are {', '.join(ALL)}")
    commit = measured_commit()
    results = [run(name, ALL[name], smoke=given.smoke, commit=commit) for name in names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
