"""The Python client at work: a real control plane, the operator, and units that train."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from builders.control_plane import ControlPlane
from builders.kube_jobs import kube_cluster, operator
from builders.local_jobs import a_fleet, a_quadratic_job
from diloco_client import Client, ClientError, DiLoCoJob, JobFailed, ObjectMeta
from diloco_operator.api.job import load
from safetensors.numpy import load_file

pytestmark = [pytest.mark.timeout(1800), pytest.mark.xdist_group("many-learners")]  # one control plane with test_kube_jobs.py
WITHIN = 600.0
PAGE = Path(__file__).parents[2] / "docs/guide/python.md"


async def test_a_program_creates_awaits_reads_suspends_exports_and_deletes_a_job(
    jobs_plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with kube_cluster(jobs_plane, tmp_path, a_fleet(tpus=2, gpus=1)):
        with operator(jobs_plane, tmp_path):
            # In another thread: the simulated kubelets run in this one's event loop.
            await asyncio.to_thread(lives_its_life, jobs_plane, tmp_path)
            await asyncio.to_thread(the_program_of_the_page_runs, jobs_plane, tmp_path)
    shown = capsys.readouterr().out
    assert "\rclient: Training (QuorumContributing): 3 of 3 learners contribute" in shown


def lives_its_life(plane: ControlPlane, folder: Path) -> None:
    spec = load(a_quadratic_job(steps=1_000_000, every_steps=4, environment={"QUADRATIC_STEP_MS": 100})).spec
    with Client.connect(kubeconfig=str(plane.kubeconfig)) as client:
        made = client.create(DiLoCoJob(metadata=ObjectMeta(name="client"), spec=spec))
        assert (made.metadata.namespace, made.spec) == ("default", spec)
        with pytest.raises(ClientError, match='"client" already exists'):
            client.create(made)
        client.wait("client", "Training", seconds=WITHIN, progress=True)
        while client.get("client").status.learners.contributing < 3:
            client.wait("client", "Training", seconds=WITHIN)
        client.wait("client", "Training", seconds=WITHIN, progress=True)
        assert [job.metadata.name for job in client.list()] == ["client"]
        assert any("unit v5p-0 joins" in line for line in client.logs("client", tail=1000))
        followed = client.logs("client", "v5p-0", follow=True)
        assert next(followed)
        followed.close()  # type: ignore[attr-defined]
        with pytest.raises(TimeoutError, match=r'job "client" is not Suspended after 0\.5 s: '):
            client.wait("client", "Suspended", seconds=0.5)

        client.suspend("client")
        parked = client.wait("client", "Suspended", seconds=WITHIN).status.progress
        assert parked is not None
        exported = client.export("client", folder)
        assert exported.path == folder / "model.safetensors"
        assert exported.outer_step >= parked.step, "the syncer may have taken a step after its last report"
        assert sum(tensor.size for tensor in load_file(exported.path).values()) == exported.parameters
        with pytest.raises(ClientError, match=r"there is no snapshot of outer step 7777 in "):
            client.export("client", folder / "none.safetensors", step=7777)

        assert client.resume("client").spec.suspend is False
        assert client.wait("client", "Training", seconds=WITHIN).metadata.name == "client"
        client.delete("client")
        with pytest.raises(ClientError, match=r'no DiLoCoJob "client"|was deleted'):
            client.wait("client", seconds=WITHIN)

        crashes = a_quadratic_job("crashes", limit=0, environment={"QUADRATIC_CRASH_AT_STEP": 1})
        (folder / "crashes.yaml").write_text(yaml.safe_dump(crashes))
        client.create(folder / "crashes.yaml")
        with pytest.raises(JobFailed, match='job "crashes" failed: RestartsExhausted: ') as failed:
            client.wait("crashes", seconds=WITHIN)
        assert failed.value.job.metadata.name == "crashes"
        client.delete("crashes")


def the_program_of_the_page_runs(plane: ControlPlane, folder: Path) -> None:
    found = re.search(r"<!-- client -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    (folder / "job.yaml").write_text(yaml.safe_dump(a_quadratic_job("bytes-lm", steps=40)))
    done = subprocess.run(
        [sys.executable, "-c", found[1]],
        cwd=folder,
        env=dict(plane.environment),
        capture_output=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    shown = done.stdout.decode()
    assert shown.count("\r") > 1, "one line, written anew"
    assert re.search(r"\n[\d.e-]+ [0-9a-f]{64}\n$", shown)
    with Client.connect(kubeconfig=str(plane.kubeconfig)) as client:
        client.delete("bytes-lm")
