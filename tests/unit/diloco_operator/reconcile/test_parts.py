"""A job whose units are in two clusters: what home signs for a part, and how the part works with that and with nothing else."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders.jobs import a_job, with_field
from builders.nodes import a_tpu_node
from builders.pods import exits
from builders.reports import a_report
from builders.stage import Stage
from diloco import contract
from diloco.contract import Result, UnitResult
from diloco_operator.api import names
from diloco_operator.api.conditions import ConditionType
from diloco_operator.certificates.view import project_certificates
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.observe.part_view import part_state
from diloco_operator.report import Link, PartState, ToldPart, UnitPhase

SECRET = "bytes-lm-part-tokyo-tls"
AT = {"address": "syncer.example.com:443", "secretName": "bytes-lm-home"}
UNIT = "far-0"
HOUR = 3600.0


def a_home(units: int = 1, **training: Any) -> Stage:
    """Home has one unit of its own, and tokyo may have `units`."""
    parts = [{"name": "tokyo", "pools": [{"name": "far", "units": units}]}]
    job = a_job().with_learners(1, 1).with_pool(max=1).with_training(**training).with_spec(parts=parts)
    stage = Stage(job, a_tpu_node("tpu-0"))
    stage.settle()
    return stage


def secret_of(home: Stage) -> dict[str, Any]:
    """The Secret as `kubectl diloco part` makes it, as the API server of tokyo stores it."""
    files = {**home.secrets[SECRET]["data"], "job.json": base64.b64encode(home.children["ConfigMap"]["data"]["job.json"].encode()).decode()}
    return {"metadata": {"name": AT["secretName"], "namespace": "team", "labels": {"diloco.dev/job": "bytes-lm"}}, "data": files}


def a_part(home: Stage | None = None, *, units: int = 1, learners: Mapping[str, Any] | None = None, **training: Any) -> Stage:
    """The part in tokyo, with the Secret of home and a first report of the syncer, before its first reconcile."""
    job = a_job().with_learners(1, units, **(learners or {})).with_pool("far", max=units).with_training(**training)
    job = job.with_metadata(uid="uid-of-the-part").with_spec(syncer={"at": AT})
    part = Stage(job, *(a_tpu_node(f"tpu-{index}") for index in range(units)))
    part.listening_since = part.now
    part.part_secret = secret_of(home or a_home(units))
    part.report = a_report(at=part.now)
    return part


def attempts(home: Stage, unit: str = UNIT) -> list[int]:
    """Attempts of the unit with a certificate in the part's Secret."""
    keys = project_certificates(home.secrets[SECRET]).certificates
    return sorted(int(key.removeprefix(f"{unit}-a").removesuffix(".pem")) for key in keys if key.startswith(f"{unit}-a"))


# --- home: certificates -------------------------------------------------------------------------------------------------
def test_home_signs_for_the_next_attempts_of_each_unit_and_for_the_operator_of_the_part() -> None:
    home = a_home(units=2)
    found = project_certificates(home.secrets[SECRET]).certificates
    uid = home.job["metadata"]["uid"]
    assert found["part.pem"].identity == f"diloco://{uid}/part/tokyo"
    assert found["far-1-a16.pem"].identity == f"diloco://{uid}/learner/far-1/16"
    assert found["far-1-a16.pem"].host_names == ("far-1-16.learner.bytes-lm.team.svc",)
    assert len(found) == 1 + 2 * 16
    assert len(home.learner_pods()) == 1, "home starts nothing in tokyo"


def test_the_window_of_attempts_follows_what_the_syncer_has_accepted() -> None:
    home = a_home().train()
    home.syncer_says(UNIT, 5, UnitPhase.CONTRIBUTING)
    home.settle()
    assert attempts(home) == list(range(5, 21))
    home.restart_operator()
    home.settle()
    assert attempts(home) == list(range(5, 21)), "without a report the Secret itself shows how far the unit was"


def test_a_unit_whose_attempts_never_join_gets_certificates_for_further_ones() -> None:
    home, part = a_home().train(), a_part()
    for _ in range(40):
        part.settle()
        part.pods.clear()  # its node was taken away before it joined
        part.now += 900
        part.report = a_report(at=part.now)
        part.settle()
        home.now = part.now
        home.all_contribute(parts={"tokyo": ToldPart(part_state(part.status), home.now)})
        home.settle()
        part.part_secret = secret_of(home)
    assert (part.unit(UNIT)["attempt"], attempts(home)[0]) == (41, 41)


@pytest.mark.parametrize("says", [1000, 2**31 - 1])
def test_whatever_a_part_says_of_its_attempts_moves_its_own_window_and_by_what_home_has_signed(says: int) -> None:
    home = a_home().train()
    home.all_contribute(parts={"tokyo": ToldPart(PartState("Training", attempts={UNIT: says, "v5p-0": says}), home.now)})
    home.step()
    home.step()
    assert attempts(home)[0] <= 1 + 2 * 15
    assert home.learner_pods() == ["bytes-lm-v5p-0-a1-0"]


def test_a_part_that_was_made_anew_goes_on_from_the_attempts_for_which_home_signs() -> None:
    home = a_home().train()
    home.all_contribute(parts={"tokyo": ToldPart(PartState("Queued", attempts={UNIT: 9}), home.now)})
    home.settle()
    part = a_part(home)
    part.settle()
    assert part.learner_pods() == [f"bytes-lm-{UNIT}-a9-0"]


def test_keys_that_a_stranger_wrote_into_the_secret_do_not_move_the_window() -> None:
    home = a_home()
    home.secrets[SECRET]["data"][f"{UNIT}-a900.pem"] = home.secrets[SECRET]["data"][f"{UNIT}-a1.pem"]
    del home.secrets[SECRET]["data"][f"{UNIT}-a1.pem"]
    home.settle()
    assert attempts(home) == list(range(2, 18))


def test_certificates_of_a_part_are_renewed_as_all_others_are() -> None:
    home = a_home().train()
    before = project_certificates(home.secrets[SECRET]).certificates["part.pem"].expires
    home.now += home.config.certificate_lifetime * 0.7
    home.all_contribute()
    home.settle()
    assert project_certificates(home.secrets[SECRET]).certificates["part.pem"].expires > before


def test_a_new_authority_replaces_all_that_a_part_was_given() -> None:
    """So a Secret that was stolen is worth nothing after some minutes."""
    home = a_home().train()
    stolen = project_certificates(home.secrets[SECRET]).certificates
    del home.secrets["bytes-lm-ca"]
    for _ in range(3):
        home.settle()
        home.now += home.config.secret_propagation
        home.all_contribute()
    home.settle()
    found = project_certificates(home.secrets[SECRET])
    assert {each.authority for each in found.certificates.values()} == {found.roots[0].id}
    assert len(found.roots) == 1
    assert found.roots[0].id not in {each.authority for each in stolen.values()}


# --- home: status -------------------------------------------------------------------------------------------------------
def test_home_shows_what_it_last_heard_of_a_part_and_counts_its_units_for_the_quorum() -> None:
    home = a_home(units=2).train()
    assert home.status["parts"] == [{"name": "tokyo"}]
    home.syncer_says(UNIT, 1, UnitPhase.CONTRIBUTING)
    home.settle()
    heard = home.status["parts"][0].pop("lastHeard")
    unit = {"name": UNIT, "state": "Contributing", "since": "2026-11-20T12:00:00Z", "attempt": 1, "tokens": 4000}
    figures = {"tokens": 4000, "tokensPerSecond": 100.0, "weight": 0.5}
    assert home.status["parts"] == [{"name": "tokyo", "units": [unit], "contributing": 1, **figures}]
    assert heard == "2026-11-20T12:00:00Z"
    assert home.condition("Training")["message"].startswith("1 of 1 learner contributes, and 1 outside the cluster")
    home.syncer_says("v5p-0", 1, UnitPhase.JOINING)
    home.settle()
    assert home.condition("Training")["reason"] == "QuorumContributing"


def since(home: Stage) -> str:
    """Since when the unit in tokyo is in its state."""
    [[unit]] = (part["units"] for part in home.status["parts"])
    return str(unit["since"])


def test_a_unit_of_a_part_is_in_its_state_since_the_operator_first_heard_so() -> None:
    home = a_home().train()
    home.syncer_says(UNIT, 1, UnitPhase.CONTRIBUTING)
    home.settle()
    home.now += 60  # to 12:01:00
    home.restart_operator()
    home.all_contribute()
    home.syncer_says(UNIT, 1, UnitPhase.CONTRIBUTING, tokens=5000)
    home.settle()
    assert home.status["parts"][0]["tokens"] == 5000
    assert since(home) == "2026-11-20T12:00:00Z", "the same state, also for another operator"
    home.now += 1
    home.syncer_says(UNIT, 1, UnitPhase.DISCONNECTED)
    home.settle()
    assert since(home) == "2026-11-20T12:01:01Z"
    home.now += 1
    home.syncer_says(UNIT, 2, UnitPhase.DISCONNECTED)
    home.settle()
    assert since(home) == "2026-11-20T12:01:02Z", "another attempt"


def test_the_state_of_a_unit_of_a_part_is_written_at_once_and_its_tokens_with_the_next_write() -> None:
    home = a_home().train()
    home.syncer_says(UNIT, 1, UnitPhase.CONTRIBUTING)
    home.settle()
    home.syncer_says(UNIT, 1, UnitPhase.CONTRIBUTING, tokens=5000)
    assert home.reconcile_only().status is None
    home.syncer_says(UNIT, 1, UnitPhase.JOINING, tokens=5000)
    written = home.reconcile_only().status
    assert written is not None
    [part] = written.status["parts"]
    assert [(unit["state"], unit["tokens"]) for unit in part["units"]] == [("Joining", 5000)]


MEASURED = {
    "mergeShare": 0.96, "roundTripSeconds": 0.0831, "receivedBytesPerSecond": 41_000_000, "sentBytesPerSecond": 20_000_000,
    "receivedBytes": 2500, "sentBytes": 900,
}  # fmt: skip


def with_a_measured_link(home: Stage) -> Stage:
    """Two units of tokyo contribute, and a third one has gone."""
    far = {"received_bytes": 1000, "sent_bytes": 400}
    home.syncer_says("far-0", 1, UnitPhase.CONTRIBUTING, merge_share=0.99, round_trip_seconds=0.09, **far)
    home.syncer_says("far-1", 1, UnitPhase.CONTRIBUTING, merge_share=0.93, round_trip_seconds=0.08312, **far)
    home.syncer_says("far-2", 1, UnitPhase.DISCONNECTED, merge_share=0.1, received_bytes=500, sent_bytes=100)
    home.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING, merge_share=1.0, round_trip_seconds=0.0001, received_bytes=7777, sent_bytes=7777)
    assert home.report is not None
    links = {"tokyo": Link(41_000_000, 20_000_000), "osaka": Link(1, 1), "": Link(2, 2)}
    home.report = replace(home.report, links=links)
    home.settle()
    return home


def link_of(status: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in status["parts"][0].items() if key in MEASURED}


def test_home_shows_how_the_link_of_a_part_carries() -> None:
    home = with_a_measured_link(a_home(units=3).train())
    # Merges: the mean of 99 and 93 %. Bytes: of all three units, 2 * 1000 + 500 and 2 * 400 + 100. Nothing of home's own unit.
    assert link_of(home.status) == MEASURED
    assert home.status["units"][0]["mergeShare"] == 1.0


def test_an_older_syncer_measures_no_link_and_nothing_is_shown_of_it() -> None:
    home = a_home().train()
    home.syncer_says(UNIT, 1, UnitPhase.CONTRIBUTING)
    home.settle()
    assert home.status["parts"][0]["contributing"] == 1
    assert link_of(home.status) == {}
    assert "mergeShare" not in home.status["units"][0]


def test_what_is_measured_of_a_link_is_written_with_the_other_figures_and_causes_no_write() -> None:
    home = with_a_measured_link(a_home(units=3).train())
    written = home.status
    assert home.report is not None
    home.report = replace(home.report, links={"tokyo": Link(42_000_000, 21_000_000)})
    home.now += 1.0
    home.settle()
    assert home.status == written
    home.now += home.config.progress_interval
    home.settle()
    assert link_of(home.status) == MEASURED | {"receivedBytesPerSecond": 42_000_000, "sentBytesPerSecond": 21_000_000}


@pytest.mark.parametrize("ends", [True, False])
def test_of_the_link_to_a_syncer_that_has_ended_only_the_bytes_stay(ends: bool) -> None:
    home = with_a_measured_link(a_home(units=3).train())
    if ends:
        exits(home.syncer, 0, home.now)
    else:
        home.edit(suspend=True)
    for _ in range(3):
        home.settle()
        home.kubelets_finish_deletions()
    assert link_of(home.status) == {"receivedBytes": 2500, "sentBytes": 900}


def test_what_a_part_trained_after_the_last_report_is_counted_when_the_job_is_complete() -> None:
    home = a_home(units=2).train()
    home.syncer_says(UNIT, 1, UnitPhase.CONTRIBUTING, tokens=4000)
    home.settle()
    units = [UnitResult(unit=unit, tokens=tokens, steps=1, contributions=1) for unit, tokens in {"v5p-0": 6000, UNIT: 6500}.items()]
    exits(home.syncer, 0, home.now, message=Result(step=9, steps=9, tokens=12_500, units=units).model_dump_json(by_alias=True))
    home.settle()
    [part] = home.status["parts"]
    [unit] = part["units"]
    assert (unit["state"], unit["tokens"], part["tokens"], home.unit("v5p-0")["tokens"]) == ("Done", 6500, 6500, 6000)
    home.settle()
    assert home.status["parts"] == [part], "it stays so"


def test_a_result_without_room_for_the_units_of_a_part_takes_nothing_from_what_was_reported() -> None:
    home = a_home(units=2).train()
    home.syncer_says(UNIT, 1, UnitPhase.CONTRIBUTING, tokens=4000)
    home.settle()
    exits(home.syncer, 0, home.now, message=Result(step=9, steps=9, tokens=12_500).model_dump_json(by_alias=True))
    home.restart_operator()
    home.settle()
    [part] = home.status["parts"]
    assert ([unit["tokens"] for unit in part["units"]], part["tokens"]) == ([4000], 4000)


def test_home_keeps_what_it_knew_of_a_part_while_its_own_syncer_is_silent() -> None:
    home = a_home().train()
    home.syncer_says(UNIT, 1, UnitPhase.CONTRIBUTING)
    home.settle()
    known = copy.deepcopy(home.status["parts"])
    home.now += HOUR
    home.settle()
    assert home.status["parts"] == known


def tokyo_tells(home: Stage, state: str, message: str = "", *, at: float | None = None, **figures: Any) -> Stage:
    """The operator of the part has told the syncer so at `at`, which is now if it is None."""
    home.syncer_says(UNIT, 1, UnitPhase.CONTRIBUTING)
    assert home.report is not None
    told = ToldPart(PartState(state, message, **figures), home.now if at is None else at)
    home.report = replace(home.report, parts={"tokyo": told})
    home.now += home.config.progress_interval  # figures alone cause no write
    home.settle()
    return home


def told_of(home: Stage) -> dict[str, Any]:
    fields = ("state", "message", "acceleratorHours", "productiveShare", "silentSince")
    return {key: value for key, value in home.status["parts"][0].items() if key in fields}


def test_home_shows_the_state_that_the_operator_of_a_part_tells_the_syncer() -> None:
    home = tokyo_tells(a_home().train(), "Queued", "NoFreeSlice: both slices are in use")
    assert told_of(home) == {"state": "Queued", "message": "NoFreeSlice: both slices are in use"}
    tokyo_tells(home, "Training", productive_share=0.93, accelerator_hours={"tpu-v6e": 12.5})
    assert told_of(home) == {"state": "Training", "productiveShare": 0.93, "acceleratorHours": {"tpu-v6e": 12.5}}
    tokyo_tells(home, "Training", accelerator_hours={"tpu-v6e": 2.0})
    assert told_of(home)["acceleratorHours"] == {"tpu-v6e": 12.5}, "its object was made anew"


def test_a_change_of_the_state_of_a_part_is_written_at_once() -> None:
    home = tokyo_tells(a_home().train(), "Training")
    assert home.report is not None
    home.report = replace(home.report, parts={"tokyo": ToldPart(PartState("Degraded"), home.now)})
    written = home.reconcile_only().status
    assert written is not None
    assert written.status["parts"][0]["state"] == "Degraded"


def test_a_part_whose_operator_tells_nothing_any_more_is_silent_since_it_last_did() -> None:
    home = a_home().train()
    told_at = home.now
    tokyo_tells(home, "Training", at=told_at)
    assert told_of(home) == {"state": "Training"}
    home.now += 200
    tokyo_tells(home, "Training", at=told_at)
    assert told_of(home) == {"state": "Training", "silentSince": "2026-11-20T12:00:00Z"}
    tokyo_tells(home, "Training", at=told_at + 1.0)
    assert told_of(home)["silentSince"] == "2026-11-20T12:00:00Z", "the same word, by a clock that differs a little"
    tokyo_tells(home, "Training")
    assert told_of(home) == {"state": "Training"}


def test_another_process_of_the_syncer_that_was_told_nothing_yet_leaves_the_state_as_it_was() -> None:
    home = tokyo_tells(a_home().train(), "Queued", "NoFreeSlice: both slices are in use")
    known = told_of(home)
    began = home.now
    for later, silent in ((60.0, {}), (240.0, {"silentSince": format_timestamp(began)})):
        home.now = began + later
        home.syncer_says(UNIT, 1, UnitPhase.CONTRIBUTING)
        assert home.report is not None
        home.report = replace(home.report, parts={}, connected_at=began)
        home.settle()
        assert told_of(home) == known | silent


def test_what_a_part_told_a_syncer_that_has_ended_is_not_shown_as_of_now() -> None:
    home = tokyo_tells(a_home().train(), "Training", productive_share=0.93, accelerator_hours={"tpu-v6e": 12.5})
    home.edit(suspend=True)
    for _ in range(3):
        home.settle()
        home.kubelets_finish_deletions()
    assert home.status["state"] == "Suspended"
    assert told_of(home) == {"productiveShare": 0.93, "acceleratorHours": {"tpu-v6e": 12.5}}


# --- the part: what it makes --------------------------------------------------------------------------------------------
def test_a_part_has_learners_and_a_service_and_nothing_else() -> None:
    part = a_part().train()
    assert set(part.children) == {"Service"}
    assert (part.secrets, part.external_service) == ({}, None)
    assert list(part.pods) == [f"bytes-lm-{UNIT}-a1-0"]
    assert part.condition(ConditionType.TRAINING)["reason"] == "QuorumContributing"


def test_its_learners_join_the_job_at_home_with_a_certificate_of_their_attempt() -> None:
    home = a_home()
    part = a_part(home)
    part.settle()
    spec = part.pod(UNIT, 1)["spec"]
    env = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    assert (env["DILOCO_SYNCER_ADDRESS"], env["DILOCO_CLUSTER"]) == ("syncer.example.com:443", "tokyo")
    secrets = {volume["name"]: volume["secret"] for volume in spec["volumes"] if "secret" in volume}
    assert {each["secretName"] for each in secrets.values()} == {"bytes-lm-home"}
    assert [item["key"] for item in secrets["diloco-tls"]["items"]] == ["ca.crt", f"{UNIT}-a1.pem"]
    assert [item["key"] for item in secrets["diloco-job"]["items"]] == ["job.json"]
    assert part.part_secret is not None
    mounted = contract.JobFile.model_validate_json(base64.b64decode(part.part_secret["data"]["job.json"]))
    assert mounted.uid == home.job["metadata"]["uid"], "learners name the job at home, as their certificates do"


def test_status_of_a_part_names_the_job_at_home_and_when_it_was_heard() -> None:
    home = a_home()
    part = a_part(home).train()
    assert part.status["home"] == {
        "part": "tokyo",
        "namespace": "team",
        "name": "bytes-lm",
        "uid": home.job["metadata"]["uid"],
        "lastHeard": "2026-11-20T12:00:00Z",
    }
    assert "model" not in part.status


def test_a_quorum_that_needs_units_of_several_clusters_is_homes_to_say() -> None:
    part = a_part(a_home(quorum=1), quorum=1)
    part.job["spec"]["training"]["quorum"] = 3
    part.settle()
    assert part.condition("Training")["message"].startswith("spec.training.quorum is 3 here and 1 at home")
    assert part.learner_pods() == []


# --- the part: its Secret -----------------------------------------------------------------------------------------------
def without(secret: dict[str, Any], key: str) -> dict[str, Any]:
    return {**secret, "data": {name: text for name, text in secret["data"].items() if name != key}}


def test_without_its_secret_a_part_starts_nothing_and_says_what_is_missing() -> None:
    part = a_part()
    secret, part.part_secret = part.part_secret, None
    part.settle()
    assert part.learner_pods() == []
    assert part.condition("Training")["reason"] == "HomeUnknown"
    assert part.condition("Training")["message"].startswith("Secret bytes-lm-home does not exist here, or lacks the label diloco.dev/job=")
    part.part_secret = secret
    part.settle()
    assert part.learner_pods() == [f"bytes-lm-{UNIT}-a1-0"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("ca.crt", "ca.crt holds no certificate authority"),
        ("part.pem", "part.pem holds no key and certificate of a part of job team/bytes-lm"),
    ],
)
def test_a_secret_that_lacks_a_file_is_told_by_that_file(key: str, message: str) -> None:
    part = a_part()
    assert part.part_secret is not None
    part.part_secret = without(part.part_secret, key)
    part.settle()
    assert part.learner_pods() == []
    assert message in part.condition("Training")["message"]


@pytest.mark.parametrize("lacking", ["the Secret", "a file of it", "home's training", "a certificate"])
def test_a_part_that_the_operator_at_home_made_is_not_told_to_run_a_command_that_refuses_it(lacking: str) -> None:
    part = a_part(units=2) if lacking == "a certificate" else a_part()
    part.job["metadata"]["labels"] = {names.LABEL_HOME: "job-uid-1"}
    assert part.part_secret is not None
    if lacking == "the Secret":
        part.part_secret = None
    elif lacking == "a file of it":
        part.part_secret = without(part.part_secret, "ca.crt")
    elif lacking == "home's training":
        part.job["spec"]["training"]["syncInterval"] = 96
    else:
        for attempt in range(1, 17):
            part.part_secret = without(part.part_secret, f"far-1-a{attempt}.pem")
    part.settle()
    said = part.unit("far-1")["message"] if lacking == "a certificate" else part.condition("Training")["message"]
    assert "the operator at home made this part and writes" in said
    assert "see status.parts of the job at home, and that operator's log" in said
    assert "kubectl diloco part" not in said


@pytest.mark.parametrize("field", ["name", "namespace", "uid"])
def test_a_job_file_that_names_no_job_is_refused(field: str) -> None:
    """These become names of hosts and files."""
    part = a_part()
    assert part.part_secret is not None
    job_file = json.loads(base64.b64decode(part.part_secret["data"]["job.json"])) | {field: "../elsewhere"}
    part.part_secret["data"]["job.json"] = base64.b64encode(json.dumps(job_file).encode()).decode()
    part.settle()
    assert part.learner_pods() == []
    assert "job.json names no job: name, namespace or uid is no such name" in part.condition("Training")["message"]


def test_a_secret_of_another_job_is_refused() -> None:
    part = a_part()
    assert part.part_secret is not None
    part.part_secret["data"]["part.pem"] = _of_another_job()["part.pem"]
    part.settle()
    assert "part.pem holds no key and certificate of a part of job team/bytes-lm" in part.condition("Training")["message"]


def _of_another_job() -> dict[str, str]:
    home = a_home()
    other = Stage(with_field(home.job, "metadata.uid", "job-uid-2"), a_tpu_node("tpu-0"))
    other.settle()
    files: dict[str, str] = other.secrets[SECRET]["data"]
    return files


def test_another_training_than_homes_is_refused_with_both_values() -> None:
    part = a_part(a_home(syncInterval=48, fragments=24), syncInterval=24, fragments=24)
    part.settle()
    assert part.learner_pods() == []
    assert part.condition("Training")["message"].startswith("spec.training.syncInterval is 24 here and 48 at home. They must be equal:")


def test_units_that_run_go_on_when_the_secret_goes() -> None:
    part = a_part().train()
    part.part_secret = None
    part.settle()
    assert part.states() == {UNIT: "Training"}
    assert part.condition("Training")["status"] == "True"


def test_an_attempt_without_a_certificate_waits_and_the_other_units_start() -> None:
    home = a_home(units=1)
    part = a_part(home, units=2)
    part.settle()
    assert part.learner_pods() == [f"bytes-lm-{UNIT}-a1-0"]
    lacking = "Secret bytes-lm-home has no certificate for attempt 1 of far-1. If spec.parts at home gives part tokyo"
    assert part.unit("far-1")["message"].startswith(lacking)


# --- the part: attempts, silence and the end ----------------------------------------------------------------------------
def test_a_part_that_was_made_anew_goes_on_from_the_attempts_that_the_syncer_knows() -> None:
    home = a_home().train()
    home.syncer_says(UNIT, 7, UnitPhase.DISCONNECTED)
    home.settle()
    part = a_part(home)
    part.syncer_says(UNIT, 7, UnitPhase.DISCONNECTED)
    part.settle()
    assert part.learner_pods() == [f"bytes-lm-{UNIT}-a8-0"]


def test_a_new_part_waits_for_the_first_report_but_not_for_ever() -> None:
    part = a_part()
    part.report = None
    part.settle()
    assert part.learner_pods() == []
    assert (
        part.condition("Training")["message"] == "the syncer does not serve yet: the syncer at syncer.example.com:443 has not reported yet"
    )
    part.now += part.config.report_stale_after + 1
    part.settle()
    assert part.learner_pods() == [f"bytes-lm-{UNIT}-a1-0"], "cut off from home, its units start all the same"


def test_while_home_is_silent_a_unit_that_fails_starts_again_and_none_is_replaced_for_silence() -> None:
    part = a_part(units=2).train()
    part.report = None
    part.now += 600
    part.settle()
    assert part.states() == {UNIT: "Training", "far-1": "Training"}
    assert part.condition("Training")["reason"] == "SyncerUnreachable"
    part.learner_exits(UNIT, 1, 137)
    part.settle()
    assert part.learner_pods()[-2:] == [f"bytes-lm-{UNIT}-a2-0", "bytes-lm-far-1-a1-0"]
    part.kubelets_start()
    part.now += 1200  # twice the time-out of a join
    part.settle()
    assert part.states() == {UNIT: "Joining", "far-1": "Training"}


def test_a_part_gives_its_hardware_back_after_its_time_out_and_takes_it_again_when_home_is_back() -> None:
    part = a_part().train()
    last, part.now = part.report, part.now + HOUR - 1
    part.settle()
    assert part.states() == {UNIT: "Training"}
    part.now += 1
    part.settle()
    part.kubelets_finish_deletions()
    part.settle()
    assert (part.learner_pods(), part.status["state"]) == ([], "Suspended")
    assert "no report has come from the syncer at syncer.example.com:443 for 3600 s" in part.condition("Training")["message"]
    part.restart_operator()
    part.settle()
    assert part.learner_pods() == [], "an operator that starts anew waits for a report"
    assert last is not None
    part.syncer_says(UNIT, 1, UnitPhase.DISCONNECTED)
    part.settle()
    assert part.learner_pods() == [f"bytes-lm-{UNIT}-a2-0"]


def test_an_operator_that_was_away_for_long_does_not_give_the_hardware_back_at_once() -> None:
    part = a_part().train()
    part.now += 5 * HOUR
    part.restart_operator()
    part.settle()
    assert part.states() == {UNIT: "Training"}


def test_a_part_is_complete_when_home_says_so() -> None:
    part = a_part().train()
    part.all_contribute(done=True, t=100, steps=100)
    part.settle()
    assert part.true() >= {"Complete"}
    complete = part.condition("Complete")
    assert complete["reason"] == "HomeComplete"
    assert complete["message"] == "the job at home is complete, at outer step 100 of 100. The model is at home, where the job's syncer is"


def test_a_part_of_a_job_that_was_given_more_steps_goes_on_whatever_the_syncer_reported_before() -> None:
    part = a_part(steps=100).train()
    part.all_contribute(done=True, t=100, steps=100)
    part.settle()
    assert part.true() >= {"Complete"}
    part.learner_exits(UNIT, 1, 0)
    part.settle()
    part.edit(training={**part.job["spec"]["training"], "steps": 200})
    part.part_secret = secret_of(a_home(steps=200))
    part.settle()
    assert "Complete" not in part.true(), "the last report is of the syncer that served before"
    part.report = a_report(at=part.now, t=100, steps=200)
    part.settle()
    assert part.learner_pods() == [f"bytes-lm-{UNIT}-a2-0"]


def test_a_part_that_missed_homes_word_is_complete_once_all_its_units_ended_well() -> None:
    part = a_part(units=2).train()
    part.report = None
    part.now += 600
    part.learner_exits(UNIT, 1, 0)
    part.settle()
    assert part.status["state"] != "Complete"
    part.learner_exits("far-1", 1, 0)
    part.settle()
    assert part.condition("Complete")["message"].startswith("the units ended with status 0, as learners do when their job is complete.")


def suspends_itself(part: Stage) -> None:
    part.now += HOUR


def loses_a_node(part: Stage) -> None:
    part.now += 120
    part.set_node(a_tpu_node("tpu-0", taints=[{"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}]))


def home_is_heard_again(part: Stage) -> None:
    part.syncer_says(UNIT, 1, UnitPhase.DISCONNECTED)
    assert part.report is not None
    part.now += 10
    part.report = replace(part.report, received_at=part.now)


@pytest.mark.parametrize("leaves", [suspends_itself, loses_a_node])
def test_a_part_whose_units_ended_well_because_they_had_to_leave_is_not_complete(leaves: Callable[[Stage], None]) -> None:
    part = a_part().train()
    part.report = None
    leaves(part)
    part.settle()
    assert part.states() == {UNIT: "Draining"}
    part.learner_exits(UNIT, 1, 0)
    part.settle()
    assert "Complete" not in part.true()
    part.kubelets_finish_deletions()
    part.set_node(a_tpu_node("tpu-0"))
    home_is_heard_again(part)
    part.settle()
    assert part.learner_pods()[-1] == f"bytes-lm-{UNIT}-a2-0"


def test_a_unit_that_leaves_early_starts_again_while_home_reports() -> None:
    part = a_part().train()
    part.learner_exits(UNIT, 1, 0)
    part.settle()
    part.advance(600)
    part.settle()
    assert part.status["state"] != "Complete"


def test_a_syncer_that_has_just_come_back_blames_no_unit_for_the_silence_before() -> None:
    part = a_part(learners={"stallTimeout": "60s"}).train()

    def restarts_after(seconds: float) -> int:
        """Let the syncer, connected for so long, report that it does not hear the unit. Return how often the unit has restarted."""
        part.syncer_says(UNIT, 1, UnitPhase.DISCONNECTED, seconds_since_heard=300.0)
        assert part.report is not None
        part.report = replace(part.report, connected_at=part.now - seconds)
        part.settle()
        return int(part.unit(UNIT)["restarts"])

    assert (restarts_after(10.0), restarts_after(300.0)) == (0, 1)
