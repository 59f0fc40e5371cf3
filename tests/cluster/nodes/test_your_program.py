"""A reader of docs/your-program.md: the images that the page's Dockerfiles make train the page's programs on a real node.

See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.document_reader import last, reading, write_files
from builders.local import condition, is_true
from builders.real_nodes import RealCluster
from nodes.images import Images

pytestmark = pytest.mark.timeout(1800)

JOBS = "training"
PAGE = "docs/your-program.md"
ENDED = "the job is done"


def written_job(checkout: Path) -> dict[str, Any]:
    """The page's job."""
    job: dict[str, Any] = yaml.safe_load((checkout / "my-training" / "job.yaml").read_text())
    return job


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = job["spec"]["pools"][0]["template"]["spec"]["containers"][0]
    return container


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the page's files in theirs."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    write_files(PAGE, folder)
    return folder


def test_an_image_from_the_learner_image_trains_its_program_as_the_page_says(
    cluster: RealCluster, project_images: Images, checkout: Path, tmp_path: Path
) -> None:
    cluster.provide_volume("my-training-state")
    job = written_job(checkout)
    assert container_of(job)["image"] == project_images.of_page["my-training"].name
    # torch itself comes on a volume, see docs/decisions/0107-packages-and-images.md.
    container_of(job)["env"].append({"name": "PYTHONPATH", "value": "/opt/torch"})
    container_of(job)["volumeMounts"] = [{"name": "packages", "mountPath": "/opt/torch", "readOnly": True}]
    volume = {"name": "packages", "persistentVolumeClaim": {"claimName": "torch-packages", "readOnly": True}}
    job["spec"]["pools"][0]["template"]["spec"]["volumes"] = [volume]
    (checkout / "my-training" / "job.yaml").write_text(yaml.safe_dump(job))

    with reading("own image", tmp_path, cluster.plane.environment) as reader:
        shown = reader.type(f"{PAGE}#in-the-cluster")
        assert ENDED in next(said for command, said in shown.items() if " logs " in command)
        assert "outer step 300 of job my-training" in last(shown)
        assert ENDED in last(reader.type(f"{PAGE}#when-it-fails"))


def test_an_image_from_plain_python_and_the_wheel_trains_its_program(cluster: RealCluster, project_images: Images, checkout: Path) -> None:
    cluster.provide_volume("my-jax-state")
    job = written_job(checkout)
    job["metadata"] = {"name": "my-jax", "namespace": JOBS}
    container_of(job)["image"] = project_images.of_page["my-jax"].name
    cluster.apply(job)
    found: dict[str, Any] = {}

    def complete() -> bool:
        found.update(cluster.find(f"/apis/diloco.dev/v1alpha1/namespaces/{JOBS}/dilocojobs/my-jax") or {})
        return is_true("Complete")(found)

    cluster.wait_for(complete, "the job to complete")
    assert found["status"]["progress"]["tokens"] > 0, condition(found, "Complete")
    assert ENDED in cluster.plane.kubectl("diloco", "logs", "my-jax", "cpu-0", "-n", JOBS).stdout
