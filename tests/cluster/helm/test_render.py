"""What the chart renders, without installing it: schema, every value, the CRD's bytes, and the API server's word on every object."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.chart import CHART, NAMESPACE, RELEASE, VALUES, Refused, helm, of_kind, one, render, render_text
from builders.control_plane import ROOT, ControlPlane, provide_programs
from diloco.contract import SYNCER_PORT
from diloco_operator.accelerators import BUILT_IN
from diloco_operator.api import names
from diloco_operator.api.catalogue_file import Labels, Row, read_catalogue
from diloco_operator.api.durations import DURATION_MAX_LENGTH, DURATION_PATTERN, format_duration, parse_duration
from diloco_operator.operator import RunConfig
from diloco_operator.program.config import BadConfiguration, load_configuration
from diloco_operator.program.main import main as operator_commands
from diloco_operator.reconcile import OperatorConfig
from diloco_operator.timeouts import LeaseTimeouts
from pydantic.alias_generators import to_camel

pytestmark = pytest.mark.xdist_group("chart")  # one control plane for all of them

DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
EVERYTHING = yaml.safe_load((VALUES / "everything.yaml").read_text())
HANDED_ON = {
    "resources",
    "affinity",
    "podSecurityContext",
    "securityContext",
    "livenessProbe",
    "readinessProbe",
    "config",
    "namespaceSelector",
}
"""Keys with fields of Kubernetes' or of the operator's own, most of which have no default in the chart."""
KEEP = "  annotations:\n    helm.sh/resource-policy: keep\n"


def monitoring_crd(kind: str) -> dict[str, Any]:
    """As much of one of the Prometheus operator's CRDs as an object needs to be checked."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [version],
        },
    }


def leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths of all values that are no further mapping. One that is handed on as a whole is a value."""
    for key, value in values.items():
        here = (*path, key)
        if isinstance(value, dict) and "properties" in schema_at(here) and key not in HANDED_ON:
            yield from leaves(value, here)
        else:
            yield here, value


def schema_at(path: tuple[str, ...]) -> dict[str, Any]:
    found = SCHEMA
    for key in path:
        found = resolved(found)["properties"][key]
    return resolved(found)


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return {**SCHEMA["definitions"][schema["$ref"].removeprefix("#/definitions/")], **schema}
    return schema


def at(values: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = values
    for key in path:
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found


def with_value(values: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(dict(values))
    inner = changed
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    return changed


# --- the API server's word --------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def prepared(plane: ControlPlane) -> ControlPlane:
    """With the namespaces that the values files name, and the Prometheus operator's CRDs."""
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in NAMESPACES]
    crds = [monitoring_crd(kind) for kind in ("ServiceMonitor", "PrometheusRule")]
    everything = {"apiVersion": "v1", "kind": "List", "items": [*spaces, *crds]}
    plane.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(everything))
    plane.wait_until_established(*(crd["metadata"]["name"] for crd in crds))
    label = "pod-security.kubernetes.io/enforce=restricted"
    plane.kubectl("label", "--overwrite", "namespace", "restricted", label, "pod-security.kubernetes.io/warn=restricted")
    return plane


NAMESPACES = (NAMESPACE, "team-a", "team-b", "team-c", "training", "restricted")


@pytest.mark.parametrize("file", sorted(path.name for path in VALUES.glob("*.yaml")))
def test_the_api_server_takes_every_object_and_the_restricted_profile_the_pods(prepared: ControlPlane, file: str) -> None:
    objects = render(files=[VALUES / file])
    assert len(objects) > 3
    # The API server looks for the account of a pod, also of one that it does not make.
    accounts = {"apiVersion": "v1", "kind": "List", "items": of_kind(objects, "ServiceAccount")}
    prepared.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(accounts), check=bool(accounts["items"]))
    # Strict: a field that the server does not know is an error, not a warning.
    strict = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    done = prepared.kubectl(*strict, input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    assert len(done.stdout.splitlines()) == len(objects)
    assert done.stderr == ""
    for pod in [pod_of(one(objects, "Deployment")), one(objects, "Pod")]:
        pod["metadata"]["namespace"] = "restricted"
        pod["spec"].update(serviceAccountName="default")
        pod["spec"].pop("priorityClassName", None)  # Kubernetes' own one, not for every namespace of every cluster
        done = prepared.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod))
        assert "Warning" not in done.stderr


def pod_of(deployment: dict[str, Any]) -> dict[str, Any]:
    template = deployment["spec"]["template"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator", **template["metadata"]}, "spec": dict(template["spec"])}


# --- values -----------------------------------------------------------------------------------------------------------
def test_helm_lints_the_chart_without_a_warning() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


@pytest.mark.parametrize("file", sorted(path.name for path in VALUES.glob("*.yaml")))
def test_helm_3_lints_and_renders_the_chart(file: str) -> None:
    provide_programs(("helm3",))
    arguments = (str(CHART), "--namespace", NAMESPACE, "--values", str(VALUES / file))
    linted = helm("lint", "--strict", *arguments, program="helm3")
    assert linted.returncode == 0, linted.stdout
    # Built from its module alone, Helm 3 takes an absent cluster for Kubernetes 1.20.
    rendered = helm("template", RELEASE, *arguments, "--kube-version", "1.36.0", program="helm3")
    assert rendered.returncode == 0, rendered.stderr
    objects = [each for each in yaml.safe_load_all(rendered.stdout) if each]
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)
    assert [place for kind, place, _ in names if kind == "Deployment"] == [NAMESPACE]


def test_every_object_of_the_schema_refuses_unknown_keys() -> None:
    """But for what is the user's or Kubernetes' own: maps of strings, and types that the API server checks."""
    open_by_design = {"strings", "quantities", "kubernetesObject", "global"}

    def walk(schema: dict[str, Any], name: str) -> Iterator[str]:
        if schema.get("type") == "object" and schema.get("additionalProperties") is not False and name not in open_by_design:
            yield name
        for key, inner in {**schema.get("properties", {}), **schema.get("definitions", {})}.items():
            yield from walk(inner, key)
        if isinstance(schema.get("items"), dict):
            yield from walk(schema["items"], f"{name}[]")

    assert list(walk(SCHEMA, "values")) == []


def test_the_schema_describes_exactly_the_keys_of_the_defaults() -> None:
    def described(schema: dict[str, Any], values: Any, path: str) -> Iterator[str]:
        schema = resolved(schema)
        for key in schema.get("properties", {}).keys() | (values or {}).keys():
            inner = schema.get("properties", {}).get(key)
            if inner is None or key not in (values or {}):
                yield f"{path}{key}"
            elif "description" not in inner:
                yield f"{path}{key}: no description"
            elif inner.get("type") == "object" and key not in HANDED_ON and isinstance(values[key], dict):
                yield from described(inner, values[key], f"{path}{key}.")

    # What a chart above this one may hand down has no default here.
    assert sorted(described(SCHEMA, DEFAULTS, "")) == ["enabled", "global"]


@pytest.mark.parametrize(
    ("values", "path", "why"),
    [
        ({"replica": 2}, "", "'replica'"),
        ({"tolerations": [{"keyy": "a"}]}, "/tolerations/0", "'keyy'"),
        ({"leaderElection": {"leaseDuration": "15"}}, "/leaderElection/leaseDuration", "pattern"),
        ({"leaderElection": {"leaseDuration": 15}}, "/leaderElection/leaseDuration", "string"),
        ({"metrics": {"serviceMonitor": {"labels": {"release": 1}}}}, "/metrics/serviceMonitor/labels/release", "string"),
        ({"watchNamespaces": ["a", "a"]}, "/watchNamespaces", "equal"),
        ({"config": {"workers": 0}}, "/config/workers", "minimum"),
        ({"logging": {"level": "verbose"}}, "/logging/level", "must be one of"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(values: dict[str, Any], path: str, why: str) -> None:
    with pytest.raises(Refused) as refused:
        render(values)
    line = next(line for line in str(refused.value).splitlines() if line.startswith("- at "))
    assert line.startswith(f"- at '{path}'")
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"replicas": 2, "leaderElection": {"enabled": False}}, "replicas: more than one needs leaderElection.enabled"),
        (
            {"podDisruptionBudget": {"enabled": True, "minAvailable": 1}},
            "podDisruptionBudget: minAvailable and maxUnavailable exclude each other",
        ),
        ({"metrics": {"enabled": False, "serviceMonitor": {"enabled": True}}}, "metrics.serviceMonitor.enabled needs metrics.enabled"),
        ({"metrics": {"enabled": False, "prometheusRule": {"enabled": True}}}, "metrics.prometheusRule.enabled needs metrics.enabled"),
        ({"metrics": {"serviceMonitor": {"enabled": True, "interval": "5s"}}}, "scrapeTimeout (10s) must be at most interval (5s)"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name is needed with serviceAccount.create=false"),
        ({"watchAnyNamespace": True, "watchNamespaces": ["a"]}, "watchAnyNamespace and watchNamespaces exclude each other"),
    ],
)
def test_values_that_contradict_each_other_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(Refused, match=re.escape(says)):
        render(values)


def leases(release: str, values: dict[str, Any] | None = None) -> tuple[list[str], list[str]]:
    """Return the arguments of a release that name Leases, and the Leases that it may get."""
    objects = render(values, release=release)
    arguments = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    rules = next(each["rules"] for each in of_kind(objects, "Role") if each["metadata"]["name"].endswith("-leader-election"))
    named = [each.partition("=")[2] for each in arguments if "lease-name=" in each]
    return named, [name for rule in rules if "get" in rule["verbs"] for name in rule["resourceNames"]]


def test_each_release_of_a_namespace_has_a_lease_of_its_own_and_heeds_that_of_its_earlier_version() -> None:
    assert leases(RELEASE) == (["diloco-operator"], ["diloco-operator"])
    for values in (None, {"leaderElection": {"leaseName": ""}}):
        assert leases("team", values) == (["team-diloco-operator", "diloco-operator"],) * 2
    assert leases("team", {"leaderElection": {"leaseName": "elected"}}) == (["elected"], ["elected"])


@pytest.mark.parametrize(
    ("lease", "renew", "retry", "taken"),
    [
        ("15s", "10s", "2s", True),
        ("1m", "59.999s", "1500ms", True),
        ("15s", "15s", "2s", False),
        ("15s", "0.25m", "2s", False),
        ("15s", "10s", "10s", False),
        ("15s", "10s", "0s", False),
        ("15s500ms", "10s", "2s", False),
        ("1m0.5s", "10s", "2s", False),
        ("1h", "59m60s", "2s", False),
    ],
)
def test_chart_and_operator_take_the_same_times_of_the_leader_election(lease: str, renew: str, retry: str, taken: bool) -> None:
    times = [parse_duration(each) for each in (lease, renew, retry)]
    values = {"leaderElection": {"leaseDuration": lease, "renewDeadline": renew, "retryPeriod": retry}}
    if taken:
        LeaseTimeouts(*times)
        render(values)
        return
    with pytest.raises(ValueError, match=r"leader election|lease duration"):
        LeaseTimeouts(*times)
    with pytest.raises(Refused, match="leaderElection: "):
        render(values)


@pytest.mark.parametrize(
    ("config", "taken"),
    [
        ({"certificateLifetime": "9m"}, True),
        ({"certificateLifetime": "8m59s"}, False),
        ({"certificateLifetime": "8760h", "secretPropagation": "2920h"}, True),
        ({"certificateLifetime": "8760h1ms"}, False),
        ({"certificateLifetime": "0s", "secretPropagation": "0s"}, False),
        ({"secretPropagation": "241h"}, False),
    ],
)
def test_chart_and_operator_take_the_same_lifetimes_of_certificates(config: dict[str, Any], taken: bool, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "config.diloco.dev/v1alpha1", "kind": "OperatorConfiguration", **config}))
    if taken:
        load_configuration(path)
        render({"config": config})
        return
    with pytest.raises(BadConfiguration, match="certificateLifetime"):
        load_configuration(path)
    with pytest.raises(Refused, match="certificateLifetime"):
        render({"config": config})


# What must be set beside a value for it to count, or for both to be allowed together.
BESIDE: dict[tuple[str, ...], tuple[tuple[tuple[str, ...], Any], ...]] = {
    ("image", "tag"): ((("image", "digest"), ""),),
    ("podDisruptionBudget", "maxUnavailable"): ((("podDisruptionBudget", "minAvailable"), None),),
    ("leaderElection", "enabled"): ((("replicas",), 1),),
    ("metrics", "enabled"): ((("metrics", "serviceMonitor", "enabled"), False), (("metrics", "prometheusRule", "enabled"), False)),
    ("metrics", "service", "enabled"): ((("metrics", "serviceMonitor", "enabled"), False),),
    ("watchAnyNamespace",): ((("watchNamespaces",), []),),
}
# Values whose other setting than that of everything.yaml is neither the default nor a switch turned.
OTHER: dict[tuple[str, ...], Any] = {
    ("image", "tag"): "v2",
    ("leaderElection", "leaseDuration"): "45s",
    ("images", "syncer", "digest"): f"sha256:{'2' * 64}",
    ("podDisruptionBudget", "minAvailable"): 1,
    ("podDisruptionBudget", "maxUnavailable"): 2,
}


@pytest.mark.parametrize("path", [path for path, _ in leaves(DEFAULTS)], ids=".".join)
def test_every_value_changes_what_is_rendered(path: tuple[str, ...]) -> None:
    base = EVERYTHING
    for beside, value in BESIDE.get(path, ()):
        base = with_value(base, beside, value)
    default = at(DEFAULTS, path)
    if path in OTHER:
        other = OTHER[path]
    elif at(base, path) is not None and at(base, path) != default:
        other = default
    else:
        assert isinstance(default, bool), f"{'.'.join(path)} must be set to another value in everything.yaml"
        other = not default
    assert render_text(with_value(base, path, other)) != render_text(base)


def test_the_readme_lists_every_value_with_its_default() -> None:
    values, _, _ = (CHART / "README.md").read_text().partition("Fields of `config`")
    rows = dict(re.findall(r"^\| `([A-Za-z.]+)` +\| `(.*?)` +\| \S", values, re.MULTILINE))
    assert {key: json.loads(default) for key, default in rows.items()} == {".".join(path): default for path, default in leaves(DEFAULTS)}


def test_schema_and_readme_are_what_their_generator_writes(tmp_path: Path) -> None:
    """`make docs`."""
    copied = tmp_path / CHART.name
    shutil.copytree(CHART, copied)
    subprocess.run([sys.executable, str(ROOT / "hack" / "chart_docs.py"), str(copied)], check=True)
    for name in ("values.schema.json", "README.md"):
        assert (copied / name).read_text() == (CHART / name).read_text()


# --- the CRD ----------------------------------------------------------------------------------------------------------
def rendered_crd(values: Mapping[str, Any]) -> str:
    text = render_text(values)
    source = "# Source: diloco-operator/templates/crds.yaml\n"
    return text[text.index(source) + len(source) :].split("\n---\n")[0]


def test_the_charts_crd_is_that_of_crds_byte_for_byte() -> None:
    files = {path.name: path.read_bytes() for path in (ROOT / "crds").glob("*.yaml")}
    assert files
    assert {path.name: path.read_bytes() for path in (CHART / "files" / "crds").glob("*.yaml")} == files
    wanted = b"".join(files.values()).decode()
    # Without `keep` the very bytes; with it, the same but for the annotation's two lines.
    assert rendered_crd({"crds": {"keep": False}}).strip() == wanted.strip()
    kept = rendered_crd({}).strip()
    assert KEEP in kept
    assert kept.replace(KEEP, "", 1) == wanted.strip()
    assert of_kind(render({"crds": {"enabled": False}}), "CustomResourceDefinition") == []


# --- the operator's arguments ----------------------------------------------------------------------------------------
def test_the_configuration_holds_what_pods_of_jobs_need_and_what_the_user_set() -> None:
    images = {"syncer": {"tag": "v7"}, "pullSecrets": ["registry"]}
    objects = render({"images": images, "storageClassName": "gp3", "config": {"disruptionTaints": ["example.com/gone"]}})
    assert yaml.safe_load(one(objects, "ConfigMap")["data"]["config.yaml"]) == {
        "apiVersion": "config.diloco.dev/v1alpha1",
        "kind": "OperatorConfiguration",
        "syncerImage": "ghcr.io/diloco-operator/syncer:v7",
        "storageClassName": "gp3",
        "imagePullSecrets": ["registry"],
        "disruptionTaints": ["example.com/gone"],
    }


def test_endpoints_listen_on_addresses_of_both_families() -> None:
    (container,) = one(render(), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert {"--health-address=:8081", "--metrics-address=:8080"} <= set(container["args"])


@pytest.mark.parametrize("file", sorted(path.name for path in VALUES.glob("*.yaml")))
def test_the_operator_takes_the_arguments_and_the_configuration(file: str, tmp_path: Path) -> None:
    objects = render(files=[VALUES / file])
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    command, *arguments = container["args"]
    assert container["command"] == ["diloco-operator"]
    options = operator_commands.commands[command].make_context(command, arguments).params
    values = yaml.safe_load((VALUES / file).read_text())
    assert list(options["namespaces"]) == ([] if values.get("watchAnyNamespace") else values.get("watchNamespaces", [NAMESPACE]))
    assert options["leader_elect"] is values.get("leaderElection", {}).get("enabled", True)
    assert (options["metrics_address"] is None) == (values.get("metrics", {}).get("enabled") is False)
    assert options["health_address"].port == container["ports"][0]["containerPort"]
    mount = next(mount for mount in container["volumeMounts"] if mount["name"] == "config")
    assert str(options["config_file"]) == f"{mount['mountPath']}/config.yaml"
    config_maps = [config for config in of_kind(objects, "ConfigMap") if "config.yaml" in config["data"]]
    path = tmp_path / "config.yaml"
    path.write_text(config_maps[0]["data"]["config.yaml"])
    operator, run = load_configuration(path)
    assert operator.syncer_image.partition(":")[0].endswith("/syncer")
    assert run.workers == values.get("config", {}).get("workers", RunConfig().workers)
    rows, incidental = values.get("catalogue", []), values.get("incidentalResources", [])
    if not rows and not incidental:
        assert options["catalogue"] is None
        return
    assert str(options["catalogue"]) == f"{mount['mountPath']}/catalogue.yaml"
    added = read_catalogue(yaml.safe_load(config_maps[0]["data"]["catalogue.yaml"]), BUILT_IN)
    assert [kind.name for kind in added.rows] == [row["name"] for row in rows]
    assert list(added.incidental) == incidental


def test_the_schema_of_config_is_that_of_the_operators_file(tmp_path: Path) -> None:
    """Field by field: the operator takes a value that the schema takes. Images, their Secrets and the storage class have values of
    their own."""
    described = SCHEMA["properties"]["config"]["properties"]
    fields = {to_camel(each.name) for each in dataclasses.fields(OperatorConfig)} | {
        "workers",
        "concurrency",
        "jobConcurrency",
        "watchOtherPods",
    }
    assert set(described) == fields - {"syncerImage", "storageClassName", "imagePullSecrets"}
    duration = SCHEMA["definitions"]["duration"]
    assert (duration["pattern"], duration["maxLength"]) == (DURATION_PATTERN, DURATION_MAX_LENGTH)
    defaults: dict[str, Any] = {to_camel(each.name): each.default for each in dataclasses.fields(OperatorConfig)}
    examples: dict[str, Any] = {"integer": 7, "string": "2", "boolean": False}
    for field, schema in described.items():
        value: object
        if "$ref" in schema:
            assert schema["$ref"] == "#/definitions/duration"
            value = format_duration(defaults[field] + 3600)
        elif schema["type"] == "array":
            value = [["key", "value"]] if schema["items"]["type"] == "array" else ["key"]
        else:
            value = examples[schema["type"]]
        objects = render({"config": {field: value}})
        path = tmp_path / "config.yaml"
        path.write_text(next(config["data"]["config.yaml"] for config in of_kind(objects, "ConfigMap")))
        assert load_configuration(path) != load_configuration(None), field


def test_a_changed_configuration_makes_new_pods_and_nothing_else_does() -> None:
    def annotations(values: Mapping[str, Any]) -> dict[str, str]:
        template = one(render(values), "Deployment")["spec"]["template"]
        checksums: dict[str, str] = template["metadata"]["annotations"]
        return checksums

    assert annotations({"config": {"progressInterval": "20s"}}) != annotations({})
    assert annotations({"rbac": {"aggregate": False}}) == annotations({})


def test_jobs_are_guarded_on_the_syncers_port_by_the_labels_of_their_pods() -> None:
    policies = of_kind(render({"networkPolicy": {"restrictEgress": True, "jobNamespaces": ["training"]}}), "NetworkPolicy")
    for policy in policies:  # DNS of a node
        dns = [peer for rule in policy["spec"]["egress"] if {"protocol": "UDP", "port": 53} in rule.get("ports", ()) for peer in rule["to"]]
        assert [peer["ipBlock"]["cidr"] for peer in dns if "ipBlock" in peer] == ["169.254.20.10/32", "169.254.169.254/32"]
    syncer, learner, operator = (
        one([policy for policy in policies if policy["metadata"]["name"].endswith(end)], "NetworkPolicy")
        for end in ("syncer", "learner", "tor")
    )
    label = (
        {"matchLabels": {names.LABEL_COMPONENT: names.COMPONENT_SYNCER}},
        {"matchLabels": {names.LABEL_COMPONENT: names.COMPONENT_LEARNER}},
    )
    assert (syncer["spec"]["podSelector"], learner["spec"]["podSelector"]) == label
    (into_syncer,) = syncer["spec"]["ingress"]
    assert [port["port"] for port in into_syncer["ports"]] == [SYNCER_PORT]
    assert into_syncer["from"][0] == {"podSelector": label[1]}
    # The operator's pods, as the Deployment labels them, may reach the syncer, and no other pod of their namespace.
    deployment = one(render(), "Deployment")
    assert into_syncer["from"][1]["podSelector"]["matchLabels"] == deployment["spec"]["selector"]["matchLabels"]
    assert into_syncer["from"][1]["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
    assert operator["spec"]["podSelector"]["matchLabels"] == deployment["spec"]["selector"]["matchLabels"]
    # Learners accept connections from learners only; they connect to the syncer, to learners and to DNS.
    assert learner["spec"]["ingress"] == [{"from": [{"podSelector": label[1]}]}]
    assert [rule.get("to", [{}])[0].get("podSelector") for rule in learner["spec"]["egress"]] == [label[0], label[1], None]


def test_where_connections_are_restricted_a_rule_of_the_values_lets_operator_and_learners_reach_a_syncer_elsewhere() -> None:
    home = [{"to": [{"ipBlock": {"cidr": "203.0.113.7/32"}}], "ports": [{"protocol": "TCP", "port": SYNCER_PORT}]}]
    reaching = {component: {"extraEgress": home} for component in ("operator", "learner")}
    for restricted in (True, False):
        values = {"networkPolicy": {"restrictEgress": restricted, "jobNamespaces": ["training"], **reaching}}
        policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind(render(values), "NetworkPolicy")}
        for name in (RELEASE, f"{RELEASE}-learner"):
            assert policies[name].get("egress", [])[-1:] == (home if restricted else []), name


def test_by_default_policies_say_who_may_connect_and_leave_connections_of_these_pods_alone() -> None:
    policies = {policy["metadata"]["name"]: policy for policy in of_kind(render(), "NetworkPolicy")}
    assert sorted(policies) == [RELEASE, f"{RELEASE}-learner", f"{RELEASE}-syncer"]
    restricted = {
        policy["metadata"]["name"]: policy for policy in of_kind(render({"networkPolicy": {"restrictEgress": True}}), "NetworkPolicy")
    }
    for name, policy in policies.items():
        assert policy["metadata"]["namespace"] == NAMESPACE
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        assert "egress" not in policy["spec"]
        assert policy["spec"]["ingress"] == restricted[name]["spec"]["ingress"]
        assert restricted[name]["spec"]["policyTypes"] == ["Ingress", "Egress"]
    # Probes and metrics reach the operator on the ports that its container has, from anywhere.
    (container,) = one(render(), "Deployment")["spec"]["template"]["spec"]["containers"]
    ports = [port["containerPort"] for port in container["ports"]]
    assert policies[RELEASE]["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": port}]} for port in ports]


def test_the_pod_of_helm_test_reaches_metrics_whoever_else_may() -> None:
    scraper = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    objects = render({"networkPolicy": {"metricsFrom": [scraper]}})
    into_operator = one(objects, "NetworkPolicy", RELEASE)["spec"]["ingress"]
    allowed = into_operator[1]["from"]
    assert allowed[0] == scraper
    labels = one(objects, "Pod")["metadata"]["labels"]
    assert allowed[1]["podSelector"]["matchLabels"].items() <= labels.items()


# --- metrics ----------------------------------------------------------------------------------------------------------
def endpoint(*, monitor: Mapping[str, Any] | None = None, **metrics: Any) -> dict[str, Any]:
    """What a ServiceMonitor says of the one endpoint."""
    objects = render({"metrics": {"serviceMonitor": {"enabled": True, **(monitor or {})}, **metrics}})
    (found,) = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    return {key: value for key, value in found.items() if key in ("scheme", "tlsConfig", "bearerTokenFile", "authorization")}


def test_prometheus_sends_a_token_over_tls_unless_metrics_need_none() -> None:
    tls = {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
    assert endpoint() == {**tls, "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}
    secret = {"name": "scraper", "key": "bearer"}
    assert endpoint(monitor={"tokenSecret": secret}) == {**tls, "authorization": {"type": "Bearer", "credentials": secret}}
    assert endpoint(auth={"enabled": False}) == {}


def test_metrics_need_a_token_unless_that_is_switched_off() -> None:
    def asks(values: Mapping[str, Any]) -> tuple[bool, dict[str, str]]:
        objects = render(values)
        (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
        (check,) = one(objects, "Pod")["spec"]["containers"]
        read = {each["name"]: each["value"] for each in check["env"] if each["name"] in ("METRICS", "TOKEN_FILE")}
        assert one(objects, "Pod")["spec"]["automountServiceAccountToken"] is bool(read["TOKEN_FILE"])
        return "--metrics-auth" in container["args"], read

    host = f"{RELEASE}.{NAMESPACE}.svc:8080/metrics"
    token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert asks({}) == (True, {"METRICS": f"https://{host}", "TOKEN_FILE": token})
    assert asks({"metrics": {"auth": {"enabled": False}}}) == (False, {"METRICS": f"http://{host}", "TOKEN_FILE": ""})
    # The right of the test's own account is the chart's to give.
    assert asks({"rbac": {"create": False}}) == (True, {"METRICS": "", "TOKEN_FILE": ""})


def test_long_names_stay_within_the_limits_of_labels_and_names() -> None:
    objects = render({"fullnameOverride": "a" * 45})
    assert max(len(obj["metadata"]["name"]) for obj in objects) <= 63
    assert len(one(render(release="r" * 53), "Deployment")["metadata"]["name"]) == 45


# --- as others use it -------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as `helm package` makes it."""
    folder = tmp_path_factory.mktemp("archive")
    done = helm("package", str(CHART), "--destination", str(folder))
    assert done.returncode == 0, done.stderr
    (file,) = folder.iterdir()
    return file


def test_the_packaged_chart_renders_the_same(archive: Path) -> None:
    done = helm("template", RELEASE, str(archive), "--namespace", NAMESPACE)
    assert done.stdout == render_text()


def test_the_chart_can_be_part_of_another_that_switches_it_and_hands_down_globals(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "charts").mkdir()
    shutil.copy(archive, tmp_path / "charts")
    dependency = {"name": "diloco-operator", "version": "0.1.0", "condition": "diloco-operator.enabled"}
    (tmp_path / "Chart.yaml").write_text(
        yaml.safe_dump({"apiVersion": "v2", "name": "above", "version": "0.1.0", "dependencies": [dependency]})
    )
    (tmp_path / "values.yaml").write_text(
        yaml.safe_dump({"global": {"region": "here"}, "diloco-operator": {"enabled": True, "replicas": 2}})
    )
    done = helm("template", "above", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert one([obj for obj in yaml.safe_load_all(done.stdout) if obj], "Deployment")["spec"]["replicas"] == 2
    assert helm("template", "above", str(tmp_path), "--set", "diloco-operator.enabled=false").stdout.strip() == ""


def test_the_schema_of_a_catalogue_row_has_the_fields_that_the_operator_reads() -> None:
    row = SCHEMA["properties"]["catalogue"]["items"]
    assert set(row["properties"]) == {to_camel(name) for name in Row.model_fields}
    assert set(row["properties"]["labels"]["items"]["properties"]) == {to_camel(name) for name in Labels.model_fields}
    with pytest.raises(Refused, match="catalogue"):
        render({"catalogue": [{"name": "acme-npu2", "resource": "acme.com/npu", "labels": [], "speed": 1}]})
