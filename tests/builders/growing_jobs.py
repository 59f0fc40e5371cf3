"""Jobs whose nodes an autoscaler makes; they train for as long as a test needs them."""

from __future__ import annotations

from collections.abc import Mapping

from builders.jobs import JobBuilder, Obj, gpu_pool, tpu_pool
from builders.local_jobs import learner_template


def a_growing_job(
    name: str, *pools: str, min: int, max: int = 0, timeouts: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
) -> Obj:
    """A job that never ends, with pools that ask the autoscaler in their order, each for one unit of one host: `h100`, `v6e` and `v5p`.
    `timeouts`: of the provisioning of some of them; the others wait ten minutes."""
    template = learner_template(60, QUADRATIC_STEP_MS=100)
    if annotations:
        template["metadata"] = {"annotations": dict(annotations)}

    def asks(pool: str) -> Obj:
        provisioning = {"mode": "Autoscaler", "timeout": (timeouts or {}).get(pool, "10m")}
        return {"provisioning": provisioning, "template": template, "max": 1}

    made = {
        "h100": gpu_pool("h100", hosts=1, acceleratorsPerHost=8, **asks("h100")),
        "v6e": tpu_pool("v6e", "tpu-v6e", "2x2", **asks("v6e")),
        "v5p": tpu_pool("v5p", "tpu-v5p", "2x2x1", **asks("v5p")),
    }
    training = {"steps": 1_000_000, "syncInterval": 8, "fragments": 8, "overlapSteps": 2}
    builder = (
        JobBuilder(name).with_learners(min, max or min).with_restarts(5, initial="0s").with_spec(placement={"objective": "Preference"})
    )
    return builder.with_pools(*(made[pool] for pool in pools)).with_training(**training).build()


def contributing(job: Obj | None) -> int:
    return int(((job or {}).get("status") or {}).get("learners", {}).get("contributing", 0))
