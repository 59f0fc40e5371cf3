"""How a job ended, in words: a value for each end, with what it names. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from diloco.contract import Result
from diloco.wording import loss_text, plural

from diloco_operator.api import names
from diloco_operator.kube.fields import clip
from diloco_operator.reconcile.sentences import Sentence


@dataclass(frozen=True, slots=True)
class NoResult:
    def words(self) -> str:
        return "the syncer ended with status 0, but left no readable result"


@dataclass(frozen=True, slots=True)
class Summary:
    result: Result

    def words(self) -> str:
        result = self.result
        text = f"{result.step} of {plural(result.steps, 'step')}, {plural(result.tokens, 'token')}"
        if result.loss is not None:
            text += f", training loss {loss_text(result.loss, 5)}"
        if result.held_out_loss is not None:
            text += f", held-out loss {loss_text(result.held_out_loss, 5)}"
        if result.end_reason:
            text += f"; ended by unit {clip(result.end_reason)}"
        return f"{text}. {clip(result.message)}" if result.message else text


@dataclass(frozen=True, slots=True)
class StateUnusable:
    job: str
    cause: str
    """In the syncer's words; "": it left none."""

    def words(self) -> str:
        return (
            f"the state on volume {names.volume_claim_name(self.job)} cannot be used{_detail(self.cause)}. Nothing was overwritten: "
            f"repair or replace the snapshots, then {_retry(self.job)}"
        )


@dataclass(frozen=True, slots=True)
class StartUnusable:
    job: str
    cause: str
    """In the syncer's words; "": it left none."""

    def words(self) -> str:
        return (
            f"the job cannot begin with the model of spec.startFrom{_detail(self.cause)}. Correct spec.startFrom.uri, or what is there, "
            f"then {_retry(self.job)}"
        )


@dataclass(frozen=True, slots=True)
class ContractUnreadable:
    job: str
    cause: str
    """In the syncer's words; "": it left none."""

    def words(self) -> str:
        return (
            f"the syncer cannot read its environment or job file{_detail(self.cause)}; use the syncer "
            f"image that belongs to the operator, then {_retry(self.job)}"
        )


def _detail(cause: str) -> str:
    return f": {clip(cause)}" if cause else ""


@dataclass(frozen=True, slots=True)
class QuorumLost:
    job: str
    given_up: int
    quorum: int
    unit: str
    """The last that was given up."""
    why: Sentence

    def words(self) -> str:
        return (
            f"{plural(self.given_up, 'unit has', 'units have')} been given up, the rest cannot reach training.quorum {self.quorum}; "
            f"{self.unit}: {self.why.words()}. Fix the cause, then {_retry(self.job)}"
        )


def _retry(job: str) -> str:
    """Return what a person does to start a failed job again."""
    return f"kubectl diloco retry {job}; a change of the spec goes with a higher spec.retry in the same kubectl apply"
