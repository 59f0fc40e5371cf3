"""Learners outside the cluster: the Service before the syncer, the names in its certificate, and what status says of them."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.pods import exits
from builders.stage import Stage
from cryptography import x509
from diloco.contract import Result, UnitResult
from diloco_operator.api.addresses import Address, parse_address
from diloco_operator.certificates.view import project_certificates
from diloco_operator.reconcile import OperatorConfig
from diloco_operator.report import UnitPhase

OWN = "bytes-lm-syncer.bytes-lm.team.svc"


def a_stage(syncer: dict[str, Any] | None = None, *outside: str, units: int = 1) -> Stage:
    job = a_job().with_learners(1, units, outside=list(outside)).with_pool(max=units).with_spec(syncer=syncer or {})
    stage = Stage(job, *(a_tpu_node(f"tpu-{index}") for index in range(units)), config=OperatorConfig())
    stage.settle()
    return stage


def names_of_syncer(stage: Stage) -> tuple[str, ...]:
    return project_certificates(stage.secrets["bytes-lm-syncer-tls"]).certificates["identity.pem"].host_names


# --- the address ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "address", "written"),
    [
        ("syncer.example.com", Address("syncer.example.com", 7077), "syncer.example.com:7077"),
        ("203.0.113.7:443", Address("203.0.113.7", 443), "203.0.113.7:443"),
        ("2001:db8::7", Address("2001:db8::7", 7077), "[2001:db8::7]:7077"),
        ("[2001:db8::7]", Address("2001:db8::7", 7077), "[2001:db8::7]:7077"),
        ("[2001:db8::7]:443", Address("2001:db8::7", 443), "[2001:db8::7]:443"),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, address: Address, written: str) -> None:
    assert (parse_address(text), str(parse_address(text))) == (address, written)


@pytest.mark.parametrize("text", ["", ":7077", "host:0", "host:70777", "host:port", "a:b:c", "host.", "[zz]"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_address(text)


# --- the load balancer ----------------------------------------------------------------------------------------------------
def test_a_load_balancer_before_the_syncer_comes_and_goes_with_the_spec() -> None:
    stage = a_stage({"loadBalancer": {"annotations": {"networking.gke.io/load-balancer-type": "Internal"}, "class": "acme"}})
    service = stage.external_service
    assert service is not None
    assert service["metadata"]["name"] == "bytes-lm-syncer-external"
    assert service["metadata"]["annotations"] == {"networking.gke.io/load-balancer-type": "Internal"}
    spec = service["spec"]
    assert (spec["type"], spec["loadBalancerClass"]) == ("LoadBalancer", "acme")
    labels = stage.syncer["metadata"]["labels"]
    assert spec["selector"].items() <= labels.items(), "it leads to the syncer's pod"
    assert [port["port"] for port in spec["ports"]] == [7077]
    stage.edit(syncer={})
    stage.settle()
    assert stage.external_service is None


def test_a_job_without_one_has_no_such_service() -> None:
    assert a_stage().external_service is None


# --- the certificate ------------------------------------------------------------------------------------------------------
def test_the_syncers_certificate_has_its_own_name_alone_unless_it_is_reached_by_others() -> None:
    assert names_of_syncer(a_stage()) == (OWN,)
    assert names_of_syncer(a_stage({"externalAddress": "syncer.example.com:443"})) == (OWN, "syncer.example.com")


def test_names_that_a_load_balancer_gets_later_come_into_the_certificate() -> None:
    stage = a_stage({"loadBalancer": {}})
    assert names_of_syncer(stage) == (OWN,)
    assert stage.external_service is not None
    stage.external_service["status"] = {"loadBalancer": {"ingress": [{"hostname": "lb.example.com"}, {"ip": "203.0.113.7"}]}}
    stage.settle()
    assert names_of_syncer(stage) == (OWN, "lb.example.com", "203.0.113.7")
    pem = stage.secrets["bytes-lm-syncer-tls"]["data"]["identity.pem"]
    text = base64.b64decode(pem)
    certificate = x509.load_pem_x509_certificate(text[text.index(b"-----BEGIN CERTIFICATE") :])
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each) for each in alternatives.get_values_for_type(x509.IPAddress)] == ["203.0.113.7"]


def test_the_syncer_takes_no_names_from_a_load_balancer_of_another_owner() -> None:
    stage = a_stage({"loadBalancer": {}})
    assert stage.external_service is not None
    stage.external_service["metadata"]["ownerReferences"][0]["uid"] = "of-another"
    stage.external_service["status"] = {"loadBalancer": {"ingress": [{"hostname": "lb.example.com"}]}}
    stage.settle()
    assert names_of_syncer(stage) == (OWN,)


def test_each_learner_outside_has_a_certificate_of_its_own_and_no_pod() -> None:
    stage = a_stage(None, "lab", "tokyo")
    found = project_certificates(stage.secrets["bytes-lm-outside-tls"]).certificates
    uid = stage.job["metadata"]["uid"]
    assert {key: each.identity for key, each in found.items()} == {
        "lab-a1.pem": f"diloco://{uid}/learner/lab/1",
        "tokyo-a1.pem": f"diloco://{uid}/learner/tokyo/1",
    }
    assert len(stage.learner_pods()) == 1


def test_certificates_of_learners_outside_are_renewed_as_all_others_are() -> None:
    stage = a_stage(None, "lab").train()
    before = project_certificates(stage.secrets["bytes-lm-outside-tls"]).certificates["lab-a1.pem"].expires
    stage.now += OperatorConfig().certificate_lifetime * 0.7
    stage.all_contribute()
    stage.settle()
    assert project_certificates(stage.secrets["bytes-lm-outside-tls"]).certificates["lab-a1.pem"].expires > before


# --- status ---------------------------------------------------------------------------------------------------------------
def test_status_says_which_of_them_have_joined() -> None:
    stage = a_stage(None, "lab", "tokyo").train()
    assert stage.status["outside"] == [{"name": "lab"}, {"name": "tokyo"}]
    stage.syncer_says("lab", 1, UnitPhase.CONTRIBUTING)
    stage.settle()
    lab = {"name": "lab", "state": "Contributing", "since": "2026-11-20T12:00:00Z", "attempt": 1, "tokens": 4000}
    assert stage.status["outside"] == [lab, {"name": "tokyo"}]
    assert stage.condition("Training")["message"].startswith("1 of 1 learner contributes, and 1 outside the cluster")
    assert stage.status["learners"]["contributing"] == 1, "learners.min and max are of this cluster"
    stage.now += 3600
    stage.settle()
    assert stage.status["outside"][0] == lab, "it stays while the syncer is silent"


def test_what_a_learner_outside_trained_after_the_last_report_is_counted_when_the_job_is_complete() -> None:
    stage = a_stage(None, "lab", "tokyo").train()
    stage.syncer_says("lab", 1, UnitPhase.CONTRIBUTING, tokens=4000)
    stage.settle()
    result = Result(step=9, steps=9, tokens=4100, units=[UnitResult(unit="lab", tokens=4100, steps=1, contributions=1)])
    exits(stage.syncer, 0, stage.now, message=result.model_dump_json(by_alias=True))
    stage.settle()
    [lab, tokyo] = stage.status["outside"]
    assert (lab["state"], lab["tokens"], tokyo) == ("Done", 4100, {"name": "tokyo"})


def test_a_learner_outside_counts_for_the_quorum() -> None:
    stage = a_stage(None, "lab").train()
    unit = stage.status["units"][0]["name"]
    stage.syncer_says(unit, 1, UnitPhase.JOINING)
    stage.syncer_says("lab", 1, UnitPhase.CONTRIBUTING)
    stage.settle()
    assert (stage.condition("Training")["status"], stage.condition("Training")["reason"]) == ("True", "QuorumContributing")
    assert stage.condition("Degraded")["reason"] == "LearnersStarting", "learners.min units of this cluster do not contribute"
    stage.syncer_says("lab", 1, UnitPhase.DISCONNECTED)
    stage.settle()
    assert stage.condition("Training")["reason"] == "QuorumMissing"


def test_tokens_of_learners_outside_alone_are_no_reason_for_a_write_at_once() -> None:
    stage = a_stage(None, "lab").train()
    stage.syncer_says("lab", 1, UnitPhase.CONTRIBUTING)
    stage.settle()
    stage.syncer_says("lab", 1, UnitPhase.CONTRIBUTING, tokens=5000)
    plan = stage.reconcile_only()
    assert plan.status is None
    stage.now += OperatorConfig().progress_interval
    stage.syncer_says("lab", 1, UnitPhase.CONTRIBUTING, tokens=6000)
    plan = stage.reconcile_only()
    assert plan.status is not None
    assert plan.status.status["outside"][0]["tokens"] == 6000
