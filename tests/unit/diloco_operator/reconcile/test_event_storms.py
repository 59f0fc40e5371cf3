"""Whatever happens in whatever order, the invariants hold, and when it calms down the job trains."""

from __future__ import annotations

from collections import Counter

import pytest
from builders.exploration import examples
from builders.jobs import a_job
from builders.nodes import a_tpu_node, a_tpu_slice
from builders.pods import exits, is_disrupted, phase, starts
from builders.stage import Stage
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

pytestmark = pytest.mark.slow

SINGLE = ("tpu-0", "tpu-1", "tpu-2")
PAIRS = ("np-0", "np-1")


class EventStorms(RuleBasedStateMachine):
    """Two pools, of one and of two hosts a unit, with hardware for some of what they may have. Limit 1,000: nothing is given up."""

    @initialize()
    def begin(self) -> None:
        job = a_job().with_learners(2, 4).with_restarts(1000, initial="2s", max="8s")
        job = job.with_pool("one", min=1, max=3).with_pool("two", max=2, topology="2x2x2")
        nodes = [a_tpu_node(name) for name in SINGLE] + [node for pool in PAIRS for node in a_tpu_slice(pool, 2)]
        self.stage = Stage(job, *nodes)
        self.all_nodes = {name: node for name, node in self.stage.nodes.items() if name != "cpu-0"}

    def _learners(self) -> list[dict]:  # type: ignore[type-arg]
        return [p for p in self.stage.pods.values() if p["metadata"]["labels"]["diloco.dev/component"] == "learner"]

    @rule(crash=st.none() | st.integers(0, 6))
    def operator_reconciles(self, crash: int | None) -> None:
        self.stage.step(crash_after=crash)
        if crash is not None:
            self.stage.restart_operator()
            return
        staying = {
            p["metadata"]["labels"]["diloco.dev/unit"]
            for p in self._learners()
            if phase(p) not in ("Succeeded", "Failed") and "deletionTimestamp" not in p["metadata"]
        }
        assert len(staying) <= self.stage.job["spec"]["learners"]["max"], "more units run than learners.max"
        self._only_those_of_the_newest_failure_stay()

    def _only_those_of_the_newest_failure_stay(self) -> None:
        units = {unit["name"]: unit for unit in self.stage.status.get("units", ())}
        for pod in self._learners():
            labels = pod["metadata"]["labels"]
            unit, attempt = units[labels["diloco.dev/unit"]], int(labels["diloco.dev/attempt"])
            if phase(pod) in ("Succeeded", "Failed") and "deletionTimestamp" not in pod["metadata"] and attempt <= unit["endedAttempt"]:
                assert attempt == unit.get("failedAttempt") or (unit["state"], attempt) == ("Completed", unit["attempt"])

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0, 40.0, 90.0]))
    def time_passes(self, seconds: float) -> None:
        self.stage.advance(seconds)

    @rule(pick=st.integers(0, 99))
    def pod_starts(self, pick: int) -> None:
        pending = [p for p in self.stage.pods.values() if phase(p) == "Pending"]
        if pending:
            starts(pending[pick % len(pending)], self.stage.now)

    @rule()
    def all_pods_start(self) -> None:
        self.stage.kubelets_start()

    @rule()
    def syncer_hears_all(self) -> None:
        if "bytes-lm-syncer" in self.stage.pods and phase(self.stage.syncer) == "Running":
            self.stage.all_contribute()

    @rule(pick=st.integers(0, 99), code=st.sampled_from([1, 66, 67, 137, 143]))
    def learner_dies(self, pick: int, code: int) -> None:
        running = [p for p in self._learners() if phase(p) == "Running"]
        if running:
            exits(running[pick % len(running)], code, self.stage.now)

    @rule(pick=st.integers(0, 99))
    def pod_is_preempted(self, pick: int) -> None:
        running = [p for p in self._learners() if phase(p) == "Running"]
        if running:
            is_disrupted(running[pick % len(running)])

    @rule(pick=st.integers(0, 99))
    def pod_vanishes(self, pick: int) -> None:
        names = sorted(self.stage.pods)
        if names:
            del self.stage.pods[names[pick % len(names)]]

    @rule(pick=st.integers(0, 99))
    def node_is_lost(self, pick: int) -> None:
        names = sorted(set(self.stage.nodes) - {"cpu-0"})
        if names:
            self.stage.lose_node(names[pick % len(names)])

    @rule(pick=st.integers(0, 99), broken=st.booleans())
    def node_changes_its_mind(self, pick: int, broken: bool) -> None:
        names = sorted(set(self.stage.nodes) - {"cpu-0"})
        if names:
            name = names[pick % len(names)]
            node = self.all_nodes[name]
            condition = node["status"]["conditions"][0]
            changed = {**condition, "status": "Unknown" if broken else "True"}
            self.stage.set_node({**node, "status": {**node["status"], "conditions": [changed]}})

    @rule()
    def nodes_come_back(self) -> None:
        for node in self.all_nodes.values():
            self.stage.set_node(node)

    @rule()
    def deletions_finish(self) -> None:
        self.stage.kubelets_finish_deletions()

    @rule(max=st.integers(2, 5))
    def job_is_scaled(self, max: int) -> None:
        self.stage.scale(max=max)

    @rule(suspend=st.booleans())
    def job_is_suspended_or_resumed(self, suspend: bool) -> None:
        self.stage.edit(suspend=suspend)

    @invariant()
    def no_host_has_two_live_attempts_on_a_node_that_answers(self) -> None:
        alive = Counter(node for node, _, _ in self.stage.live_attempts() if node in self.stage.nodes)
        assert not [node for node, count in alive.items() if count > 1]

    @invariant()
    def no_unit_has_two_live_attempts_unless_the_older_is_on_its_way_out(self) -> None:
        staying = Counter(
            (p["metadata"]["labels"]["diloco.dev/unit"], p["metadata"]["labels"]["diloco.dev/host"])
            for p in self._learners()
            if phase(p) not in ("Succeeded", "Failed")
            and "deletionTimestamp" not in p["metadata"]
            and int(p["metadata"]["labels"]["diloco.dev/attempt"]) > self._ended(p)
        )
        assert not [unit for unit, count in staying.items() if count > 1]

    def _ended(self, pod: dict) -> int:  # type: ignore[type-arg]
        """By status, or because a newer attempt exists whose status an operator did not live to write."""
        unit = pod["metadata"]["labels"]["diloco.dev/unit"]
        newest = max(
            int(p["metadata"]["labels"]["diloco.dev/attempt"])
            for p in self._learners()
            if p["metadata"]["labels"]["diloco.dev/unit"] == unit
        )
        recorded = next((u["endedAttempt"] for u in self.stage.status.get("units", ()) if u["name"] == unit), 0)
        return max(int(recorded), newest - 1)

    @invariant()
    def attempts_never_go_back(self) -> None:
        known = getattr(self, "_attempts", {})
        for unit in self.stage.status.get("units", ()):
            assert unit["attempt"] >= known.get(unit["name"], 0)
            assert unit["endedAttempt"] <= unit["attempt"]
            known[unit["name"]] = unit["attempt"]
        self._attempts = known

    def teardown(self) -> None:
        """The storm is over: everything works again, and the job must train with everyone it asks for."""
        if not hasattr(self, "stage"):
            return
        stage = self.stage
        stage.edit(suspend=False)
        stage.scale(max=4)
        self.nodes_come_back()
        for _ in range(12):
            stage.advance(9.0)
            stage.kubelets_finish_deletions()
            stage.kubelets_start()
            self.syncer_hears_all()
            stage.settle()
        states = Counter(stage.states().values())
        assert states["Training"] == 4, stage.status["units"]
        assert stage.true() >= {"Accepted", "Placed", "Training"}
        assert "Degraded" not in stage.true()
        assert len(stage.live_attempts()) == sum(
            1 if unit["pool"] == "one" else 2 for unit in stage.status["units"] if unit["state"] == "Training"
        )


EventStorms.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
TestEventStorms = EventStorms.TestCase
