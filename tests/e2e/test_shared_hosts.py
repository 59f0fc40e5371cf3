"""Units of one job share the accelerators of one host, through the API of the embedded control plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builders.jobs import JobBuilder, gpu_pool
from builders.local import local_control_plane
from builders.local_jobs import a_fleet, learner_template


def all_train(units: int) -> Any:
    """That many units of the job are Training."""
    return lambda job: sum(u.get("state") == "Training" for u in ((job or {}).get("status") or {}).get("units") or ()) == units


async def test_four_units_of_two_accelerators_train_on_one_host_and_a_fifth_says_what_is_missing(tmp_path: Path) -> None:
    pool = gpu_pool("h100", acceleratorsPerHost=2, max=5, template=learner_template(QUADRATIC_STEP_MS="50"))
    job = JobBuilder("quad").with_learners(4, 5).with_pools(pool).with_training(steps=100000, syncInterval=8, fragments=8, overlapSteps=2)
    async with local_control_plane(tmp_path, a_fleet(tpus=0, gpus=1)) as cluster:
        await cluster.apply(job.build())
        found = await cluster.job("quad", all_train(4))
        pods = [pod for pod in await cluster.pods("quad") if pod["metadata"]["labels"]["diloco.dev/component"] == "learner"]
        assert [(pod["spec"]["nodeName"], pod["status"]["phase"]) for pod in pods] == [("gpu-0", "Running")] * 4
        assert [unit["slice"] for unit in found["status"]["units"] if unit["state"] == "Training"] == ["gpu-0"] * 4
        assert "the fleet has 8 accelerators on 1 host: 8 of this job" in found["status"]["pools"][0]["message"]
