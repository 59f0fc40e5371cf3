"""Which certificates there are, when they are renewed, and what happens to a job whose Secrets are lost."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.stage import Stage
from diloco_operator.certificates.authority import AUTHORITY_LIFETIME
from diloco_operator.certificates.view import CertificateSecret, project_certificates
from diloco_operator.plan import IssueCertificates, Plan
from diloco_operator.reconcile import OperatorConfig

CA, SYNCER, LEARNERS = "bytes-lm-ca", "bytes-lm-syncer-tls", "bytes-lm-learners-v5p-0"
SPREAD = OperatorConfig().secret_propagation
LIFETIME = OperatorConfig().certificate_lifetime


def a_stage(units: int = 2, **config: Any) -> Stage:
    nodes = [a_tpu_node(f"tpu-{index}") for index in range(units)]
    return Stage(a_job().with_learners(1, units).with_pool(max=units), *nodes, config=OperatorConfig(**config))


def trained(units: int = 2, **config: Any) -> Stage:
    return a_stage(units, **config).train()


def read(stage: Stage, name: str) -> CertificateSecret:
    return project_certificates(stage.secrets[name])


def authority_of(stage: Stage) -> str:
    found = read(stage, CA).authority
    assert found is not None
    return found.root.id


def names_of(plan: Plan) -> list[str]:
    return [wanted.obj["metadata"]["name"] for wanted in plan.certificates]


def wanted(plan: Plan, name: str) -> IssueCertificates:
    return next(one for one in plan.certificates if one.obj["metadata"]["name"] == name)


def signed_by(stage: Stage) -> set[str]:
    """The authority that signed the certificates of the job's pods."""
    return {c.authority for name in (SYNCER, LEARNERS) for c in read(stage, name).certificates.values()}


def trusted(stage: Stage) -> list[list[str]]:
    return [[root.id for root in read(stage, name).roots] for name in (SYNCER, LEARNERS)]


# --- making -------------------------------------------------------------------------------------------------------------
def test_every_attempt_has_a_certificate_of_its_own() -> None:
    stage = trained()
    assert {key: c.identity for key, c in read(stage, LEARNERS).certificates.items()} == {
        "v5p-0-a1.pem": "diloco://job-uid-1/learner/v5p-0/1",
        "v5p-1-a1.pem": "diloco://job-uid-1/learner/v5p-1/1",
    }
    syncer = read(stage, SYNCER).certificates["identity.pem"]
    assert (syncer.identity, syncer.host_names) == ("diloco://job-uid-1/syncer", ("bytes-lm-syncer.bytes-lm.team.svc",))
    assert signed_by(stage) == {authority_of(stage)}
    for secret in stage.secrets.values():
        assert secret["metadata"]["labels"] == {"diloco.dev/job": "bytes-lm"}
        assert secret["metadata"]["ownerReferences"][0]["uid"] == "job-uid-1"


@pytest.mark.slow
def test_many_units_cost_one_write_for_each_64_of_them() -> None:
    stage = a_stage(130)
    assert names_of(stage.step()) == [CA, SYNCER]  # learners wait for the volume claim
    plan = stage.reconcile_only()
    # 130 units: 64 + 64 + 2
    assert names_of(plan) == [f"bytes-lm-learners-v5p-{k}" for k in range(3)]
    assert [len(one.leaves) for one in plan.certificates] == [64, 64, 2]
    stage.settle()
    size = sum(len(value) for value in stage.secrets[LEARNERS]["data"].values())
    assert size < 128 * 1024  # far from the 1 MiB that a Secret may have, also when every unit has two attempts


def test_a_new_attempt_gets_a_certificate_in_one_write_and_the_ended_ones_goes() -> None:
    stage = trained()
    before = read(stage, LEARNERS).certificates["v5p-1-a1.pem"]
    stage.learner_exits("v5p-0", 1, 1)
    plan = stage.step()
    assert names_of(plan) == [LEARNERS]
    assert ([leaf.key for leaf in wanted(plan, LEARNERS).leaves], wanted(plan, LEARNERS).drop) == (["v5p-0-a2.pem"], ("v5p-0-a1.pem",))
    stage.settle()
    assert set(read(stage, LEARNERS).certificates) == {"v5p-0-a2.pem", "v5p-1-a1.pem"}
    assert read(stage, LEARNERS).certificates["v5p-1-a1.pem"] == before


def test_a_pod_that_is_being_deleted_keeps_its_certificate_until_it_ends() -> None:
    stage = trained()
    stage.scale(max=1)
    stage.step()
    assert "deletionTimestamp" in stage.pod("v5p-1", 1)["metadata"]
    stage.learner_exits("v5p-0", 1, 1)
    stage.step()
    assert set(read(stage, LEARNERS).certificates) == {"v5p-0-a2.pem", "v5p-1-a1.pem"}


def test_the_hosts_of_a_unit_share_its_certificate() -> None:
    nodes = [a_tpu_node(f"np-0-{host}", topology="2x2x2", pool="np-0") for host in range(2)]
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1, topology="2x2x2"), *nodes)
    stage.settle()
    assert len(stage.learner_pods()) == 2
    assert list(read(stage, LEARNERS).certificates) == ["v5p-0-a1.pem"]


# --- renewing -----------------------------------------------------------------------------------------------------------
def test_a_certificate_is_renewed_when_a_third_of_its_life_is_left() -> None:
    stage = trained()
    first = read(stage, LEARNERS).certificates
    stage.advance(LIFETIME * 2 / 3 - 60)
    plan = stage.reconcile_only()
    assert plan.certificates == ()
    assert plan.requeue_after is not None
    assert plan.requeue_after <= 60.001
    stage.advance(60)
    assert set(names_of(stage.step())) == {SYNCER, LEARNERS}
    renewed = read(stage, LEARNERS).certificates
    assert renewed.keys() == first.keys()
    assert all(renewed[key].expires - first[key].expires >= LIFETIME * 2 / 3 - 1 for key in first)
    assert stage.reconcile_only().certificates == ()
    assert signed_by(stage) == {authority_of(stage)}


def test_certificates_may_live_for_seconds() -> None:
    stage = trained(certificate_lifetime=6.0, secret_propagation=1.0)
    for _ in range(5):
        stage.advance(4)
        stage.settle()
        assert min(c.expires for c in read(stage, LEARNERS).certificates.values()) > stage.now + 2


def test_a_shorter_lifetime_holds_from_the_next_renewal_and_a_longer_one_at_once() -> None:
    stage = trained()
    stage.config = OperatorConfig(certificate_lifetime=LIFETIME * 4)
    # what is left, one life, is less than a third of four
    assert set(names_of(stage.reconcile_only())) == {SYNCER, LEARNERS}


@pytest.mark.parametrize("lifetime", [0.0, 3 * SPREAD - 1, 366 * 86400.0])
def test_a_lifetime_that_cannot_work_is_rejected(lifetime: float) -> None:
    with pytest.raises(ValueError, match="certificateLifetime must be at least three times secretPropagation"):
        OperatorConfig(certificate_lifetime=lifetime)


def test_a_suspended_job_renews_nothing_and_a_resumed_one_before_its_pods() -> None:
    stage = trained()
    stage.edit(suspend=True)
    for _ in range(3):
        stage.settle()
        stage.kubelets_finish_deletions()
    stage.advance(LIFETIME * 2)
    assert stage.reconcile_only().certificates == ()
    stage.edit(suspend=False)
    plan = stage.step()
    assert [leaf.key for leaf in wanted(plan, SYNCER).leaves] == ["identity.pem"]
    stage.settle()
    assert all(c.expires > stage.now for name in (SYNCER, LEARNERS) for c in read(stage, name).certificates.values())


# --- losing -------------------------------------------------------------------------------------------------------------
def test_a_lost_secret_is_created_again_under_the_same_authority() -> None:
    stage = trained()
    for name in (SYNCER, LEARNERS):
        authority = authority_of(stage)
        del stage.secrets[name]
        assert names_of(stage.step()) == [name]
        assert set(trusted(stage)[0]) | set(trusted(stage)[1]) == signed_by(stage) == {authority}
    assert stage.reconcile_only().empty
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training"}


def test_a_lost_authority_is_replaced_without_locking_any_pod_out() -> None:
    stage = trained()
    old = authority_of(stage)
    del stage.secrets[CA]
    stage.settle()
    new = authority_of(stage)
    assert new != old
    # At first all pods learn to trust the new one, and show what all others trust already.
    assert trusted(stage) == [[new, old], [new, old]]
    assert signed_by(stage) == {old}
    stage.advance(SPREAD)
    stage.settle()
    assert trusted(stage) == [[new, old], [new, old]]
    assert signed_by(stage) == {new}
    stage.advance(SPREAD)
    stage.settle()
    assert trusted(stage) == [[new], [new]]
    assert stage.reconcile_only().empty
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training"}
    assert all(unit["attempt"] == 1 for unit in stage.status["units"])


def test_a_pod_that_starts_while_authorities_change_trusts_both() -> None:
    stage = trained()
    old = authority_of(stage)
    del stage.secrets[CA]
    stage.settle()
    stage.learner_exits("v5p-0", 1, 1)
    stage.step()
    stage.advance(30)
    stage.settle()
    assert read(stage, LEARNERS).certificates["v5p-0-a2.pem"].authority == authority_of(stage)
    assert trusted(stage)[1] == [authority_of(stage), old]


def test_an_authority_lost_twice_converges_too() -> None:
    stage = trained()
    for _ in range(2):
        del stage.secrets[CA]
        stage.settle()
        stage.advance(10)
    stage.advance(2 * SPREAD)
    stage.settle()
    assert signed_by(stage) == {authority_of(stage)}
    assert trusted(stage) == [[authority_of(stage)]] * 2


def test_a_job_that_lost_every_secret_gets_new_ones() -> None:
    stage = trained()
    stage.secrets.clear()
    stage.settle()
    assert set(stage.secrets) == {CA, SYNCER, LEARNERS}
    assert signed_by(stage) == {authority_of(stage)}
    assert trusted(stage) == [[authority_of(stage)]] * 2


def test_an_authority_that_cannot_sign_is_deleted_and_replaced() -> None:
    stage = trained()
    stage.secrets[CA]["data"]["ca.key"] = base64.b64encode(b"junk").decode()
    plan = stage.step()
    assert [(delete.name, plan.certificates) for delete in plan.deletes] == [(CA, ())]
    stage.settle()
    stage.advance(2 * SPREAD)
    stage.settle()
    assert signed_by(stage) == {authority_of(stage)}


def test_an_authority_is_replaced_in_time() -> None:
    stage = trained()
    old = authority_of(stage)
    stage.advance(AUTHORITY_LIFETIME * 2 / 3)
    assert [delete.name for delete in stage.step().deletes] == [CA]
    stage.settle()
    assert authority_of(stage) != old


def test_edited_secrets_are_put_right() -> None:
    stage = trained()
    data = stage.secrets[LEARNERS]["data"]
    data["v5p-0-a1.pem"], data["v5p-1-a1.pem"] = data["v5p-1-a1.pem"], base64.b64encode(b"junk").decode()
    data["ca.crt"] = ""
    assert names_of(stage.step()) == [LEARNERS]
    assert {c.identity for c in read(stage, LEARNERS).certificates.values()} == {
        f"diloco://job-uid-1/learner/v5p-{index}/1" for index in range(2)
    }
    assert trusted(stage) == [[authority_of(stage)]] * 2


# --- what is in the way -------------------------------------------------------------------------------------------------
def test_a_name_that_belongs_to_another_owner_is_reported() -> None:
    for name in (CA, SYNCER, LEARNERS):
        stage = a_stage()
        stage.secrets[name] = {"metadata": {"name": name, "uid": "x"}, "data": {}}
        stage.settle()
        assert stage.condition("Training")["reason"] == "NameTaken"
        assert f"Secret {name} exists and is not this job's" in stage.condition("Training")["message"]
        assert stage.pods == {}
        assert stage.secrets[name]["data"] == {}


def test_a_foreign_secret_with_the_jobs_label_is_ignored() -> None:
    stage = a_stage()
    stage.secrets["mine"] = {"metadata": {"name": "mine", "uid": "x"}, "data": {"ca.crt": ""}}
    stage.settle()
    assert stage.secrets["mine"]["data"] == {"ca.crt": ""}
    assert len(stage.learner_pods()) == 2


def test_nothing_starts_while_a_secret_goes_away() -> None:
    stage = trained()
    stage.secrets[LEARNERS]["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z"
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    stage.advance(3600)
    stage.settle()
    assert [unit for _, unit, _ in stage.live_attempts()] == ["v5p-1"]
    del stage.secrets[LEARNERS]
    stage.settle()
    assert sorted((unit, attempt) for _, unit, attempt in stage.live_attempts()) == [("v5p-0", 2), ("v5p-1", 1)]
    assert set(read(stage, LEARNERS).certificates) == {"v5p-0-a2.pem", "v5p-1-a1.pem"}


# --- dying operators ----------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_an_operator_that_dies_between_any_two_writes_leaves_one_authority_in_use() -> None:
    for writes in range(1, 10):
        stage = a_stage()
        stage.step(crash_after=writes)
        stage.restart_operator()
        stage.settle()
        assert signed_by(stage) == {authority_of(stage)}
        assert trusted(stage) == [[authority_of(stage)]] * 2


@pytest.mark.slow
def test_an_operator_that_dies_while_it_changes_the_authority_is_taken_over() -> None:
    for writes in range(1, 4):
        stage = trained()
        old = authority_of(stage)
        del stage.secrets[CA]
        stage.step(crash_after=writes)
        stage.restart_operator()
        stage.all_contribute()
        stage.settle()
        assert trusted(stage) == [[authority_of(stage), old]] * 2
        assert signed_by(stage) == {old}
