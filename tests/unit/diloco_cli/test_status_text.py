"""What `kubectl diloco status` and `units` print."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from builders.cluster_scenes import NOW, SINCE, conditions, unit
from builders.job_views import a_view, described
from builders.jobs import a_job
from diloco_cli.curve import Paper
from diloco_cli.job_tables import jobs_table
from diloco_cli.screen import header, live_table
from diloco_cli.status_text import all_units_lines, as_json, headline, status_text, units_lines, units_text
from diloco_cli.view_model import JobView
from diloco_operator.api.losses import format_losses
from diloco_operator.kube.client import Obj
from diloco_operator.kube.timestamps import format_timestamp
from rich.console import Console, RenderableType

SAID = conditions(Training="True")


def plain_text(rendered: RenderableType) -> str:
    console = Console(width=200, file=io.StringIO(), highlight=False)
    console.print(rendered)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_status_tells_how_far_who_and_why_not_more() -> None:
    waits = unit("h100-0", "Pending", 0, reason="NoCapacity", message="both slices are in use")
    trains = unit("v5p-0", "Training", 2, slice="np-v5p-1", restarts=1, tokensPerSecond=14100.0, weight=0.31, staleness=3)
    progress = {
        "step": 600,
        "steps": 2400,
        "tokens": 41574400,
        "loss": 2.31,
        "tokensPerSecond": 51200.0,
        "estimatedCompletion": "2026-11-20T21:11:00Z",
    }
    pools = [
        {"name": "v5p", "placed": 1, "contributing": 1, "tokensPerSecond": 14230.5, "measuredSeconds": 480.0, "value": 1.2},
        {"name": "h100", "placed": 0, "contributing": 0, "reason": "NoFreeSlice", "message": "2 of 2 slices are in use"},
    ]
    shown = status_text(a_view(trains, waits, progress=progress, pools=pools, Training="True", Degraded="True"), NOW)
    assert shown == (
        "bytes-lm in namespace team\n"
        "  Degraded: about Degraded\n"
        "  step 600 of 2400 (25%), loss 2.310, 41.6M tokens, 51.2k tokens/s, about 10m00s left\n"
        "  1 learner contributes, 2 placed, 3 desired (min 2, max 6)\n"
        "\n"
        "CONDITION   STATUS   REASON           SINCE   MESSAGE\n"
        "Training    True     TrainingReason   1m00s   about Training\n"
        "Degraded    True     DegradedReason   1m00s   about Degraded\n"
        "\n"
        "UNIT     STATE      SINCE   SLICE      ATTEMPT   RESTARTS   TOKENS/S   WEIGHT   STALE   WHY\n"
        "v5p-0    Training   1m00s   np-v5p-1   2         1          14.1k      31%      3\n"
        "h100-0   Pending    1m00s   -          0         0          -          -        -       NoCapacity: both slices are in use\n"
        "\n"
        "POOL   CONTRIBUTE   PLACED   TOKENS/S EACH   VALUE   WHY NOT MORE\n"
        "v5p    1            1        14.2k           1.20\n"
        "h100   0            0        -               1.00    NoFreeSlice: 2 of 2 slices are in use"
    )


@pytest.mark.parametrize(
    ("state", "speed", "told"),
    [
        pytest.param("Training", 51200.0, True, id="no operator runs"),
        pytest.param("Queued", 0.0, False, id="nothing has changed"),
        pytest.param("Suspended", 51200.0, False, id="nothing runs"),
    ],
)
def test_figures_that_nobody_has_written_for_long_are_told_with_their_age(state: str, speed: float, told: bool) -> None:
    progress = {"step": 600, "steps": 2400, "tokensPerSecond": speed, "updatedAt": format_timestamp(NOW - 740)}
    view = JobView.of({**a_job().build(), "status": {"state": state, "progress": progress, "units": [unit()], "conditions": SAID}})
    fresh = JobView.of({**a_job().build(), "status": {"state": state, "progress": {**progress, "updatedAt": format_timestamp(NOW - 20)}}})
    live = [header(view, NOW), live_table(jobs_table([view], NOW), NOW)]
    shown = [status_text(view, NOW), units_text(view.status, NOW), *map(plain_text, live)]
    assert ["as of 12m20s ago" in text for text in shown] == [told] * 4
    assert "as of" not in plain_text(header(fresh, NOW))


def test_a_status_that_somebody_else_wrote_does_not_control_the_terminal() -> None:
    erases = unit("h100-0", "Pending", 0, reason="NoCapacity", message="\x1b[2Jall is \x9b31mwell\nfirst line\rlast line")
    refused = unit("v5p-0", "Training", 1, refused={"\x1b[2Jnon-finite": 2})
    shown = status_text(a_view(erases, refused, Training="True"), NOW)
    assert "NoCapacity: \ufffd[2Jall is \ufffd31mwell" in shown
    assert "\ufffd[2Jnon-finite=2" in "".join(units_lines(a_view(refused).status.units, NOW, wide=True))
    assert shown.replace("\n", "").isprintable()


def test_status_tells_where_the_time_of_the_units_went_the_largest_loss_first() -> None:
    used = {"training": 6750.0, "start": 150.0, "recovery": 600.0, "waiting": 0.1}
    goodput = {"productiveShare": 0.9, "interruptions": 2, "unitSeconds": used, "measuredAt": "2026-11-20T21:00:00Z"}
    line = "  goodput 90.0 % of 2h05m of unit time; recovery 8.0 %, start 2.0 %; 2 interruptions"
    several = a_view(goodput=goodput, parts=[{"name": "tokyo"}], Training="True")
    assert "goodput 90.0 % of 2h05m of unit time in this cluster; " in status_text(several, NOW)
    assert line in status_text(a_view(goodput=goodput, Training="True"), NOW).splitlines()
    assert as_json(a_view(goodput=goodput, Training="True"))["goodput"]["unitSeconds"]["recovery"] == 600.0


@pytest.mark.parametrize(("loss", "text"), [(2.31, "2.310"), (0.0123456, "0.01235"), (4e-5, "4.000e-05"), (1234.5, "1234"), (0.0, "0.000")])
def test_a_small_loss_is_told_from_none(loss: float, text: str) -> None:
    progress = {"step": 1, "steps": 2, "loss": loss}
    assert f"(50%), loss {text}, " in status_text(a_view(progress=progress, Training="True"), NOW)


def test_status_tells_which_slices_are_kept_beside_the_units() -> None:
    pools = [{"name": "v6e", "placed": 4, "contributing": 3, "spares": 1}, {"name": "h100", "placed": 2, "contributing": 2, "spares": 2}]
    lines = status_text(a_view(pools=pools, Training="True"), NOW).splitlines()
    assert [line.rstrip() for line in lines[-2:]] == [
        "v6e    3            4 + 1 spare    -               1.00",
        "h100   2            2 + 2 spares   -               1.00",
    ]


def test_status_tells_the_accelerator_hours_and_the_tokens_for_them() -> None:
    goodput = {"measuredAt": "2026-11-20T21:00:00Z", "acceleratorHours": {"tpu-v5p": 12.42, "nvidia-h100-80gb": 3.08}}
    parts: list[Obj] = [
        {"name": "tokyo", "tokens": 5_000_000, "acceleratorHours": {"tpu-v6e": 2.5}, "productiveShare": 0.937},
        {"name": "osaka", "tokens": 1_000_000},
    ]
    outside: list[Obj] = [{"name": "lab", "tokens": 400_000}]
    view = a_view(goodput=goodput, parts=parts, outside=outside, progress={"tokens": 25_000_000}, Training="True")
    lines = status_text(view, NOW).splitlines()
    # 25.0 M of the job less 5.0 M, 1.0 M and 0.4 M of the others are 18.6 M in 15.5 hours.
    assert "  12.4 h of tpu-v5p, 3.1 h of nvidia-h100-80gb; 1.20M tokens an accelerator-hour" in lines
    assert [line.rstrip() for line in lines[-2:]] == [
        "PART    ROUND TRIP   UP   DOWN   GOODPUT   ACCELERATOR-HOURS   TOKENS/ACCELERATOR-HOUR",
        "tokyo   -            -    -      94%       2.5 tpu-v6e         2.00M",
    ]
    assert as_json(view)["goodput"]["acceleratorHours"] == goodput["acceleratorHours"]
    assert as_json(view)["parts"][0]["acceleratorHours"] == {"tpu-v6e": 2.5}


def test_the_tokens_for_the_hours_of_a_part_are_those_of_its_own_units() -> None:
    goodput = {"measuredAt": "2026-11-20T21:00:00Z", "acceleratorHours": {"tpu-v5p": 0.004}}
    view = a_view(unit(tokens=4000), goodput=goodput, home={}, progress={"tokens": 25_000_000}, Training="True")
    assert "  0.004 h of tpu-v5p; 1.00M tokens an accelerator-hour" in status_text(view, NOW).splitlines()


def test_status_tells_what_is_heard_of_the_parts_in_other_clusters() -> None:
    pools = [
        {"name": "v5p", "placed": 1, "contributing": 1},
        {"name": "far", "cluster": "tokyo", "assigned": 2, "placed": 1, "contributing": 1, "tokensPerSecond": 900.0},
    ]
    heard: Obj = {
        "units": [{"name": "far-0", "state": "Contributing"}, {"name": "far-1", "state": "Joining"}],
        "contributing": 1,
        "tokens": 5000,
        "tokensPerSecond": 900.0,
        "weight": 0.4,
        "lastHeard": "2026-11-20T21:00:50Z",
        "mergeShare": 0.97,
        "roundTripSeconds": 0.0831,
        "receivedBytesPerSecond": 41_234_567,
        "sentBytesPerSecond": 812_000,
    }
    failed = "LearnersFailed: far-1"
    parts: list[Obj] = [
        {"name": "tokyo", "state": "Degraded", "message": failed, **heard},
        {"name": "osaka", "message": "no route", "silentSince": "2026-11-20T20:00:00Z"},
    ]
    silent = "its cluster has not answered since 2026-11-20T20:00:00Z; no route"
    lines = status_text(a_view(pools=pools, parts=parts, Training="True"), NOW).splitlines()
    assert [line.rstrip() for line in lines[-10:]] == [
        "POOL   CLUSTER   CONTRIBUTE   PLACED   TOKENS/S EACH   VALUE   WHY NOT MORE",
        "v5p    -         1            1        -               1.00",
        "far    tokyo     1            1 of 2   900             1.00",
        "",
        "PART    STATE      CONTRIBUTE   TOKENS/S   WEIGHT   MERGES   TOKENS   HEARD   WHY",
        f"tokyo   Degraded   1/2          900        40%      97%      5.00k    10s     {failed}",
        f"osaka   -          0/0          0          0%       -        0        -       {silent}",
        "",
        "PART    ROUND TRIP   UP         DOWN      GOODPUT   ACCELERATOR-HOURS   TOKENS/ACCELERATOR-HOUR",
        "tokyo   83ms         41.2MB/s   812kB/s   -         -                   -",
    ]
    assert [part["name"] for part in as_json(a_view(parts=parts, Training="True"))["parts"]] == ["tokyo", "osaka"]


def test_units_elsewhere_have_a_table_with_what_the_syncer_hears_of_them() -> None:
    far = [
        {"name": "far-0", "state": "Contributing", "since": "2026-11-20T21:00:00Z", "attempt": 1, "tokens": 5000},
        {"name": "far-1", "state": "Disconnected", "since": "2026-11-20T21:00:50Z", "attempt": 3},
    ]
    view = a_view(unit(), parts=[{"name": "tokyo", "units": far}, {"name": "osaka"}], outside=[{"name": "lab"}], Training="True")
    lines = all_units_lines(view.status, NOW)
    assert lines[:2] == units_lines(view.status.units, NOW)
    assert lines[2:] == [
        "",
        "UNIT    CLUSTER   STATE          SINCE   ATTEMPT   TOKENS",
        "far-0   tokyo     Contributing   1m00s   1         5.00k",
        "far-1   tokyo     Disconnected   10s     3         0",
        "lab     -         not joined     -       0         0",
    ]
    assert "\n".join(lines) in status_text(view, NOW)
    assert as_json(view)["parts"][0]["units"][1] == {**far[1], "tokens": 0}
    assert [learner["name"] for learner in as_json(view)["outside"]] == ["lab"]


def test_a_job_whose_units_are_all_elsewhere_has_their_table_alone() -> None:
    parts: list[Obj] = [{"name": "tokyo", "units": [{"name": "far-0", "state": "Joining", "attempt": 1}]}]
    assert all_units_lines(a_view(parts=parts).status, NOW)[0].startswith("UNIT    CLUSTER")
    assert all_units_lines(a_view(parts=[{"name": "tokyo"}]).status, NOW) == []


def test_status_of_a_part_names_the_job_at_home_and_when_it_was_heard() -> None:
    home = {"part": "tokyo", "namespace": "team", "name": "lm", "uid": "u", "lastHeard": "2026-11-20T21:00:50Z"}
    assert "  part tokyo of job team/lm at home, last heard 10s ago" in status_text(a_view(home=home, Training="True"), NOW).splitlines()
    assert "  a part of a job at home, not heard yet" in status_text(a_view(home={}, Training="True"), NOW).splitlines()


MODEL = {"step": 40, "claim": "lm-syncer", "path": "snapshots/snapshot-00000003-t40", "format": "safetensors", "retain": "Keep"}


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (MODEL, "in claim lm-syncer, snapshots/snapshot-00000003-t40 (safetensors); the claim is kept when the job is deleted"),
        (
            {**MODEL, "uri": "s3://b/s-3", "retain": "Delete"},
            "in claim lm-syncer, snapshots/snapshot-00000003-t40 (safetensors), copied to s3://b/s-3; the claim is deleted with the job",
        ),
        (
            {"step": 40, "claim": "lm-syncer", "format": "safetensors"},
            "in claim lm-syncer (safetensors); the claim is deleted with the job",
        ),
    ],
)
def test_status_says_where_the_newest_snapshot_is(model: Obj, line: str) -> None:
    view = a_view(unit(), model=model, Training="True")
    assert f"\n  newest snapshot: outer step 40, {line}\n" in status_text(view, NOW)
    assert as_json(view)["model"]["claim"] == "lm-syncer"


@pytest.mark.parametrize(("end", "what"), [("Complete", "the model"), ("Failed", "the parameters of the last snapshot")])
def test_status_of_a_job_that_is_over_leaves_the_place_to_its_message_and_says_how_to_get_the_model(end: str, what: str) -> None:
    over: dict[str, Any] = {end: "True"}
    shown = status_text(a_view(unit(), model=MODEL, **over), NOW)
    assert f"\n  {what} as one file: kubectl diloco export bytes-lm -n team -o model.safetensors\n" in shown
    assert "newest snapshot" not in shown
    assert "diloco export" not in status_text(a_view(unit(), **over), NOW)


def test_long_reason_stands_in_full_once() -> None:
    why = "1 of 2 learners contribute, learners.min is 2; v5p-1 is backing off (" + "attempt 1 ended: exit 137 " * 5 + ")"
    shown = status_text(described("Degraded", "LearnersFailed", Degraded=("True", "LearnersFailed", why)), NOW)
    assert shown.splitlines()[1] == "  Degraded (LearnersFailed): 1 of 2 learners contribute, learners.min is 2; …"
    assert shown.count(why) == shown.count("v5p-1 is backing off") == 1


def test_missing_quorum_is_explained_by_the_condition_that_names_the_units() -> None:
    training = ("False", "QuorumMissing", "0 of 1 learner contributes, training.quorum is 1: outer steps wait; see Degraded")
    degraded = ("Unknown", "LearnersStarting", "0 of 1 learner contributes, learners.min is 1; v5p-0 is joining (it compiles)")
    view = described("Starting", "QuorumMissing", Training=training, Degraded=degraded)
    assert headline(view) == f"Starting (QuorumMissing): {degraded[2]}"


def test_a_job_whose_spec_is_not_accepted_says_so_and_shows_no_minimum_of_nothing() -> None:
    accepted = ("False", "SpecInvalid", "spec.pools[0].accelerator: no such kind. What runs is left alone until the spec is fixed")
    shown = status_text(described("NotAccepted", "SpecInvalid", Accepted=accepted), NOW)
    assert shown.splitlines()[1] == f"  NotAccepted (SpecInvalid): {accepted[2]}"
    assert "min 0" not in shown


LOSSES = format_losses((step, 1 + 4 / step) for step in range(1, 21))


@pytest.mark.parametrize("state", ["Training", "Complete", "Failed", "Suspended"])
def test_status_draws_the_loss_in_every_state_that_a_job_can_be_in(state: str) -> None:
    progress = {"step": 20, "steps": 40, "losses": LOSSES, "heldOutLosses": "20:1.5"}
    over: dict[str, Any] = {state: "True"}
    view = a_view(unit(), progress=progress, **over)
    curve = status_text(view, NOW, Paper(80, unicode=False)).split("\n\n")[1].splitlines()
    assert curve[0] == "  loss by outer step: 1.2 at step 20; o held-out loss 1.5 at step 20"
    assert curve[1].startswith("  5.00 +")
    assert curve[-1].split() == ["1", "10", "20"]
    assert max(map(len, curve)) == 80
    assert as_json(view)["progress"]["losses"] == LOSSES


def test_status_draws_nothing_before_there_are_three_points() -> None:
    view = a_view(unit(), progress={"step": 2, "steps": 40, "losses": "1:5 2:3"}, Training="True")
    assert status_text(view, NOW, Paper(80, unicode=False)) == status_text(view, NOW)


def test_status_names_the_hosts_on_which_attempts_failed_and_those_that_are_avoided() -> None:
    def a_host(node: str, *at: str, message: str, **fields: Any) -> Obj:
        failures = [{"unit": "v5p-0", "attempt": number, "at": each, "reason": "Crashed"} for number, each in enumerate(at, start=1)]
        return {"node": node, "failures": failures, "message": message, **fields}

    bad = a_host("tpu-3", SINCE, "2026-11-20T21:00:30Z", message="v5p-0, attempt 2: exit 1", avoidedUntil="2026-11-20T21:11:00Z")
    was_bad = a_host("tpu-4", SINCE, message="v5p-1, attempt 1: exit 1", avoidedUntil="2026-11-20T21:00:59Z")
    view = a_view(hosts=[bad, was_bad, a_host("tpu-5", SINCE, message="v5p-2, attempt 1: exit 1")], Training="True")
    assert status_text(view, NOW).split("\n\n")[-1] == (
        "HOST    FAILURES   LAST    AVOIDED FOR   LAST FAILURE\n"
        "tpu-3   2          30s     10m00s        v5p-0, attempt 2: exit 1\n"
        "tpu-4   1          1m00s   -             v5p-1, attempt 1: exit 1\n"
        "tpu-5   1          1m00s   -             v5p-2, attempt 1: exit 1"
    )
    assert [host["node"] for host in as_json(view)["hosts"]] == ["tpu-3", "tpu-4", "tpu-5"]


def test_job_without_status_may_be_in_a_namespace_that_no_operator_watches() -> None:
    assert "watches namespace team: watchNamespaces of its Helm release" in status_text(a_view(), NOW)


@pytest.mark.parametrize(
    ("view", "headline"),
    [
        (a_view(), "The operator has not seen this job yet."),
        (a_view(Failed="True", Complete="False"), "Failed: about Failed"),
        (a_view(Complete="True", Training="False"), "Complete: about Complete"),
        (a_view(suspend=True, Suspended="True"), "Suspended: about Suspended"),
        (a_view(suspend=True, Suspended="False", Training="True"), "Training, to be suspended: the operator has not seen spec.suspend yet"),
        (a_view(Accepted="True", Placed="False", Training="False"), "Starting: Placed=False PlacedReason: about Placed"),
    ],
)
def test_the_headline_is_what_matters_most(view: JobView, headline: str) -> None:
    assert status_text(view, NOW).splitlines()[1].strip().startswith(headline)


def test_status_for_programs_has_the_names_of_the_api() -> None:
    shown = as_json(a_view(unit(tokensPerSecond=1.5), pools=[{"name": "v5p", "placed": 2}], Training="True"))
    assert json.loads(json.dumps(shown)) == shown
    assert (shown["name"], shown["namespace"], shown["suspend"]) == ("bytes-lm", "team", False)
    assert shown["learners"]["contributing"] == 1
    assert shown["units"][0]["tokensPerSecond"] == 1.5
    assert shown["pools"][0]["placed"] == 2
    assert shown["conditions"][0]["lastTransitionTime"] == SINCE


def test_wide_units_tell_what_they_have_done() -> None:
    figures: Obj = {"mergeShare": 0.969, "tokens": 1000, "steps": 40, "stepsPerSync": 24, "refused": {"Stale": 2, "Late": 0}}
    status = a_view(unit(recoverSeconds=3.25, **figures)).status
    header, row = units_lines(status.units, NOW, wide=True)
    assert header.split()[9:15] == ["MERGES", "TOKENS", "STEPS", "STEPS/SYNC", "REFUSED", "RECOVERED"]
    assert row.split()[9:] == ["97%", "1000", "40", "24", "Stale=2", "3.2s"]
    _, row = units_lines(a_view(unit(tokens=1000, ownData=True)).status.units, NOW, wide=True)
    assert " 1000 (own data) " in row
