from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from builders.scripted_api import SILENCE, ScriptedApi, added, an_object, bookmark, deleted, modified
from builders.virtual_time import run_virtual, until
from diloco_operator.api.names import PODS
from diloco_operator.kube.cache import Cache, CachedObject
from diloco_operator.kube.client import ApiError, Forbidden, Gone, NotFound, Obj, ObjList, Unavailable
from diloco_operator.kube.fields import needed_string
from diloco_operator.kube.malformed import MalformedObjects
from diloco_operator.kube.reflector import Reflector, WatchedResource
from diloco_operator.timeouts import WatchTimeouts

GONE = Gone(410, "Expired", "too old resource version")
FORBIDDEN = Forbidden(403, "Forbidden", 'pods is forbidden: User "operator" cannot list resource "pods"')
UNKNOWN = NotFound(404, "NotFound", "the server could not find the requested resource")
BUSY = ApiError(429, "TooManyRequests", "too many requests, please try again later")
AWAY = Unavailable(503, "ServiceUnavailable", "connection refused")


class Followed:
    """A running reflector, the calls of its handlers: (name, old phase, new phase), and what it said of the server at each change."""

    def __init__(self, api: ScriptedApi, timeouts: WatchTimeouts | None = None, draw: float = 0.0, without: str = "") -> None:
        self.api = api
        self.changes: list[tuple[str, str | None, str | None]] = []
        self.reflector: Reflector[str] = Reflector(
            api,  # type: ignore[arg-type]
            WatchedResource(PODS, lambda obj, _: obj.get("phase", ""), without=without),
            rng=lambda: draw,
            indexers={"phase": lambda held: (held.value,)},
            timeouts=timeouts,
        )
        self.took = 0.0
        """Virtual seconds that `follow` waited."""
        self.missing: list[tuple[bool, str]] = []
        """Whether it was synced, and what was missing, after each change of rights."""
        self.forbidden: list[str] = []
        self.failing: list[str] = []
        self.reflector.on_rights_change(self._note_rights)
        self.reflector.on_failure_change(lambda: self.failing.append(self.reflector.failing))
        self.reflector.on_change(self.note)

    def _note_rights(self) -> None:
        self.missing.append((self.reflector.synced, self.reflector.missing))
        self.forbidden.append(self.reflector.forbidden)

    def note(self, old: CachedObject[str] | None, new: CachedObject[str] | None) -> None:
        held = new or old
        assert held is not None
        self.changes.append((held.name, old.value if old else None, new.value if new else None))

    @property
    def names(self) -> list[str]:
        return sorted(held.name for held in self.reflector.cache)


@pytest.mark.parametrize(
    ("label", "field", "what"),
    [
        ("", "", "watching pods"),
        ("job", "", "watching pods"),
        ("", "spec.nodeName!=", "watching pods with spec.nodeName!="),
        ("!job", "spec.nodeName!=", "watching pods with !job and spec.nodeName!="),
    ],
)
def test_messages_name_the_selectors_of_a_watch_with_a_field_selector(label: str, field: str, what: str) -> None:
    api: Any = ScriptedApi()
    reflector: Reflector[Obj] = Reflector(
        api, WatchedResource(PODS, lambda obj, _: obj, label_selector=label, field_selector=field), rng=lambda: 0.0
    )
    assert reflector.what == what


def follow[F: Followed](it: F, check: Callable[[F], object], within: float = 60) -> F:
    """Run until `check` holds."""

    async def scenario() -> F:
        task = asyncio.create_task(it.reflector.run())
        try:
            await until(lambda: task.done() or check(it), within=within)
            if task.done():
                task.result()
            it.took = asyncio.get_running_loop().time()
            return it
        finally:
            task.cancel()

    return run_virtual(scenario())


def pages(*names: str, version: int = 10) -> list[ObjList | Exception]:
    return [ObjList([an_object(name, 5, phase="Pending") for name in names], str(version))]


def test_all_pages_are_listed_before_it_is_synced() -> None:
    first = ObjList([an_object("a", 1)], "10", continue_token="more")
    second = ObjList([an_object("b", 2)], "10")
    api = ScriptedApi(lists=[first, second])
    follow(Followed(api), lambda it: it.reflector.synced and it.names == ["a", "b"])
    assert api.list_tokens == ["", "more"]
    assert api.watched_from[0] == "10"


def test_handlers_see_what_was_and_what_is() -> None:
    api = ScriptedApi(
        lists=pages("a"),
        watches=[[modified(an_object("a", 11, phase="Running")), added(an_object("b", 12, phase="Pending")), deleted(an_object("a", 13))]],
    )
    it = follow(Followed(api), lambda it: len(it.changes) == 4)
    assert it.changes == [("a", None, "Pending"), ("a", "Pending", "Running"), ("b", None, "Pending"), ("a", "", None)]


def test_the_projection_is_held_and_found_by_index_until_it_changes_or_goes() -> None:
    api = ScriptedApi(
        lists=pages("a", "b", "c"), watches=[[modified(an_object("b", 11, phase="Running")), deleted(an_object("c", 12)), SILENCE]]
    )

    def moved(it: Followed) -> bool:
        found = [[held.name for held in it.reflector.cache.by_index("phase", phase)] for phase in ("Running", "Pending")]
        return found == [["b"], ["a"]] and it.names == ["a", "b"]

    follow(Followed(api), moved)


def test_a_watch_goes_on_after_the_last_bookmark() -> None:
    api = ScriptedApi(lists=pages("a"), watches=[[bookmark(40)], [SILENCE]])
    follow(Followed(api), lambda it: len(api.watched_from) == 2)
    assert api.watched_from == ["10", "40"]


@pytest.mark.slow
def test_a_silent_watch_is_dropped_and_resumed_where_it_was() -> None:
    api = ScriptedApi(lists=pages("a"), watches=[[bookmark(20), SILENCE], [SILENCE]])
    timeouts = WatchTimeouts(read=90)
    it = follow(Followed(api, timeouts), lambda it: len(api.watched_from) == 2, within=200)
    assert api.watched_from == ["10", "20"]
    assert it.took >= 90


def test_after_a_forgotten_version_it_lists_again_and_reports_missed_deletions() -> None:
    api = ScriptedApi(lists=[*pages("a", "b"), *pages("b", "c", version=30)], watches=[[GONE], [SILENCE]])
    it = follow(Followed(api), lambda it: it.names == ["b", "c"])
    # b has the same version in both lists: no change
    assert sorted(it.changes, key=str) == sorted(
        [("a", None, "Pending"), ("b", None, "Pending"), ("a", "Pending", None), ("c", None, "Pending")], key=str
    )
    assert api.watched_from == ["10", "30"]


def test_a_page_that_expired_starts_the_list_anew() -> None:
    first = ObjList([an_object("a", 1)], "10", continue_token="more")
    api = ScriptedApi(lists=[first, GONE, *pages("a", "b")])
    follow(Followed(api), lambda it: it.names == ["a", "b"])
    assert api.list_tokens == ["", "more", ""]


@pytest.mark.parametrize("error", [BUSY, AWAY], ids=["busy", "away"])
def test_a_watch_that_a_busy_server_or_the_connection_ends_goes_on_without_another_list(error: ApiError) -> None:
    api = ScriptedApi(lists=pages("a"), watches=[[added(an_object("b", 11)), error], [error], [added(an_object("c", 12)), SILENCE]])
    follow(Followed(api), lambda it: it.names == ["a", "b", "c"])
    assert api.list_tokens == [""]
    assert api.watched_from == ["10", "11", "11"]


@pytest.mark.parametrize(("draw", "part"), [(0.0, 1.0), (0.5, 0.75)], ids=["plain", "jitter"])
def test_a_server_that_is_away_is_asked_with_growing_delays_that_jitter_shortens(draw: float, part: float) -> None:
    api = ScriptedApi(lists=[AWAY, AWAY, AWAY, *pages("a")])
    it = follow(Followed(api, draw=draw), lambda it: it.reflector.synced)
    assert it.took == pytest.approx(part * (0.5 + 1 + 2), abs=0.02)


def test_a_version_that_the_server_rejects_for_another_reason_means_listing_again() -> None:
    ahead = ApiError(504, "Timeout", "Too large resource version: 10, current: 3")
    api = ScriptedApi(lists=[*pages("a"), *pages("b", version=3)], watches=[[ahead], [SILENCE]])
    follow(Followed(api), lambda it: it.names == ["b"])


def test_watches_that_end_at_once_are_not_repeated_in_a_tight_loop() -> None:
    api = ScriptedApi(lists=pages("a"), watches=[[], [], [], [SILENCE]])
    it = follow(Followed(api), lambda it: len(api.watched_from) == 4)
    assert it.took == pytest.approx(0.5 + 1 + 2, abs=0.02)


@pytest.mark.slow
def test_an_idle_watch_that_the_server_ends_is_resumed_at_once() -> None:
    api = ScriptedApi(lists=pages("a"), watches=[[60.0], [60.0], [SILENCE]])
    it = follow(Followed(api), lambda it: len(api.watched_from) == 3, within=200)
    assert it.took == pytest.approx(120, abs=0.1)


def test_it_is_known_since_when_a_server_does_not_answer_until_it_does() -> None:
    away: list[object] = [Unavailable(503, "ServiceUnavailable", "no connection")]
    api = ScriptedApi(lists=pages("a"), watches=[[5.0, *away], away, [20.0, bookmark(20), SILENCE]])
    times: list[float | None] = []

    def answers_again(it: Followed) -> bool:
        if times[-1:] != [it.reflector.unanswered_since]:
            times.append(it.reflector.unanswered_since)
        return len(times) == 3

    follow(Followed(api), answers_again)
    assert times == [None, pytest.approx(5, abs=0.02), None]


def test_a_failing_handler_costs_only_the_object_that_it_failed_for() -> None:
    class Fussy(Followed):
        def note(self, old: CachedObject[str] | None, new: CachedObject[str] | None) -> None:
            super().note(old, new)
            if new is not None and new.name == "a":
                raise KeyError("a defect")

    api = ScriptedApi(lists=pages("a", "b"), watches=[[modified(an_object("b", 11, phase="Running")), SILENCE]])
    follow(Fussy(api), lambda it: it.names == ["b"] and it.changes[-1] == ("b", "Pending", "Running"))


class Strict(Followed):
    """Its projection accepts only objects with a phase."""

    def __init__(self, api: ScriptedApi) -> None:
        super().__init__(api)
        self.malformed = MalformedObjects()
        self.reflector: Reflector[str] = Reflector(
            api,  # type: ignore[arg-type]
            WatchedResource(PODS, lambda obj, _: needed_string(obj, "phase")),
            rng=lambda: 0.0,
            malformed=self.malformed,
        )
        self.reflector.on_change(self.note)

    @property
    def left_out(self) -> list[str]:
        return [found.name for found in self.malformed]


def test_a_malformed_object_of_a_list_is_left_out_until_it_is_mended() -> None:
    listed = ObjList([an_object("a", 5), an_object("b", 5, phase="Pending")], "10")
    api = ScriptedApi(lists=[listed], watches=[[0.1, modified(an_object("a", 11, phase="Running")), SILENCE]])
    seen: list[tuple[list[str], list[str]]] = []

    def mended(it: Strict) -> bool:
        if it.reflector.synced:
            seen.append((it.names, it.left_out))
        return bool(seen) and seen[-1] == (["a", "b"], [])

    follow(Strict(api), mended)
    assert seen[0] == (["b"], ["a"])


def test_an_object_that_becomes_malformed_counts_as_gone() -> None:
    api = ScriptedApi(lists=pages("a"), watches=[[modified(an_object("a", 11, phase=5)), SILENCE]])
    it = follow(Strict(api), lambda it: it.left_out == ["a"] and it.names == [])
    assert it.changes == [("a", None, "Pending"), ("a", "Pending", None)]


def test_a_malformed_object_that_is_deleted_is_forgotten() -> None:
    api = ScriptedApi(lists=[ObjList([an_object("a", 5)], "10")], watches=[[0.1, deleted(an_object("a", 11)), SILENCE]])
    seen: list[list[str]] = []

    def forgotten(it: Strict) -> bool:
        seen.extend([it.left_out] if it.reflector.synced else [])
        return bool(seen) and seen[-1] == []

    follow(Strict(api), forgotten)
    assert seen[0] == ["a"]
    api = ScriptedApi(lists=[ObjList([an_object("a", 5)], "10"), ObjList([], "30")], watches=[[0.1, GONE], [SILENCE]])
    follow(Strict(api), lambda it: len(api.watched_from) == 2 and it.left_out == [])


@pytest.mark.parametrize("obj", ["text", 5, None, [], {}, {"metadata": []}, {"metadata": {"name": 5}}, {"metadata": {"name": "a\nb"}}])
def test_whatever_a_server_sends_the_reflector_goes_on(obj: Any) -> None:
    api = ScriptedApi(lists=[ObjList([obj], "10")], watches=[[modified(obj), deleted(obj), added(an_object("b", 12, phase="x")), SILENCE]])
    follow(Strict(api), lambda it: it.names == ["b"])


def test_a_list_of_one_namespace_leaves_the_objects_of_others() -> None:
    """Several reflectors fill one cache, each from its own namespace."""

    def in_namespace(namespace: str, name: str, version: int) -> Obj:
        obj = an_object(name, version, phase="x")
        return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}

    async def scenario() -> None:
        cache: Cache[str] = Cache()
        malformed = MalformedObjects()

        def reflector(namespace: str, api: ScriptedApi) -> Reflector[str]:
            return Reflector(
                api,  # type: ignore[arg-type]
                WatchedResource(PODS, lambda obj, _: needed_string(obj, "phase"), namespace=namespace),
                rng=lambda: 0.0,
                cache=cache,
                malformed=malformed,
            )

        bad = in_namespace("one", "bad", 5) | {"phase": 5}
        one = reflector("one", ScriptedApi(lists=[ObjList([in_namespace("one", "a", 5), bad], "10")]))
        lists: list[ObjList | Exception] = [ObjList([in_namespace("two", "b", 5)], "10"), ObjList([in_namespace("two", "c", 6)], "30")]
        two = reflector("two", ScriptedApi(lists=lists, watches=[[1.0, GONE], [SILENCE]]))
        tasks = [asyncio.create_task(each.run()) for each in (one, two)]
        await until(lambda: {held.key for held in cache} == {("one", "a"), ("two", "b")})
        await until(lambda: ("two", "c") in {held.key for held in cache})
        assert {held.key for held in cache} == {("one", "a"), ("two", "c")}
        assert [found.key for found in malformed] == [("one", "bad")]
        for task in tasks:
            task.cancel()

    run_virtual(scenario())


def test_a_server_that_forbids_to_list_is_asked_again_and_named_meanwhile() -> None:
    api = ScriptedApi(lists=[FORBIDDEN, FORBIDDEN, *pages("a")])
    it = follow(Followed(api), lambda it: it.reflector.synced and not it.reflector.forbidden)
    assert it.forbidden == [FORBIDDEN.message, ""]


def test_a_right_that_is_taken_away_leaves_the_cache_as_it_was() -> None:
    api = ScriptedApi(lists=[*pages("a"), FORBIDDEN, FORBIDDEN], watches=[[FORBIDDEN]])
    follow(Followed(api), lambda it: it.reflector.forbidden and it.names == ["a"])


def test_everything_can_be_listed_and_projected_again_without_waiting_for_the_watch() -> None:
    """With the same versions on the server; handlers learn of what the projection makes of them now."""
    phases = iter(["Pending", "Running"])
    api = ScriptedApi(lists=[*pages("a"), *pages("a")], watches=[[SILENCE], [SILENCE]])
    followed = Followed(api)
    followed.reflector = Reflector(api, WatchedResource(PODS, lambda obj, _: next(phases)), rng=lambda: 0.0)  # type: ignore[arg-type]
    followed.reflector.on_change(followed.note)
    asked: list[Followed] = []

    def again(it: Followed) -> bool:
        if it.reflector.synced and not asked:
            asked.append(it)
            it.reflector.list_again()
        return len(it.changes) == 2

    assert follow(followed, again).took < 1
    assert followed.changes == [("a", None, "Pending"), ("a", "Pending", "Running")]


def test_a_list_that_was_asked_for_again_and_failed_is_asked_for_until_it_comes() -> None:
    api = ScriptedApi(lists=[*pages("a"), AWAY, BUSY, *pages("a", "b", version=30)], watches=[[SILENCE]])
    asked: list[Followed] = []

    def again(it: Followed) -> bool:
        if it.reflector.synced and not asked:
            asked.append(it)
            it.reflector.list_again()
        return it.names == ["a", "b"]

    follow(Followed(api), again)


def test_what_one_namespace_changes_does_not_hold_up_what_another_one_does() -> None:
    crowd = [added(an_object(f"crowd-{number}", number, phase="Pending")) for number in range(20, 520)]
    mine = an_object("mine", 520, phase="Running")
    mine["metadata"]["namespace"] = "quiet"
    followed = Followed(ScriptedApi(pages(), [[*crowd, added(mine)]]))
    follow(followed, lambda it: len(it.changes) == 501)
    # A turn of the loop reads 100 and applies 20, so the sixth reads it: then 5 x 20 are applied, and at most 20 in the same turn.
    assert [name for name, _, _ in followed.changes].index("mine") <= 140
    assert [name for name, _, _ in followed.changes if name != "mine"] == [f"crowd-{number}" for number in range(20, 520)]


def test_what_a_watch_said_before_a_list_is_not_applied_after_it() -> None:
    crowd = [added(an_object(f"crowd-{number}", number, phase="Pending")) for number in range(20, 520)]
    followed = Followed(ScriptedApi([*pages(), *pages("b", version=600)], [[*crowd, GONE]]))
    follow(followed, lambda it: it.names == ["b"])
    assert followed.names == ["b"]


def test_timeouts_in_the_wrong_order_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"a watch: read \(400 s\) must be shorter than watch \(300 s\)"):
        WatchTimeouts(read=400, watch=300)


def test_optional_resource_that_the_server_does_not_know_is_followed_once_its_definition_comes() -> None:
    api = ScriptedApi(lists=[UNKNOWN, UNKNOWN, *pages("a")])
    it = follow(Followed(api, without="no one is told"), lambda it: it.names == ["a"])
    assert it.missing == [(True, "the API server has no pods in v1"), (True, "")]  # said once, although it was asked twice


def test_optional_resource_whose_definition_goes_is_empty_and_comes_again() -> None:
    api = ScriptedApi(lists=[*pages("a", "b"), *[UNKNOWN] * 7, *pages("b", version=30)], watches=[[UNKNOWN]])
    it = follow(Followed(api, without="no one is told"), lambda it: [said for _, said in it.missing[1:]] == [""], within=120)
    assert it.changes[2:] == [("a", "Pending", None), ("b", "Pending", None), ("b", None, "Pending")]


@pytest.mark.parametrize("answer", [UNKNOWN, FORBIDDEN])
def test_what_an_optional_reflector_knows_stays_while_a_server_has_just_started(answer: ApiError) -> None:
    """It may know neither roles nor custom resources yet."""
    api = ScriptedApi(lists=[*pages("a"), answer, *pages("a", "b", version=30)], watches=[[answer]])
    it = follow(Followed(api, without="no one is told"), lambda it: it.names == ["a", "b"])
    assert it.changes == [("a", None, "Pending"), ("b", None, "Pending")]
    assert it.missing == []


def test_resource_that_is_needed_and_unknown_is_never_taken_for_empty() -> None:
    api = ScriptedApi(lists=[UNKNOWN, UNKNOWN, UNKNOWN, *pages("a")])
    synced: list[bool] = []

    def check(it: Followed) -> bool:
        synced.append(it.reflector.synced)
        return it.names == ["a"]

    follow(Followed(api), check)
    assert synced.index(True) == len(synced) - 1


def test_what_a_server_answers_instead_of_a_list_is_named_until_it_lists() -> None:
    api = ScriptedApi(lists=[*pages("a"), UNKNOWN, AWAY, UNKNOWN, *pages("b", version=30)], watches=[[UNKNOWN]])

    def check(it: Followed) -> bool:
        if it.reflector.failing:
            assert it.names == ["a"]
        return it.names == ["b"]

    assert follow(Followed(api), check).failing == [str(UNKNOWN), ""]


@pytest.mark.parametrize("error", [AWAY, GONE, ApiError(429, "TooManyRequests", "busy")])
def test_a_server_that_is_away_busy_or_forgetful_is_not_failing(error: ApiError) -> None:
    api = ScriptedApi(lists=[error, *pages("a")])
    assert follow(Followed(api), lambda it: it.names == ["a"]).failing == []
