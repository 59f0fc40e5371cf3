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
SOURCES = (ROOT / "controller", ROOT / "runtimes" / "diloco")
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
    (
        "controller/diloco_cli/diloco/simulations/assumptions.py",
        "--bandwidth and --syncer-bandwidth need --parameters: what a link carries in a step depends on the size of the model",
    ): "options",
    ("controller/diloco_cli/diloco/simulations/assumptions.py", "--syncer-bandwidth"): "an option",
    ("controller/diloco_cli/diloco/up.py", "--syncer-bandwidth"): "the same",
    ("controller/diloco_operator/kube/rest/config.py", "ca.crt"): "a file of every service account",
    ("controller/diloco_local/addresses.py", "diloco-loopback-127."): "a lock file of this machine",
    ("controller/diloco_local/supervisor.py", "DILOCO_LOCAL_CONTAINER"): "the supervisor runs by its path and imports no package",
    ("controller/diloco_operator/reconcile/config.py", "diloco-syncer:latest"): "the default of a setting",
    ("runtimes/diloco/launch.py", "diloco-launch"): "the command",
    ("controller/diloco_cli/diloco/submission.py", "diloco-launch"): "the same",
    ("runtimes/diloco/jax/store.py", "diloco-to-host"): "a thread",
    ("runtimes/diloco/learner/connection.py", "diloco-exchange"): "a thread",
    ("runtimes/diloco/ranks/channel.py", "diloco-ranks"): "a thread",
    ("controller/diloco_cli/commands/plan.py", "--syncer"): "an option",
    ("controller/diloco_cli/commands/plan.py", "give a FILE with jobs: --syncer tells of their syncers"): "the same",
    ("runtimes/diloco/recovery/copying.py", "diloco-copy"): "a thread",
    ("runtimes/diloco/recovery/copying.py", "diloco-fetch"): "a thread",
    ("runtimes/diloco/recovery/copying.py", "diloco-stored"): "a thread",
    ("runtimes/diloco/recovery/server.py", "diloco-peer"): "a thread",
    ("runtimes/diloco/ranks/state_of_rank.py", "diloco-state"): "a thread",
    ("runtimes/diloco/recovery/storing.py", "diloco-store"): "a thread",
    ("runtimes/diloco/learner/stored_parts.py", "diloco-store"): "the same",
}
"""By file and text, why the name may stand there."""


def literals(file: Path) -> Iterator[str]:
    """Every string of a module that is no docstring and no comment below a constant."""
    tree = ast.parse(file.read_text())
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            yield node.value


@pytest.mark.slow
def test_no_other_module_writes_a_name_out() -> None:
    found = {
        (str(file.relative_to(ROOT)), text)
        for source in SOURCES
        for file in source.rglob("*.py")
        if not file.name.endswith("_pb2.py") and str(file.relative_to(ROOT)) not in HOMES
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


def names_of_a_job(job: str, pool: str) -> set[tuple[str, str]]:
    """Kind and name of what the job has for a unit of two hosts of its pool, for a part of the pool's name, and for itself."""
    unit = names.unit_name(pool, 1)
    pods = [*(learner_pod_name(job, unit, 2, host) for host in (0, 1)), syncer_pod_name(job)]
    secrets = [names.learner_secret_name(job, pool, unit), names.syncer_secret_name(job), names.authority_secret_name(job)]
    secrets += [names.part_secret_name(job, pool), names.outside_secret_name(job)]
    config_maps = [names.host_list_name(job, unit, 2, 2), names.config_map_name(job)]
    return {
        *(("Pod", name) for name in pods),
        *(("Secret", name) for name in secrets),
        *(("ConfigMap", name) for name in config_maps),
    }


def split_anywhere(text: str) -> list[tuple[str, str]]:
    """The jobs and pools whose names make this text with a dash between them."""
    parts = text.split("-")
    found = [("-".join(parts[:index]), "-".join(parts[index:])) for index in range(1, len(parts))]
    return [(job, pool) for job, pool in found if len(job) <= 32 and len(pool) <= 15 and job[-1] != "-" and pool[0] != "-"]


@pytest.mark.parametrize(
    "jobs",
    [
        split_anywhere("lm-v2-h100"),
        split_anywhere("a--b-c-d"),
        split_anywhere("lm-0-a1-0-h100"),
        split_anywhere("j-" * 14 + "p-q-r"),
        split_anywhere("lm-learners-h100"),
        [("lm", "v2-learners-h"), ("lm-learners-v2", "h")],
        split_anywhere("lm-part-x"),
        [("lm", "x-part-y"), ("lm-part-x", "y")],
        [("lm", "x-syncer"), ("lm-part-x", "y")],
        [("lm", "syncer"), ("lm-part", "y")],
        [("lm", "outside"), ("lm-part", "y")],
    ],
    ids=lambda jobs: str(jobs[0]),
)
def test_no_two_jobs_have_an_object_of_the_same_name(jobs: list[tuple[str, str]]) -> None:
    assert len(jobs) > 1
    found = [names_of_a_job(*each) for each in jobs]
    assert len(set.union(*found)) == sum(map(len, found))
    assert all(len(name) <= names.MAX_DNS_LABEL for each in found for kind, name in each if kind == "Pod")


def test_a_job_whose_pools_have_no_dash_has_names_without_a_mark() -> None:
    assert names_of_a_job("bytes-lm", "h100") == {
        ("Pod", "bytes-lm-h100-1-a2-0"),
        ("Pod", "bytes-lm-h100-1-a2-1"),
        ("Pod", "bytes-lm-syncer"),
        ("Secret", "bytes-lm-learners-h100-0"),
        ("Secret", "bytes-lm-syncer-tls"),
        ("Secret", "bytes-lm-outside-tls"),
        ("Secret", "bytes-lm-part-h100-tls"),
        ("Secret", "bytes-lm-ca"),
        ("ConfigMap", "bytes-lm-h100-1-a2-hosts-2"),
        ("ConfigMap", "bytes-lm-job"),
    }


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


def test_the_secrets_with_certificates_of_a_job_are_told_from_others() -> None:
    own = (
        names.authority_secret_name("a"),
        names.syncer_secret_name("a"),
        names.outside_secret_name("a"),
        names.learner_secret_name("a", "v5p", "v5p-0"),
        names.part_secret_name("a", "tokyo"),
        names.part_secret_name("a", "x-syncer"),
    )
    assert all(names.holds_certificates(name, "a") for name in own)
    assert not any(names.holds_certificates(name, "b") for name in (*own, "registry"))
