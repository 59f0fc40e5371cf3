"""What watches the operator: dashboard and alerts ask for metrics that there are, and `helm test` finds an operator that is ready."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from builders.chart import CHART, NAMESPACE, one, render
from builders.control_plane import ROOT
from builders.jobs import a_job
from builders.prometheus import promtool
from diloco_operator.api.conditions import ConditionType
from diloco_operator.operator.metrics import Metrics
from diloco_operator.operator.projections import CachedJob
from diloco_operator.reconcile.observe.job import parse_job
from diloco_operator.report import Report

DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))


# --- the dashboard ----------------------------------------------------------------------------------------------------
def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query")


def test_the_dashboard_of_jobs_selects_them_by_a_label_that_prometheus_does_not_give() -> None:
    (path,) = (path for path in DASHBOARDS if path.stem == "diloco-jobs")
    used = [expression for expression in expressions(json.loads(path.read_text())) if "diloco_job_" in expression]
    assert len(used) > 15
    # one asks for all namespaces, and gives the choice of the others
    assert [each for each in used if "dilocojob" not in each] == ["label_values(diloco_job_outer_steps, namespace)"]
    assert not [each for each in used if re.search(r"\bjob\b", each)]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_a_place_of_their_own_and_say_what_they_show(path: Any) -> None:
    panels = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"]


def test_the_config_map_holds_the_dashboards_as_they_are() -> None:
    objects = render({"grafanaDashboard": {"enabled": True}})
    config = one(objects, "ConfigMap", "diloco-operator-dashboard")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in config["data"].items()} == {
        path.name: json.loads(path.read_text()) for path in DASHBOARDS
    }
    # A ConfigMap holds 1 MiB at most.
    assert sum(len(text) for text in config["data"].values()) < 1 << 20


def test_tokens_of_a_syncer_that_went_back_to_a_snapshot_are_not_taken_for_new_ones() -> None:
    rules_of = one(render(rules()), "PrometheusRule")["spec"]["groups"]
    recorded = [rule["expr"] for group in rules_of for rule in group["rules"]]
    used = [
        each
        for each in (*recorded, *(each for path in DASHBOARDS for each in expressions(json.loads(path.read_text()))))
        if "tokens_total" in each
    ]
    assert len(used) == 2
    assert all("clamp_min(" in each and "delta(" in each and "rate(" not in each for each in used), used


# --- the alerts -------------------------------------------------------------------------------------------------------
EVERY_CONDITION = [
    {"type": kind.value, "status": status, "reason": "", "message": ""} for kind in ConditionType for status in ("True", "False")
]


def alerts(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    rule = one(render(values), "PrometheusRule")
    return {each["alert"]: each for group in rule["spec"]["groups"] for each in group["rules"] if "alert" in each}


def rules(**values: Any) -> dict[str, Any]:
    """Values of the chart that make an object for the Prometheus operator."""
    return {"metrics": {"prometheusRule": {"enabled": True, "as": "PrometheusRule", **values}}}


def samples() -> list[tuple[str, dict[str, str]]]:
    """Series of a leader with one job that trains and has a snapshot, and with the labels that Prometheus gives by the target."""
    job = a_job("lm").in_namespace("team-a").with_learners(1, 1).with_pool(max=1)
    obj = job.with_status(state="Training", conditions=EVERY_CONDITION, progress={"step": 700}, model={"step": 480}).build()
    metrics = Metrics()
    metrics.watch_leading("diloco-operator", lambda: True)
    metrics.jobs.follow(
        lambda: [CachedJob(parse_job(obj), json.dumps(obj["status"]).encode())],
        lambda _: Report(received_at=0.0, t=700, steps=2400),
        lambda: 10.0,
    )
    target = {"namespace": NAMESPACE}
    return [(sample.name, {**target, **sample.labels}) for family in metrics.registry.collect() for sample in family.samples]


def selectors(expression: Any) -> Iterator[promql_parser.VectorSelector]:
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    inner = [getattr(expression, name, None) for name in ("lhs", "rhs", "expr", "vector_selector")]
    for each in (*filter(None, inner), *getattr(expression, "args", ())):
        yield from selectors(each)


def matches(matcher: promql_parser.Matcher, labels: dict[str, str]) -> bool:
    value = labels.get(matcher.name, "")
    if matcher.op == promql_parser.MatchOp.Equal:
        return value == matcher.value
    assert matcher.op == promql_parser.MatchOp.Re
    return re.fullmatch(matcher.value, value) is not None


@pytest.mark.parametrize("election", [True, False])
def test_every_series_that_an_alert_reads_is_one_that_the_operator_gives(election: bool) -> None:
    given = samples()
    found = alerts({**rules(), "leaderElection": {"enabled": election}})
    for name, alert in found.items():
        read = list(selectors(promql_parser.parse(alert["expr"])))
        assert read, name
        for selector in read:
            series = [labels for metric, labels in given if metric == selector.name]
            assert any(all(matches(each, labels) for each in selector.matchers.matchers) for labels in series), f"{name}: {selector}"


def test_the_alerts_are_those_of_the_page_and_carry_the_labels_of_the_values() -> None:
    found = alerts(rules(alertLabels={"team": "research"}))
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert dict(re.findall(r"^\| `(DiLoCo\w+)` \| (\w+) \|", page, re.MULTILINE)) == {
        name: alert["labels"]["severity"] for name, alert in found.items()
    }
    assert {alert["labels"]["team"] for alert in found.values()} == {"research"}


# --- the rules --------------------------------------------------------------------------------------------------------
def test_the_recording_rules_are_those_of_the_page() -> None:
    groups = one(render(rules()), "PrometheusRule")["spec"]["groups"]
    recorded = [rule["record"] for group in groups for rule in group["rules"] if "record" in rule]
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert re.findall(r"^\| `([a-z_]+:[a-z0-9_:]+)` \|", page, re.MULTILINE) == recorded


@pytest.mark.parametrize(
    ("values", "known", "kind"),
    [
        ({"as": "ConfigMap"}, [], "ConfigMap"),
        ({}, [], "ConfigMap"),
        ({"as": "PrometheusRule"}, [], "PrometheusRule"),
        ({}, ["monitoring.coreos.com/v1/PrometheusRule"], "PrometheusRule"),
    ],
)
def test_without_the_crd_of_the_prometheus_operator_the_rules_are_a_file_in_a_config_map(
    values: dict[str, str], known: list[str], kind: str
) -> None:
    objects = render({"metrics": {"prometheusRule": {"enabled": True, "labels": {"rules": "yes"}, **values}}}, known=known)
    (found,) = (obj for obj in objects if obj["metadata"].get("labels", {}).get("rules") == "yes")
    assert found["kind"] == kind
    groups = yaml.safe_load(found["data"]["diloco.yaml"])["groups"] if kind == "ConfigMap" else found["spec"]["groups"]
    assert groups == one(render(rules()), "PrometheusRule")["spec"]["groups"]


@pytest.mark.parametrize("election", [True, False])
def test_promtool_finds_nothing_wrong_with_the_rules(election: bool, tmp_path: Path) -> None:
    spec = one(render({**rules(), "leaderElection": {"enabled": election}}), "PrometheusRule")["spec"]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(spec))
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(file))
    assert done.returncode == 0, done.stderr + done.stdout
    assert "15 rules found" in done.stdout


# --- helm test --------------------------------------------------------------------------------------------------------
TOKEN = "token-of-the-test-pod"


class Answers(BaseHTTPRequestHandler):
    """An operator's endpoints, from a table of the server's. Without TLS, and without the reviews of tokens."""

    def do_GET(self) -> None:
        code, text = self.server.answers[self.path]  # type: ignore[attr-defined]
        token = self.server.token  # type: ignore[attr-defined]
        if self.path == "/metrics" and token and self.headers["Authorization"] != f"Bearer {token}":
            code, text = 401, "a bearer token is needed"
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def endpoints() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def check(
    server: ThreadingHTTPServer, folder: Path, answers: dict[str, tuple[int, str]], *, token: str = TOKEN, **values: Any
) -> subprocess.CompletedProcess[str]:
    """Runs what the test pod runs, against `server` in place of the Service. `token`: what the server wants; "": none."""
    server.answers, server.token = answers, token  # type: ignore[attr-defined]
    (folder / "token").write_text(TOKEN)
    (container,) = one(render(values), "Pod")["spec"]["containers"]
    host = f"127.0.0.1:{server.server_address[1]}"
    given = {entry["name"]: re.sub(r"^https?://[^/]+", f"http://{host}", entry["value"]) for entry in container["env"]}
    if given["TOKEN_FILE"]:
        given["TOKEN_FILE"] = str(folder / "token")
    command = [sys.executable if word == "python" else word for word in [*container["command"], *container["args"]]]
    environment = {"PATH": os.environ["PATH"], **given, "SECONDS_TO_WAIT": "0"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


METRICS = "# HELP workqueue_depth Keys.\n# TYPE workqueue_depth gauge\nworkqueue_depth 0\n"


READY = {"/readyz": (200, "ok"), "/metrics": (200, METRICS)}


@pytest.mark.parametrize(
    ("answers", "token", "metrics", "code", "says"),
    [
        (READY, TOKEN, {}, 0, "1 metrics"),
        (READY, "", {"auth": {"enabled": False}}, 0, "1 metrics"),
        ({"/readyz": (200, "ok")}, TOKEN, {"enabled": False}, 0, "/readyz: ok"),
        (
            {**READY, "/readyz": (500, "caches are not synced")},
            TOKEN,
            {},
            1,
            "/readyz does not answer: HTTP Error 500: Internal Server Error caches are not synced",
        ),
        ({**READY, "/metrics": (200, "")}, TOKEN, {}, 1, "/metrics serves no metric"),
        (READY, "", {}, 1, "/metrics serves metrics to a request without a token"),
    ],
    ids=["ready", "no token needed", "no metrics", "not ready", "nothing counted", "metrics for everybody"],
)
def test_the_test_pod_is_content_with_a_ready_operator_that_counts_and_else_says_what_is_wrong(
    endpoints: ThreadingHTTPServer,
    tmp_path: Path,
    answers: dict[str, tuple[int, str]],
    token: str,
    metrics: dict[str, Any],
    code: int,
    says: str,
) -> None:
    done = check(endpoints, tmp_path, answers, token=token, metrics=metrics)
    assert done.returncode == code, done.stderr
    assert says in (done.stderr if code else done.stdout)
