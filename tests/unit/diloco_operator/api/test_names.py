"""Each name that objects, pods and the chart share is written out in one module: `api.names`, or `diloco.contract` where pods need it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from diloco import contract
from diloco_operator.api import names
from diloco_operator.api.names import is_pod_group, learner_pod_name, pod_dns_name, pod_group_name, service_name, syncer_pod_name

ROOT = Path(__file__).parents[4]
SOURCES = (ROOT / "controller" / "diloco_operator", ROOT / "runtimes" / "diloco")
CHART = ROOT / "helm" / "diloco-operator"
HOMES = ("controller/diloco_operator/api/names.py", "runtimes/diloco/contract.py")

NAME = re.compile(
    r"diloco\.dev|^kubectl-diloco|^diloco-(?!operator\b)|^DILOCO_"
    r"|/etc/diloco|/var/lib/diloco|/dev/termination-log"
    r"|-syncer\b|-learners-|^-ca$|(?<!\\)\.svc\b"
    r"|\bca\.(crt|key)\b|identity\.pem|job\.json"
)
ALLOWED = {
    ("controller/diloco_operator/api/job.py", "diloco.dev/v1alpha1"): "a type must be a literal; its default is names.API_VERSION",
    ("controller/diloco_operator/kube/memory/pods.py", "/dev/termination-log"): "the default that the Kubernetes API itself sets",
    ("controller/diloco_operator/kube/rest/config.py", "ca.crt"): "a file of every service account",
    ("controller/diloco_operator/local/addresses.py", "diloco-loopback-127."): "a lock file of this machine",
    ("controller/diloco_operator/local/log_server.py", "diloco-"): "a temporary file",
    ("controller/diloco_operator/local/supervisor.py", "DILOCO_LOCAL_CONTAINER"): "the supervisor runs by its path and imports no package",
    ("controller/diloco_operator/reconcile/config.py", "diloco-syncer:latest"): "the default of a setting",
    ("runtimes/diloco/launch.py", "diloco-launch"): "the command",
    ("runtimes/diloco/jax/store.py", "diloco-to-host"): "a thread",
    ("runtimes/diloco/learner/connection.py", "diloco-exchange"): "a thread",
    ("runtimes/diloco/ranks/channel.py", "diloco-ranks"): "a thread",
}
"""By file and text, why the name may stand there."""


def literals(file: Path) -> Iterator[str]:
    """Every string of a module that is no docstring and no comment below a constant."""
    tree = ast.parse(file.read_text())
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            yield node.value


def test_no_other_module_writes_a_name_out() -> None:
    found = {
        (str(file.relative_to(ROOT)), text)
        for source in SOURCES
        for file in source.rglob("*.py")
        if not file.name.endswith(("_pb2.py", "_pb2_grpc.py")) and str(file.relative_to(ROOT)) not in HOMES
        for text in literals(file)
        if NAME.search(text)
    }
    assert found - ALLOWED.keys() == set(), "take these names from api/names.py or diloco/contract.py"
    assert ALLOWED.keys() - found == set(), "these exceptions are not needed any more"


def test_no_two_names_in_a_module_have_one_value() -> None:
    for module, prefixes in ((names, ("LABEL_", "ANNOTATION_")), (contract, ("ENV_", "MOUNT_"))):
        values = [value for name, value in vars(module).items() if name.startswith(prefixes)]
        assert len(values) == len(set(values))


def test_the_chart_uses_names_that_the_operator_knows() -> None:
    files = [*(CHART / "templates").rglob("*"), CHART / "values.yaml"]
    text = "\n".join(file.read_text() for file in files if file.is_file())
    keys = {value for name, value in vars(names).items() if name.startswith(("LABEL_", "ANNOTATION_"))}
    known = keys | {names.API_VERSION, names.CONFIG_API_VERSION, names.MANAGER}
    assert {found for found in re.findall(r"[a-z.]*diloco\.dev/[a-z0-9-]+", text) if found not in known} == set()
    components = set(re.findall(rf"{re.escape(names.LABEL_COMPONENT)}: (\w+)", text))
    assert components == {names.COMPONENT_LEARNER, names.COMPONENT_SYNCER}
    groups = set(re.findall(r"apiGroups: \[([a-z.]*diloco[a-z.]*)\]", text))
    assert groups == {names.GROUP}
    policy = (CHART / "templates" / "networkpolicy.yaml").read_text()
    assert str(contract.SYNCER_PORT) in set(re.findall(r"port: (\d+)", policy))


def test_the_name_in_the_syncers_certificate_is_that_of_its_pod() -> None:
    assert contract.syncer_host_name("job", "team") == pod_dns_name(syncer_pod_name("job"), "job", "team") == "job-syncer.job.team.svc"


def test_every_pod_has_a_name_below_the_jobs_service() -> None:
    assert pod_dns_name("job-v5p-0-a1-0", "job", "team") == f"job-v5p-0-a1-0.{service_name('job')}.team.svc"


@pytest.mark.parametrize("job", ["j", "j" * 40, "j" * 63])
def test_a_learners_pod_name_is_a_dns_label(job: str) -> None:
    name = learner_pod_name(job, "pool-with-a-name-12", 1234, 99)
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name)
    assert len(name) <= names.MAX_DNS_LABEL
    assert name.endswith("-pool-with-a-name-12-a1234-99")


@pytest.mark.parametrize("job", ["j", "j" * 12 + "-" * 20, "j" * 32])
def test_a_pod_group_has_a_name_that_kueue_takes_for_its_workload(job: str) -> None:
    name = pod_group_name(job, "uid-1", "pool-with-a-name-1023", 100_000_000)
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name)
    assert len(name) <= names.MAX_DNS_LABEL
    assert is_pod_group(name, job, "uid-1", "pool-with-a-name-1023")


def test_pod_groups_of_two_jobs_of_one_name_differ() -> None:
    assert pod_group_name("job", "uid-1", "v5p-0", 1) != pod_group_name("job", "uid-2", "v5p-0", 1)


@pytest.mark.parametrize(
    "name", ["", "job", "job-v5p-0-a1", "job-v5p-1-a1-{mark}", "other-v5p-0-a1-{mark}", "job-v5p-0-a01-{mark}", "job-v5p-0-a²-{mark}"]
)
def test_no_other_name_is_a_pod_group_of_the_unit(name: str) -> None:
    mark = pod_group_name("job", "uid-1", "v5p-0", 1).rpartition("-")[2]
    assert is_pod_group(f"job-v5p-0-a1-{mark}", "job", "uid-1", "v5p-0")
    assert not is_pod_group(name.format(mark=mark), "job", "uid-1", "v5p-0")
