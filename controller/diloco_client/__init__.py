"""Runs DiLoCoJobs of a cluster from Python: a `Client` creates, awaits, reads, suspends and exports them.

    from diloco_client import Client

    with Client.connect(namespace="research") as client:
        client.create("job.yaml")
        job = client.wait("lm", "Complete", seconds=86_400, progress=True)
        client.export("lm", "lm.safetensors")

A job has the types of the API: `DiLoCoJob`, its `Spec` and its `Status`.

See docs/decisions/0258-submit-and-client.md.
"""

from diloco.contract import Training
from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.job import DiLoCoJob, ObjectMeta
from diloco_operator.api.spec import Learners, Pool, Spec
from diloco_operator.api.status import Condition, Status, UnitStatus

from diloco_client.client import Client, ClientError, Exported, JobFailed

__all__ = [
    "Client",
    "ClientError",
    "Condition",
    "ConditionType",
    "DiLoCoJob",
    "Exported",
    "JobFailed",
    "Learners",
    "ObjectMeta",
    "Pool",
    "Spec",
    "Status",
    "Training",
    "UnitStatus",
]
