"""`diloco plan --syncer`: what the syncer of each job needs, compared with what it requests. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from diloco.contract import Training
from diloco.wording import bytes_text, plural
from diloco_operator.api.spec import Spec
from diloco_operator.kube.quantities import quantity
from diloco_operator.reconcile.children.pods import memory_of_syncer
from diloco_operator.reconcile.config import OperatorConfig
from diloco_operator.sizes import SyncerSizes, most_learners, syncer_sizes

from diloco_cli.manifests import Manifest
from diloco_cli.status_text import table


@dataclass(frozen=True, slots=True)
class SyncerPlan:
    name: str
    parameters: int
    training: Training
    by_learners: dict[int, SyncerSizes]
    """Needs by number of learners: for learners.min, and for the most that may take part."""
    memory: int | None
    """Bytes that the container requests, or None if it requests none."""
    storage: int
    """Bytes of the volume."""

    @property
    def lacking(self) -> list[str]:
        """Sentences about what the syncer requests too little of, with what to set."""
        most = max(self.by_learners.values(), key=lambda sizes: sizes.memory)
        sentences = []
        if self.memory is not None and self.memory < most.memory:
            sentences.append(
                f"it asks for {bytes_text(self.memory)} of memory, and needs {bytes_text(most.memory)}: set resources of the container "
                "syncer in spec.syncer.template"
            )
        if self.storage < most.storage:
            sentences.append(
                f"its volume has {bytes_text(self.storage)}, and needs {bytes_text(most.storage)}: set spec.syncer.storage.size"
            )
        return sentences


def syncer_plan(manifest: Manifest, parameters: int) -> SyncerPlan:
    spec = Spec.model_validate(manifest.obj["spec"])
    return SyncerPlan(
        manifest.name,
        parameters,
        spec.training,
        {
            learners: syncer_sizes(parameters, learners, spec.training)
            for learners in sorted({max(1, spec.learners.min), most_learners(spec)})
        },
        memory_of_syncer(spec, OperatorConfig()),
        int(quantity(spec.syncer.storage.size)),
    )


def syncer_text(plans: Sequence[SyncerPlan]) -> str:
    return "\n\n".join("\n".join(_lines(plan)) for plan in plans)


def _lines(plan: SyncerPlan) -> Iterator[str]:
    training = plan.training
    yield (
        f"{plan.name}: {plan.parameters:,} parameters, {training.compression}, syncInterval {training.sync_interval}, "
        f"{plural(training.fragments, 'fragment')}"
    )
    yield from table(
        ("LEARNERS", "MEMORY", "VOLUME", "EACH WAY, A STEP", "CORE, A STEP"),
        [
            (
                str(learners),
                bytes_text(sizes.memory),
                bytes_text(sizes.storage),
                bytes_text(sizes.bytes_per_step),
                f"{sizes.core_seconds_per_step * 1000:.0f} ms",
            )
            for learners, sizes in plan.by_learners.items()
        ],
    )
    yield "A step is one local step of all learners: divide by its seconds for bytes a second and for cores."
    yield from (lack[0].upper() + lack[1:] for lack in plan.lacking)


def syncer_json(plans: Sequence[SyncerPlan]) -> list[dict[str, Any]]:
    return [
        {
            "name": plan.name,
            "parameters": plan.parameters,
            "asksForMemory": plan.memory,
            "asksForStorage": plan.storage,
            "needs": {str(learners): asdict(sizes) for learners, sizes in plan.by_learners.items()},
            "lacking": plan.lacking,
        }
        for plan in plans
    ]
