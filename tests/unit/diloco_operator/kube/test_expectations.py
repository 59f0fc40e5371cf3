from __future__ import annotations

import pytest
from builders.scripted_api import an_object
from diloco_operator.api.names import DILOCO_JOBS, PODS, SERVICES
from diloco_operator.kube.cache import CachedObject
from diloco_operator.kube.expectations import Expectations


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def expectations(clock: Clock) -> Expectations[str]:
    return Expectations(clock)


def pod(name: str = "p", *, uid: str = "u", version: str = "1", deleting: bool = False) -> CachedObject[None]:
    return CachedObject("ns", name, uid, version, deleting, None)


def test_a_creation_is_open_until_the_cache_shows_the_object(expectations: Expectations[str]) -> None:
    expectations.expect_create("job", PODS, "ns", "p")
    assert expectations.open("job")
    expectations.observe(SERVICES, None, pod())  # the same name, another kind
    expectations.observe(PODS, None, pod("other"))
    assert expectations.open("job")
    expectations.observe(PODS, None, pod())
    assert not expectations.open("job")


def test_a_deletion_is_open_until_the_object_is_gone(expectations: Expectations[str]) -> None:
    expectations.expect_delete("job", PODS, "ns", "p", "u")
    expectations.observe(PODS, pod(), pod(version="2"))
    assert expectations.open("job")
    expectations.observe(PODS, pod(version="2"), None)
    assert not expectations.open("job")


@pytest.mark.parametrize("seen", [pod(deleting=True), pod(uid="another")], ids=["terminating", "replaced"])
def test_a_deletion_is_seen_by(expectations: Expectations[str], seen: CachedObject[None]) -> None:
    expectations.expect_delete("job", PODS, "ns", "p", "u")
    expectations.observe(PODS, pod(), seen)
    assert not expectations.open("job")


def test_everything_must_be_seen(expectations: Expectations[str]) -> None:
    expectations.expect_create("job", PODS, "ns", "a")
    expectations.expect_create("job", PODS, "ns", "b")
    expectations.observe(PODS, None, pod("b"))
    assert expectations.open("job")
    assert expectations.waiting_for("job") == ["Pod ns/a"]


def test_jobs_do_not_wait_for_each_other(expectations: Expectations[str]) -> None:
    expectations.expect_create("one", PODS, "ns", "a")
    expectations.expect_create("two", PODS, "ns", "b")
    expectations.observe(PODS, None, pod("b"))
    assert expectations.open("one")
    assert not expectations.open("two")


def test_expectations_expire_35_seconds_after_the_last_and_end_when_they_are_forgotten(
    expectations: Expectations[str], clock: Clock
) -> None:
    assert expectations.expires_in("job") is None
    expectations.expect_create("job", PODS, "ns", "p")
    clock.now += 10
    expectations.expect_create("job", PODS, "ns", "q")
    clock.now += 34
    assert expectations.expires_in("job") == pytest.approx(1)
    clock.now += 2
    assert expectations.expires_in("job") == 0
    assert expectations.waiting_for("job") == ["Pod ns/p", "Pod ns/q"]
    expectations.forget("job")
    assert expectations.expires_in("job") is None
    assert expectations.waiting_for("job") == []


def test_expectations_that_are_renewed_wait_once_more(expectations: Expectations[str], clock: Clock) -> None:
    expectations.expect_create("job", PODS, "ns", "p")
    expectations.expect_create("job", PODS, "ns", "q")
    clock.now += 36
    assert expectations.renew("job") == 35
    expectations.observe(PODS, None, pod("q"))
    assert expectations.expires_in("job") == 35
    expectations.observe(PODS, None, pod("p"))
    assert expectations.expires_in("job") is None


def test_what_was_not_sent_is_not_expected(expectations: Expectations[str]) -> None:
    expectations.expect_create("job", PODS, "ns", "p")
    expectations.cancel("job", PODS, "ns", "p")
    assert not expectations.open("job")


def test_a_written_version_is_open_until_the_cache_reaches_it(expectations: Expectations[str]) -> None:
    written = an_object("job", 20)
    expectations.expect_version("job", DILOCO_JOBS, CachedObject("ns", "job", "u", "10", False, None), written)
    assert expectations.open("job")
    expectations.observe(DILOCO_JOBS, None, CachedObject("ns", "job", "u", "15", False, None))
    assert expectations.open("job")
    expectations.observe(DILOCO_JOBS, None, CachedObject("ns", "job", "u", "21", False, None))
    assert not expectations.open("job")


@pytest.mark.parametrize("shown", ["20", "100"])
def test_a_version_that_the_cache_shows_already_is_not_expected(expectations: Expectations[str], shown: str) -> None:
    expectations.expect_version("job", DILOCO_JOBS, CachedObject("ns", "job", "u", shown, False, None), an_object("job", 20))
    assert not expectations.open("job")


def test_a_deletion_ends_the_wait_for_a_version(expectations: Expectations[str]) -> None:
    expectations.expect_version("job", DILOCO_JOBS, None, an_object("job", 20))
    expectations.observe(DILOCO_JOBS, CachedObject("ns", "job", "u", "19", False, None), None)
    assert not expectations.open("job")


def test_versions_that_are_no_numbers_are_only_compared_for_equality(expectations: Expectations[str], clock: Clock) -> None:
    expectations.expect_version("job", DILOCO_JOBS, None, an_object("job", "opaque-b"))
    expectations.observe(DILOCO_JOBS, None, CachedObject("ns", "job", "u", "opaque-a", False, None))
    assert expectations.open("job")
    expectations.observe(DILOCO_JOBS, None, CachedObject("ns", "job", "u", "opaque-b", False, None))
    assert not expectations.open("job")


def test_forgetting_a_job_leaves_the_others(expectations: Expectations[str]) -> None:
    for key in ("one", "two"):
        expectations.expect_create(key, PODS, "ns", "shared")
    expectations.forget("one")
    assert not expectations.open("one")
    assert expectations.open("two")
