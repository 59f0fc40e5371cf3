"""The pages of the dashboard, from what is known of the jobs."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from builders.cluster_scenes import NOW, unit
from builders.dashboards import HOSTILE, a_view, condition, html_of, job_facts
from builders.nodes import a_tpu_slice
from diloco.goodput import Use
from diloco_cli.checks.nodes import inventory_of
from diloco_cli.dashboard.facts import FleetFacts, Sample, Samples, SliceNumbers, SlicePlace, slices_of
from diloco_cli.dashboard.fleet_page import fleet_page
from diloco_cli.dashboard.goodput_page import by_kind, goodput_page
from diloco_cli.dashboard.job_page import job_page
from diloco_cli.dashboard.page import frame
from diloco_cli.dashboard.quotas import Allowance
from diloco_cli.dashboard.unit_page import unit_page
from diloco_cli.dashboard.unit_pods import Host, UnitPods
from diloco_cli.dashboard.waiting_page import waiting_page
from diloco_cli.phase_looks import LOOKS
from diloco_cli.waiting_line import Place
from diloco_operator.api.losses import format_losses
from diloco_operator.api.names import ANNOTATION_SAID, LABEL_UNIT
from diloco_operator.api.phases import Phase
from diloco_operator.reconcile import OperatorConfig

ALLOWED = {
    "html", "head", "meta", "title", "link", "script", "body", "nav", "a", "span", "main", "section", "h1", "h2", "p", "strong", "ul", "li",
    "dl", "div", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "time", "svg", "rect", "text", "line", "polyline", "circle",
    "pre", "code",
}  # fmt: skip


class Read(HTMLParser):
    """The elements, attributes and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.said = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.said += f"{data} "


def words(html: str) -> str:
    return " ".join(Read(html).said.split())


def an_end(name: str, reason: str, message: str, at: str) -> dict[str, Any]:
    return {"reason": reason, "lastTimestamp": at, "metadata": {"annotations": {LABEL_UNIT: name, ANNOTATION_SAID: message}}}


def test_hostile_texts_of_a_job_are_shown_as_text() -> None:
    units = [
        unit(HOSTILE, "BackingOff", reason="Crashed", message=HOSTILE, slice=HOSTILE, failedAttempt=1, notBefore="2026-11-20T21:05:00Z")
    ]
    view = a_view(
        conditions=[condition("Degraded", message=HOSTILE, reason="LearnersMissing")],
        units=[{**units[0], "name": HOSTILE[:63]}],
        pools=[{"name": "v5p", "reason": "NoFreeSlice", "message": HOSTILE, "remedies": [HOSTILE]}],
        hosts=[{"node": HOSTILE, "message": HOSTILE}],
        parts=[{"name": HOSTILE[:63], "message": HOSTILE, "units": [{"name": HOSTILE[:63], "state": HOSTILE[:63]}]}],
    )
    facts = job_facts(view, events=[an_end(HOSTILE, "UnitCrashed", HOSTILE, "2026-11-20T21:00:30Z")])
    quota = Allowance(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    fleet = FleetFacts([view], None, [HOSTILE], {("team", "bytes-lm"): {"v5p": Place(2, 3)}}, quotas=[quota], unseen=[HOSTILE])
    host = Host(0, HOSTILE, HOSTILE, 1, HOSTILE, HOSTILE, runs=False, ended=False, restarts=0, since=None)
    pods = UnitPods([host, replace(host, index=1, runs=True)], 0, HOSTILE, HOSTILE)
    unit_of = unit_page(facts, HOSTILE[:63], pods, "/token")
    assert unit_of is not None
    pages = (
        job_page(facts, "/token"),
        unit_of,
        fleet_page(fleet, "/token"),
        waiting_page(fleet, "/token"),
        goodput_page([facts], [HOSTILE], "/token"),
    )
    for page in pages:
        read = Read(frame(page, "/token", "/"))
        assert set(read.tags) <= ALLOWED
        assert read.tags.count("script") == 1  # our own
        assert not [name for name in read.attributes if name.startswith("on")]
        assert "<script>alert(1)</script>" in read.said


def test_no_page_has_styles_or_scripts_inline() -> None:
    """The policy would refuse them."""
    losses = format_losses([(100, 3.5), (200, 2.5), (300, 2.25)])
    view = a_view(units=[unit(), unit("v5p-1", "Joining")], progress={"step": 300, "steps": 400, "losses": losses})
    samples = [Sample(NOW - 10, 10.0, 1, 2, 0), Sample(NOW, 12.0, 2, 2, 1)]
    html = html_of(job_page(job_facts(view, samples=samples), "/token"))
    assert "Loss over outer steps" in html
    assert "<style" not in html
    assert "style=" not in html


def test_a_job_page_says_what_keeps_it_from_more_and_what_comes_by_itself() -> None:
    crashed = unit(
        "v5p-1", "BackingOff", attempt=2, restarts=2, reason="Crashed", message="container learner exited with status 1", failedAttempt=2,
        notBefore="2026-11-20T21:05:00Z",
    )  # fmt: skip
    view = a_view(
        reason="LearnersMissing", units=[unit(), crashed], learners={"desired": 2, "placed": 2, "contributing": 1, "min": 1, "max": 2}
    )
    html = html_of(job_page(job_facts(view), "/token"))
    said = words(html)
    assert "1 of 2 units contribute" in said
    assert "Next step: kubectl diloco logs bytes-lm v5p-1 -n team" in said
    assert "v5p-1 may start again in 2026-11-20 21:05:00 UTC" in said
    assert 'datetime="2026-11-20T21:05:00+00:00" data-kind="until"' in html


def test_each_attempt_that_ended_is_told_with_its_reason_the_newest_first() -> None:
    events = [
        an_end("v5p-0", "UnitCrashed", "exited with status 1", "2026-11-20T20:10:00Z"),
        an_end("v5p-0", "UnitLost", "node tpu-0 was deleted", "2026-11-20T20:40:00Z"),
        {"reason": "UnitTraining", "lastTimestamp": "2026-11-20T20:50:00Z", "metadata": {"annotations": {LABEL_UNIT: "v5p-0"}}},
    ]
    said = words(html_of(job_page(job_facts(a_view(units=[unit()]), events=events), "/token")))
    assert re.search(r"20:40:00 UTC v5p-0 UnitLost node tpu-0 was deleted .*20:10:00 UTC v5p-0 UnitCrashed exited with status 1", said)
    assert "UnitTraining" not in said


def test_a_unit_has_the_colour_of_its_phase_in_the_timeline_and_in_the_table() -> None:
    html = html_of(job_page(job_facts(a_view(units=[unit(slice="np-0"), unit("v5p-1", "BackingOff", reason="Crashed")])), "/token"))
    assert html.count(LOOKS[Phase.TRAINING].colour) == 3  # the legend, the bar and the table
    assert html.count(LOOKS[Phase.RECOVERY].colour) == 3


def test_units_in_other_clusters_have_rows_in_the_timeline_and_a_table_without_links() -> None:
    far = {"name": "far-0", "state": "Contributing", "since": "2026-11-20T20:59:00Z", "attempt": 3, "tokens": 5000}
    gone = {"name": "far-1", "state": "Disconnected", "since": "2026-11-20T20:59:30Z", "attempt": 1}
    view = a_view(units=[unit(slice="np-0")], parts=[{"name": "tokyo", "units": [far, gone]}], outside=[{"name": "lab"}])
    facts = job_facts(view, spec={"training": {"quorum": 1}, "pools": [{"name": "far", "cluster": "tokyo", "accelerator": "tpu-v6e"}]})
    html = html_of(job_page(facts, "/token"))
    said = words(html)
    assert "Units elsewhere UNIT CLUSTER STATE SINCE ATTEMPT TOKENS far-0 tokyo Contributing 2026-11-20 20:59:00 UTC 3 5.00k" in said
    assert "lab - not joined - 0 0" in said
    assert re.findall(r'href="([^"]+)"', html) == ["/token/jobs/team/bytes-lm/units/v5p-0"]
    assert html.count(LOOKS[Phase.TRAINING].colour) == 5  # the legend, and a bar and a mark of each of two units
    assert html.count(LOOKS[Phase.MISSING].colour) == 3
    spans = {name: [(span.phase, span.seconds) for span in history.spans] for name, history in facts.history.units.items()}
    assert spans["far-0"] == [(Phase.TRAINING, 120.0)], "since 20:59:00, and it is 21:01:00"
    assert spans["far-1"] == [(Phase.MISSING, 90.0)]
    assert by_kind([facts])["tpu-v6e"] == {Use.TRAINING: 120.0, Use.MISSING: 90.0}


def test_samples_of_the_same_few_seconds_are_one() -> None:
    samples = Samples()
    for at in (0.0, 1.0, 2.0, 6.0, 7.0):
        samples.add(Sample(at, at, 1, 1, 0))
    # 1 and 2 are less than 5 s after 0, so each gave way to the next one; 6 is not, and stays.
    assert [sample.at for sample in samples.kept] == [0.0, 6.0, 7.0]


def test_samples_older_than_the_window_are_forgotten_but_the_last_holds_until_the_next() -> None:
    samples = Samples()
    for at in (0.0, 10.0, 20.0, 3000.0):
        samples.add(Sample(at, at, 1, 1, 0))
    assert [(sample.at, sample.tokens_per_second) for sample in samples.since(600.0)] == [(600.0, 20.0), (3000.0, 3000.0)]
    assert len(samples.kept) == 2


def test_what_was_seen_is_weighted_by_time_and_drawn_until_now() -> None:
    """40 minutes without hardware, in which nothing is written, and 10 in which all train: 10 of 50."""
    trains = [Sample(NOW - 600 + 10 * number, 10.0, 4, 4, 0) for number in range(60)]
    html = html_of(job_page(job_facts(a_view(), samples=[Sample(NOW - 3000, 0.0, 0, 4, 0), *trains]), "/token"))
    assert "Seen for 50m00s of the last hour, in which 20% of the units contributed." in words(html)
    waits = [Sample(NOW - 3000, 10.0, 4, 4, 0), Sample(NOW - 2400, 0.0, 0, 4, 0)]  # 10 of 50 minutes, and nothing since
    html = html_of(job_page(job_facts(a_view(), samples=waits), "/token"))
    assert "Seen for 50m00s of the last hour, in which 20% of the units contributed." in words(html)
    html = html_of(job_page(job_facts(a_view(), samples=[Sample(NOW - 3000, 10.0, 4, 4, 0)]), "/token"))
    assert "Seen for 50m00s of the last hour, in which 100% of the units contributed." in words(html), "nothing has changed since"


def test_slices_are_counted_by_kind_and_failure_domain() -> None:
    zone = "topology.kubernetes.io/zone"
    nodes = [
        *a_tpu_slice("np-0", kind="tpu-v6e-slice", topology="2x2", labels={zone: "a"}),
        *a_tpu_slice("np-1", kind="tpu-v6e-slice", topology="2x2", labels={zone: "a"}),
        *a_tpu_slice("np-2", kind="tpu-v6e-slice", topology="2x2", labels={zone: "b"}),
    ]
    nodes[1]["spec"] = {**nodes[1].get("spec", {}), "unschedulable": True}
    inventory = inventory_of(nodes, OperatorConfig().disruption_signals, NOW)
    name = next(each.name for each in inventory.every_slice() if each.locality[0] == "b")
    view = a_view(units=[unit(slice=name)])
    found = slices_of(inventory, [view], [], NOW)
    assert found == {
        SlicePlace("tpu-v6e 2x2", "a"): SliceNumbers(total=2, unusable=1),
        SlicePlace("tpu-v6e 2x2", "b"): SliceNumbers(total=1, used=1),
    }
    said = words(html_of(fleet_page(FleetFacts([view], found, ()), "/token")))
    assert "KIND a b tpu-v6e 2x2 0 of 2, 1 not usable 1 of 1" in said


def test_a_unit_page_compares_its_speed_with_its_pool_and_says_what_it_began_with() -> None:
    units = [
        unit(slice="np-0", tokensPerSecond=50.0, recoverSeconds=4.5, beganWith="the state of v5p-1, 2.1 s"),
        unit("v5p-1", slice="np-1", tokensPerSecond=100.0),
        unit("v5p-2", slice="np-2", tokensPerSecond=120.0),
        unit("h100-0", slice="gpu-0", tokensPerSecond=400.0),
    ]
    view = a_view(units=units, pools=[{"name": "v5p", "tokensPerSecond": 200.0}])
    events = [
        an_end("v5p-0", "UnitCrashed", "exited with status 1", "2026-11-20T20:10:00Z"),
        an_end("v5p-1", "UnitLost", "node tpu-0 was deleted", "2026-11-20T20:40:00Z"),
    ]
    page = unit_page(job_facts(view, events=events), "v5p-0", None, "/token")
    assert page is not None
    said = words(html_of(page))
    assert "of the pool's other units 45%" in said  # 50 of the median of 100 and 120
    assert "of the pool's mean 25%" in said  # 50 of 200
    assert "Its last start: the state of v5p-1, 2.1 s" in said
    assert "exited with status 1" in said
    assert "node tpu-0 was deleted" not in said  # of another unit
    assert unit_page(job_facts(view), "v5p-9", None, "/token") is None


def test_a_waiting_job_has_one_cause_what_helps_and_its_place_in_line() -> None:
    short = {
        "name": "v5p", "placed": 0, "reason": "NoFreeSlice", "message": "pool v5p needs 1 more slice", "remedies": ["more nodes"],
        "waitingSince": "2026-11-20T20:00:00Z",
    }  # fmt: skip
    waits = a_view(state="Queued", pools=[short], learners={"desired": 1, "placed": 0, "contributing": 0, "min": 1, "max": 1})
    trains = replace(a_view(units=[unit()]), name="other")
    facts = FleetFacts([waits, trains], None, (), {("team", "bytes-lm"): {"v5p": Place(2, 3)}})
    html = html_of(waiting_page(facts, "/token"))
    assert html.count("<tr>") == 2  # the head, and one job: the other one has all that it asks for
    said = words(html)
    assert "NoHardware pool v5p NoFreeSlice pool v5p needs 1 more slice more nodes 2026-11-20 20:00:00 UTC v5p: 2nd of 3" in said


def test_accelerator_hours_are_shown_by_job_cluster_and_accelerator() -> None:
    used = {"unitSeconds": {"training": 5400.0}, "acceleratorHours": {"tpu-v5p": 6.0}, "measuredAt": "2026-11-20T21:00:00Z"}
    parts = [{"name": "tokyo", "tokens": 5_000_000, "acceleratorHours": {"tpu-v6e": 2.0, "tpu-v4": 0.5}}, {"name": "osaka"}]
    facts = job_facts(a_view(units=[unit()], goodput=used, parts=parts, progress={"tokens": 11_000_000}))
    said = words(html_of(goodput_page([facts], (), "/token")))
    rows = "team/bytes-lm - tpu-v5p 6 1.00M team/bytes-lm tokyo tpu-v6e 2 2.00M team/bytes-lm tokyo tpu-v4 0.5 2.00M"
    assert f"JOB CLUSTER ACCELERATOR HOURS TOKENS/ACCELERATOR-HOUR {rows}" in said
    assert "6 h of tpu-v5p; 1.00M tokens an accelerator-hour." in words(html_of(job_page(facts, "/token")))


def test_goodput_is_shown_by_job_and_by_kind() -> None:
    seconds = {"training": 750.0, "start": 150.0, "recovery": 100.0}
    view = a_view(
        units=[unit(slice="np-0"), unit("v5p-1", "BackingOff", reason="Crashed")],
        goodput={"productiveShare": 0.75, "interruptions": 3, "unitSeconds": seconds, "measuredAt": "2026-11-20T21:00:00Z"},
    )
    facts = job_facts(view, spec={"pools": [{"name": "v5p", "accelerator": "tpu-v5p", "topology": "2x2x1"}]})
    assert by_kind([facts]) == {"tpu-v5p 2x2x1": {Use.TRAINING: 60.0, Use.RECOVERY: 60.0}}  # a minute of each unit
    said = words(html_of(goodput_page([facts], (), "/token")))
    assert "UNIT TIME TRAINING START RECOVERY INTERRUPTIONS team/bytes-lm 16m40s 75.0% 15.0% 10.0% 3" in said
    assert "tpu-v5p 2x2x1 2m00s 50.0% 50.0%" in said
