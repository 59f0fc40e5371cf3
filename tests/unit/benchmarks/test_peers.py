"""What the comparisons with other systems compute from what was noted, without running any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import environment, jobset
from benchmarks.peers.comparison import RunResult, gap, medians, rate
from benchmarks.peers.loopback import sent_bytes
from benchmarks.peers.setting import TOKENS, contribution
from benchmarks.peers.systems import noted_at

DEVICES = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
  eth0:       7       1    0    0    0     0          0         0        9       1    0    0    0     0       0          0
    lo:     100       2    0    0    0     0          0         0      123       2    0    0    0     0       0          0
"""


def test_the_bytes_of_a_loopback_are_those_that_it_has_sent() -> None:
    assert sent_bytes(DEVICES) == 123


def test_devices_without_a_loopback_are_an_error() -> None:
    with pytest.raises(ValueError, match="no loopback"):
        sent_bytes("eth0: 1 2 3")


def test_only_whole_lines_about_the_attempt_count() -> None:
    again = contribution("u1", 2)
    notes = f"1.5 merged {contribution('u1', 1)}\n2.5 merged {again}\n3.0 closed {again}\n4.5 merged {again}\n5.5 merged {again}"
    assert noted_at(notes, "merged", again) == [2.5, 4.5]
    assert noted_at(notes, "closed", again) == [3.0]


def test_the_rate_counts_the_steps_of_all_learners_that_end_in_the_window() -> None:
    # After 10 and up to 12 s two steps of the first learner and one of the second end.
    assert rate([[10.0, 11.0, 12.0, 13.0], [9.0, 11.5]], 10.0, 12.0) == 3 * TOKENS / 2.0


def test_the_gap_is_that_of_the_survivor_that_was_delayed_most() -> None:
    calm = [float(second) for second in range(20)]
    # Steps of 1 s and one of 2 s before the kill at 10.5 s; the step in which it falls ends 4 s after the one before.
    delayed = [0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 14.0, 15.0]
    assert gap([calm, delayed], 0.5, 10.5, 15.0) == (4.0, 2.0, 1.0)
    assert gap([calm], 0.5, 10.5, 15.0) == (1.0, 1.0, 1.0)


def test_the_median_of_the_runs_is_taken_of_each_field() -> None:
    runs = [RunResult(0.9, 3.0, 1.0, 1.0, 0.1, 5.0), RunResult(0.8, 1.0, 9.0, 1.0, 0.9, 7.0), RunResult(0.7, 2.0, 2.0, 1.0, 0.2, 6.0)]
    found = medians(runs)
    assert (found["tokens_of_alone"], found["kilobytes"], found["longest"], found["back_seconds"]) == (0.8, 2.0, 2.0, 6.0)


def test_other_requirements_have_another_environment_in_the_cache() -> None:
    of_home = environment.folder(b"a==1", "peer", {"HOME": "/home/a"})
    assert of_home.parent == Path("/home/a/.cache/diloco-operator/peers")
    assert of_home == environment.folder(b"a==1", "peer", {"HOME": "/home/a", "XDG_CACHE_HOME": ""})
    assert of_home != environment.folder(b"a==2", "peer", {"HOME": "/home/a"})
    assert environment.folder(b"a==1", "peer", {"XDG_CACHE_HOME": "/cache"}).is_relative_to("/cache")


def test_every_version_of_a_peer_has_a_hash() -> None:
    requirements = Path(environment.__file__).with_name("gradientmail.txt").read_text()
    entries: list[str] = requirements.replace("\\\n", " ").splitlines()
    pinned = [line for line in entries if line and not line.lstrip().startswith("#")]
    assert any(line.startswith("gradientmail==0.0.2 ") for line in pinned)
    assert all("==" in line and "--hash=sha256:" in line for line in pinned)


def test_a_job_of_a_job_set_fails_with_its_first_pod_and_the_set_keeps_its_default_policy() -> None:
    made: dict[str, Any] = jobset.job_set(64, 4)["spec"]
    assert set(made["failurePolicy"]) == {"maxRestarts"}, "no rules: each failure restarts the whole set"
    replicated = made["replicatedJobs"][0]
    assert replicated["replicas"] == 64
    assert {key: replicated["template"]["spec"][key] for key in ("parallelism", "completions", "backoffLimit")} == {
        "parallelism": 4,
        "completions": 4,
        "backoffLimit": 0,
    }
