"""What the chart's roles allow on a real API server: this, and nothing more.

See docs/decisions/0105-rights-and-networks.md.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from builders.chart import NAMESPACE, RELEASE, of_kind, one, render
from builders.control_plane import ROOT, ControlPlane, ControlPlaneError
from diloco_cli.checks.rights import operator_rights
from diloco_operator.reconcile.grantors.registry import WATCHES

pytestmark = pytest.mark.xdist_group("chart")  # one control plane for all of them

type Rules = dict[tuple[str, ...], str]
"""Verbs by (group, resource) or (group, resource, name)."""

ALL = "get list watch"
# Verbs on namespaced objects, by (API group, resource). That each is needed: test_kube_jobs, test_made_parts.
NAMESPACED: Rules = {
    ("diloco.dev", "dilocojobs"): "list watch patch delete",
    ("diloco.dev", "dilocojobs/status"): "update",
    ("diloco.dev", "dilocojobs/finalizers"): "update",
    ("", "pods"): f"{ALL} create patch delete",
    ("", "pods/status"): "patch",
    ("", "configmaps"): f"{ALL} create delete",
    ("", "secrets"): f"{ALL} create patch delete",
    ("", "services"): f"{ALL} create delete",
    ("", "persistentvolumeclaims"): f"{ALL} create patch",
    ("", "events"): "list create patch",
    ("resource.k8s.io", "resourceclaimtemplates"): "get create",
    **{(each.resource.group, each.resource.plural): f"list watch {each.verbs}".strip() for each in WATCHES},
}
CLUSTER: Rules = {
    ("", "nodes"): "list watch",
    ("resource.k8s.io", "resourceslices"): "list watch",
    ("scheduling.k8s.io", "priorityclasses"): "list watch",
    ("apiextensions.k8s.io", "customresourcedefinitions", "dilocojobs.diloco.dev"): "get",
    ("authentication.k8s.io", "tokenreviews"): "create",
    ("authorization.k8s.io", "subjectaccessreviews"): "create",
}
REVIEWS = {("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews")}
"""Reviews of whoever reads metrics, with metrics.auth.enabled."""
CLAIMS: Rules = {("resource.k8s.io", "resourceclaims"): "list watch"}
"""Cluster-wide, unless config.watchOtherPods is false."""
OTHER_PODS: Rules = {("", "pods"): "list watch", **CLAIMS}
"""Cluster-wide without watchAnyNamespace, unless config.watchOtherPods is false."""
LEASES: Rules = {("coordination.k8s.io", "leases"): "create", ("coordination.k8s.io", "leases", "diloco-operator"): "get update"}


def test_the_documented_rights_are_those_of_the_chart() -> None:
    text = (ROOT / "docs" / "install.md").read_text()
    section = text[text.index("## Rights") : text.index("## Namespaces")]
    rows = re.findall(r"^\| ([a-z, /]+) \| ([a-z, ]+) \|", section, re.MULTILINE)
    named = [(row.strip(), verbs.strip()) for row, verbs in rows if verbs.strip() != "verbs"]
    documented = {what: set(verbs.split(", ")) for row, verbs in named for what in row.split(", ")}
    tested: dict[str, set[str]] = {}
    for table in (NAMESPACED, CLUSTER, CLAIMS, LEASES):
        for (_, resource, *_name), verbs in table.items():
            tested.setdefault(resource, set()).update(verbs.split())
    assert documented == tested


def test_the_doctor_asks_for_the_rights_of_the_chart() -> None:
    asked: dict[tuple[str, ...], set[str]] = {}
    for each in operator_rights("team"):
        parts = (each.resource.plural, each.subresource) if each.subresource else (each.resource.plural,)
        key = (each.resource.group, "/".join(parts), *([each.name] if each.name else ()))
        asked.setdefault(key, set()).update([each.verb])
    reviewed = {key: verbs for key, verbs in CLUSTER.items() if key not in REVIEWS}
    assert {key: " ".join(sorted(verbs)) for key, verbs in asked.items()} == expected(NAMESPACED, reviewed)


def granted(rules: list[dict[str, Any]]) -> Rules:
    """What a review of rules says, as one table."""
    found: dict[tuple[str, ...], set[str]] = {}
    for rule in rules:
        assert set(rule) <= {"apiGroups", "resources", "resourceNames", "verbs"}, f"no rule of another kind: {rule}"
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames") or [None]:
                    found.setdefault((group, resource, *([name] if name else [])), set()).update(rule["verbs"])
    return {key: " ".join(sorted(verbs)) for key, verbs in found.items()}


def expected(*tables: Rules) -> Rules:
    return {key: " ".join(sorted(verbs.split())) for table in tables for key, verbs in table.items()}


def review(plane: ControlPlane, user: str, namespace: str) -> list[dict[str, Any]]:
    """What the API server's authorizer grants to a user in a namespace, but for what everybody has."""
    config = plane.kubeconfig_for(plane.token(*user.split("/")), user.replace("/", "-"))
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    done = plane.kubectl("--kubeconfig", str(config), "create", "--raw", path, "-f", "-", input=json.dumps(body))
    rules: list[dict[str, Any]] = json.loads(done.stdout)["status"]["resourceRules"]
    everybody = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}
    return [
        {key: value for key, value in rule.items() if key != "resourceNames" or value}
        for rule in rules
        if not set(rule["resources"]) & everybody
    ]


def check_granted(plane: ControlPlane, user: str, namespace: str, *tables: Rules) -> None:
    """The authorizer grants these rights and no others. It learns of roles and bindings, and of their end, a little after they are
    written."""
    wanted = expected(*tables)
    found: Rules = {}

    def right() -> bool:
        nonlocal found
        found = granted(review(plane, user, namespace))
        return found == wanted

    with contextlib.suppress(ControlPlaneError):  # the difference says more
        plane.wait_for(right, f"the rights of {user} in {namespace}")
    assert found == wanted


def may(plane: ControlPlane, verb: str, what: str, *, who: str, namespace: str | None = None) -> bool:
    """`kubectl auth can-i` as another user. `what` is RESOURCE, RESOURCE/NAME or RESOURCE:SUBRESOURCE."""
    where = ["--all-namespaces"] if namespace is None else ["--namespace", namespace]
    what, _, subresource = what.partition(":")
    if subresource:
        where += ["--subresource", subresource]
    done = plane.kubectl("auth", "can-i", verb, what, "--as", who, *where, check=False)
    assert done.stdout.strip() in ("yes", "no"), done.stderr
    return done.stdout.strip() == "yes"


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[ControlPlane]:
    """With the CRD and the namespaces of these tests; the rights of each test go with its release."""
    spaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (NAMESPACE, "rights-a", "rights-b", "rights-c")
    ]
    apply(plane, [*spaces, one(render(), "CustomResourceDefinition")])
    plane.wait_until_established("dilocojobs.diloco.dev")
    yield plane
    plane.kubectl("delete", "crd", "dilocojobs.diloco.dev", "--ignore-not-found")


def apply(plane: ControlPlane, objects: list[dict[str, Any]]) -> None:
    plane.kubectl("apply", "--server-side", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


@pytest.fixture
def rights(cluster: ControlPlane) -> Iterator[Any]:
    """Applies accounts, roles and bindings of a rendering, and takes them away again."""
    applied: list[dict[str, Any]] = []

    def grant(values: dict[str, Any]) -> None:
        objects = [obj for kind in RIGHTS for obj in of_kind(render(values), kind)]
        applied.extend(objects)
        apply(cluster, objects)

    yield grant
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": applied})
    cluster.kubectl("delete", "--wait=false", "-f", "-", input=items)


def test_by_default_no_secret_outside_the_releases_namespace_can_be_read(cluster: ControlPlane, rights: Any) -> None:
    rights({})
    who = f"{NAMESPACE}/{RELEASE}"
    check_granted(cluster, who, NAMESPACE, OTHER_PODS, NAMESPACED, CLUSTER, LEASES)
    for elsewhere in ("rights-a", "kube-system", "default"):
        check_granted(cluster, who, elsewhere, OTHER_PODS, CLUSTER)
    # As the API server answers the operator itself, and not only its authorizer about it.
    config = cluster.kubeconfig_for(cluster.token(NAMESPACE, RELEASE), "default-rights")
    for where in (["--all-namespaces"], ["--namespace", "kube-system"]):
        done = cluster.kubectl("--kubeconfig", str(config), "get", "secrets", *where, check=False)
        assert "forbidden" in done.stderr, where


def test_the_operator_has_just_what_it_uses_in_all_namespaces(cluster: ControlPlane, rights: Any) -> None:
    rights({"watchAnyNamespace": True})
    who = f"{NAMESPACE}/{RELEASE}"
    check_granted(cluster, who, "rights-a", NAMESPACED, CLAIMS, CLUSTER)
    check_granted(cluster, who, NAMESPACE, NAMESPACED, CLAIMS, CLUSTER, LEASES)
    # In all namespaces at once, which no review of one says.
    account = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
    assert may(cluster, "watch", "pods", who=account)
    assert not may(cluster, "patch", "nodes", who=account)


@pytest.mark.parametrize("other_pods", [True, False])
def test_an_operator_of_some_namespaces_has_rights_on_objects_in_these_only(cluster: ControlPlane, rights: Any, other_pods: bool) -> None:
    config = {} if other_pods else {"watchOtherPods": False}
    rights({"watchNamespaces": ["rights-a", "rights-b"], "rbac": {"aggregate": False}, "config": config})
    who = f"{NAMESPACE}/{RELEASE}"
    everywhere: Rules = {**CLUSTER, **(OTHER_PODS if other_pods else {})}
    for namespace in ("rights-a", "rights-b"):
        check_granted(cluster, who, namespace, everywhere, NAMESPACED)
    check_granted(cluster, who, "rights-c", everywhere)
    check_granted(cluster, who, NAMESPACE, everywhere, LEASES)
    for what in ("secrets", "dilocojobs.diloco.dev"):
        assert not may(cluster, "list", what, who=f"system:serviceaccount:{NAMESPACE}:{RELEASE}")


def test_with_rbac_create_false_the_chart_makes_no_rights() -> None:
    objects = render({"rbac": {"create": False, "aggregate": False}})
    assert [obj["metadata"]["name"] for kind in RIGHTS[1:] for obj in of_kind(objects, kind)] == []
    assert one(objects, "ServiceAccount")["automountServiceAccountToken"] is False


def test_without_leader_election_there_is_no_right_on_leases() -> None:
    roles = of_kind(render({"leaderElection": {"enabled": False}}), "Role")
    assert [role["metadata"]["name"] for role in roles] == [RELEASE]


@pytest.mark.parametrize("metrics", [{"auth": {"enabled": False}}, {"enabled": False}], ids=["open", "off"])
def test_without_tokens_for_metrics_there_is_no_right_to_review_them(cluster: ControlPlane, rights: Any, metrics: dict[str, Any]) -> None:
    rights({"metrics": metrics})
    without = {key: verbs for key, verbs in CLUSTER.items() if key not in REVIEWS}
    check_granted(cluster, f"{NAMESPACE}/{RELEASE}", "rights-a", OTHER_PODS, without)
    roles = [role["metadata"]["name"] for role in of_kind(render({"metrics": metrics}), "ClusterRole")]
    assert roles == [RELEASE, f"{RELEASE}-viewer", f"{RELEASE}-editor"]


def test_those_who_are_named_may_read_metrics_and_nothing_else(cluster: ControlPlane, rights: Any) -> None:
    scraper = {"kind": "ServiceAccount", "name": "default", "namespace": "rights-a"}
    rights({"metrics": {"auth": {"readers": [scraper]}}})
    account = "system:serviceaccount:rights-a:default"

    def reads() -> bool:
        return may(cluster, "get", "/metrics", who=account)

    cluster.wait_for(reads, "the reader to have its right")
    assert not may(cluster, "get", "/metrics", who="system:serviceaccount:rights-b:default")
    check_granted(cluster, "rights-a/default", "rights-a")


def test_users_of_the_clusters_own_roles_see_or_edit_jobs(cluster: ControlPlane, rights: Any) -> None:
    rights({})
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding"}
    apply(
        cluster,
        [
            {
                **binding,
                "metadata": {"name": f"people-{role}", "namespace": "rights-a"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"{role}-person"}],
            }
            for role in ("view", "edit", "admin")
        ],
    )

    def allowed(role: str) -> set[str]:
        verbs = ("get", "list", "watch", "create", "update", "patch", "delete")
        return {verb for verb in verbs if may(cluster, verb, "dilocojobs.diloco.dev", who=f"{role}-person", namespace="rights-a")}

    def holds(role: str, verbs: set[str]) -> bool:
        return allowed(role) >= verbs

    reads, writes = {"get", "list", "watch"}, {"create", "update", "patch", "delete"}
    wanted = {"view": reads, "edit": reads | writes, "admin": reads | writes}
    for role, verbs in wanted.items():
        # The controller manager aggregates, and then the authorizer learns of it.
        cluster.wait_for(functools.partial(holds, role, verbs), f"the role {role} to hold {verbs}")
    assert {role: allowed(role) for role in wanted} == wanted
    scale, status = "dilocojobs.diloco.dev:scale", "dilocojobs.diloco.dev:status"
    assert may(cluster, "patch", scale, who="edit-person", namespace="rights-a")
    assert not may(cluster, "patch", scale, who="view-person", namespace="rights-a")
    # Only the operator may write status.
    assert may(cluster, "get", status, who="view-person", namespace="rights-a")
    assert not any(may(cluster, verb, status, who="admin-person", namespace="rights-a") for verb in ("update", "patch"))
    assert not may(cluster, "get", "dilocojobs.diloco.dev", who="view-person", namespace="rights-b")
