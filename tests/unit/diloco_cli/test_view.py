"""What `diloco up` shows, from objects as the API has them."""

import io
import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from builders.cluster_scenes import NOW, SINCE, unit
from builders.job_views import a_view, described
from diloco_cli.diloco.view import JsonView, PlainView
from diloco_cli.screen import Screen, live_units, summary
from diloco_cli.view_model import (
    JobView,
    Line,
    changes,
    event_line,
    failed_attempts,
    remember,
    repeats_status,
    seconds_left,
    with_speeds,
)
from diloco_cli.view_text import count, duration
from diloco_operator.api.losses import format_losses
from rich.console import Console, RenderableType

view = partial(a_view, steps=400)


def texts(lines: Iterable[Line]) -> list[str]:
    return [line.text for line in lines]


def rendered(renderable: RenderableType, width: int = 160, height: int = 25) -> str:
    shown = io.StringIO()
    console = Console(file=shown, width=width, height=height, color_system=None)
    console.print(renderable)
    return shown.getvalue()


def test_job_without_a_status_yet_is_shown_too() -> None:
    obj = {"metadata": {"name": "j", "namespace": "n"}, "spec": {}}
    fresh = JobView.of(obj)
    assert not fresh.over
    assert changes(None, fresh) == []
    assert "not started" in rendered(Screen([fresh], [], NOW, "footer"))


def test_conditions_are_told_when_they_change_and_not_for_how_every_job_begins() -> None:
    first = view(Accepted="True", Placed="False", Degraded="False", Complete="False", Failed="False", Suspended="False")
    assert texts(changes(None, first)) == ["Accepted=True AcceptedReason: about Accepted", "Placed=False PlacedReason: about Placed"]
    assert changes(first, first) == []
    degraded = view(Accepted="True", Placed="False", Degraded="True", Complete="False", Failed="False", Suspended="False")
    (line,) = changes(first, degraded)
    assert line.warning
    (line,) = changes(degraded, first)
    assert not line.warning


def test_line_on_a_missing_quorum_names_the_learners_that_are_missing() -> None:
    learners = "0 of 4 learners contribute, learners.min is 2; v5p-0 is joining (it compiles)"
    training = "0 of 4 learners contribute, training.quorum is 1: outer steps wait; see Degraded"

    def waiting(degraded: str) -> JobView:
        met = {"Accepted": ("True", "", ""), "Placed": ("True", "", "")}
        missing = {"Training": ("False", "QuorumMissing", training), "Degraded": (degraded, "LearnersStarting", learners)}
        return described("Starting", "QuorumMissing", **met, **missing)

    told = f"Training=False QuorumMissing: {learners}"
    assert texts(changes(None, waiting("Unknown")))[2:] == [told], "LearnersStarting belongs to every start and has no line of its own"
    assert waiting("Unknown").missing_condition() == told
    assert waiting("False").missing_condition() == f"Training=False QuorumMissing: {training}"


def test_suspension_is_told_once_and_without_a_field_to_set() -> None:
    told = ("True", "Suspended", "nothing runs, the state is kept")
    stopped = described("Suspended", "Suspended", Suspended=told, Training=("False", "Suspended", "set spec.suspend to false"))
    assert texts(changes(view(), stopped)) == ["Suspended=True Suspended: nothing runs, the state is kept"]


def test_unit_that_fails_and_recovers_is_followed() -> None:
    training = view(unit(slice="np-1", attempt=1))
    ended = view(unit(state="BackingOff", slice="np-1", attempt=1, reason="Crashed", message="exit 137", endedAt=SINCE))
    again = view(unit(slice="np-2", attempt=2, recoverSeconds=3.25))
    (line,) = changes(training, ended)
    assert line == Line("unit", "bytes-lm", "v5p-0 BackingOff on np-1, attempt 1 (was Training): Crashed: exit 137", True, "v5p-0")
    assert texts(changes(ended, again)) == ["v5p-0 Training on np-2, attempt 2 (was BackingOff), recovered in 3.2 s"]
    assert texts(changes(again, view())) == ["v5p-0 is no longer desired"]


def test_progress_is_told_in_twentieths_and_at_the_end() -> None:
    steps = [0, 5, 19, 20, 21, 39, 45, 399, 400]
    shown = [
        new
        for old, new in itertools.pairwise(steps)
        if changes(view(step=old, progress={"loss": 2.5}), view(step=new, progress={"loss": 2.5}))
    ]
    assert shown == [20, 45, 399, 400]  # 400 / 20 = one line every 20 steps
    (line,) = changes(view(step=19), view(step=20, progress={"loss": 2.5, "tokensPerSecond": 51200.4, "tokens": 40960}))
    assert line.text == "step 20/400, loss 2.500, 51,200 tokens/s, 40,960 tokens"


def test_pool_says_why_it_has_not_more_unless_it_has_all() -> None:
    pool = {"name": "v5p", "placed": 0, "contributing": 0, "message": "m"}
    assert texts(changes(None, view(pools=[{**pool, "reason": "NoFreeSlice"}]))) == ["pool v5p NoFreeSlice: m"]
    assert changes(None, view(pools=[{**pool, "reason": "AtMaximum"}])) == []


def test_logs_are_wanted_of_attempts_that_ended_badly_just_now() -> None:
    before = view(unit(attempt=1))
    after = view(unit(state="BackingOff", attempt=1, endedAttempt=1))
    assert [pod for _, pod in failed_attempts(before, after)] == ["bytes-lm-v5p-0-a1-0"]
    assert failed_attempts(after, after) == []
    assert failed_attempts(before, view(unit(state="Completed", attempt=1, endedAttempt=1))) == []
    assert failed_attempts(before, view(unit(state="Pending", attempt=1, endedAttempt=1), suspend=True)) == []


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({}, "Accepted is not known yet"),
        ({"Accepted": "True", "Placed": "False"}, "Placed=False PlacedReason: about Placed"),
        ({"Accepted": "True", "Placed": "True", "Training": "True", "Complete": "False"}, "Complete=False CompleteReason: about Complete"),
    ],
)
def test_first_condition_on_the_way_that_does_not_hold_is_why_a_job_is_late(status: dict[str, Any], why: str) -> None:
    assert view(**status).missing_condition() == why


def test_a_job_that_only_lacks_time_says_how_far_it_is() -> None:
    late = view(step=176, steps=700, Accepted="True", Placed="True", Training="True", Complete="False")
    *others, complete = late.status.conditions
    found = (*others, complete.model_copy(update={"message": ""}))
    late = replace(late, status=late.status.model_copy(update={"conditions": found}))
    assert late.missing_condition() == "Complete=False CompleteReason: it trains, and is at outer step 176 of 700"


def test_speed_at_the_end_is_that_of_the_last_training() -> None:
    speeds = remember({}, view(unit(tokensPerSecond=500.0, weight=0.3), step=10))
    speeds = remember(speeds, view(unit(tokensPerSecond=3.0, weight=0.4), step=400))  # after the last step
    ended = with_speeds(view(unit(state="Completed", tokensPerSecond=0.0, weight=0.4), unit("v6e-0", "Completed"), step=400), speeds)
    assert [(u.tokens_per_second, u.weight) for u in ended.status.units] == [(500.0, 0.4), (0.0, 0.0)]


def test_events_about_units_and_conditions_are_said_once() -> None:
    def event(reason: str, message: str) -> Line:
        return event_line({"reason": reason, "message": message, "type": "Normal", "involvedObject": {"name": "j"}})

    assert repeats_status(event("UnitStarted", "v5p-0: attempt 1 starts"))
    assert repeats_status(event("QuorumContributing", "Training=True: 1 of 4"))
    assert repeats_status(event("PoolChanged", "NoFreeSlice: pool v5p needs 1 more slice"))
    assert not repeats_status(event("SnapshotFailed", "the volume is full"))


def test_time_left_is_not_known_before_there_is_a_speed_nor_after_the_end() -> None:
    assert seconds_left(view(), NOW) is None
    known = {"estimatedCompletion": "2026-11-20T21:03:20Z"}
    assert seconds_left(view(progress=known), NOW) == 140.0
    assert seconds_left(view(progress=known, Complete="True"), NOW) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (200, "3m20s"), (3900, "1h05m"), (183600, "2d03h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (812, "812"), (1500, "1.50k"), (41574, "41.6k"), (415740, "416k"), (1.31e6, "1.31M"), (7e16, "70000T")]
)
def test_counts(number: float, text: str) -> None:
    assert count(number) == text


def test_screen_shows_where_the_job_is_and_how_each_unit_fares() -> None:
    units = [
        unit(slice="np-1", attempt=1, tokensPerSecond=14100, weight=0.31, staleness=3),
        unit("h100-0", "Pending", attempt=1, weight=0.69),
        unit("h100-1", "BackingOff", attempt=2, restarts=1, reason="Crashed", message="exit 1"),
    ]
    progress = {"loss": 2.31, "tokensPerSecond": 51200, "estimatedCompletion": "2026-11-20T21:03:20Z"}
    text = rendered(Screen([view(*units, step=100, progress=progress, Training="True")], [], NOW, "Ctrl-C drains"))
    assert "step 100/400" in text
    assert "loss 2.310  51.2k tokens/s  2m20s left" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["v5p-0", "Training", "1m00s", "np-1", "1", "0", "14.1k", "31%", "3"] in rows
    assert ["h100-0", "Pending", "1m00s", "-", "1", "0", "-", "69%", "-"] in rows, "it has left, and recent merges hold its work"
    assert ["h100-1", "BackingOff", "1m00s", "-", "2", "1", "-", "-", "-", "Crashed:", "exit", "1"] in rows
    assert "Ctrl-C drains" in text


def test_screen_shows_the_parts_of_a_job_and_their_units() -> None:
    far = {"name": "far-0", "state": "Contributing", "since": "2026-11-20T21:00:00Z", "attempt": 1, "tokens": 5000}
    part = {"name": "tokyo", "state": "Training", "units": [far], "contributing": 1, "tokens": 5000, "weight": 0.4, "mergeShare": 0.97}
    rows = [line.split() for line in rendered(Screen([view(step=100, Training="True", parts=[part])], [], NOW, "drains")).splitlines()]
    assert ["tokyo", "Training", "1/1", "0", "40%", "97%", "5.00k", "-"] in rows
    assert ["far-0", "tokyo", "Contributing", "1m00s", "1", "5.00k"] in rows


LONG = "attempt 3 ended: exit 1: CUDA error: device-side assert triggered; the next one starts at 2026-11-20T21:01:30Z, after its pause"


@pytest.mark.parametrize("width", [80, 110, 160])
def test_screen_shows_every_word_on_a_terminal_of_any_width(width: int) -> None:
    units = [unit(slice="np-1", attempt=1), unit("h100-1", "BackingOff", attempt=3, restarts=3, reason="Crashed", message=LONG)]
    line = Line("unit", "bytes-lm", f"h100-1 BackingOff on np-2, attempt 3 (was Joining): Crashed: {LONG}", warning=True)
    text = rendered(Screen([view(*units, step=100, Training="True")], [(datetime.fromtimestamp(NOW, UTC), line)], NOW, "drains"), width)
    words = " ".join(text.split())
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for message in (f"Crashed: {LONG}", line.text):
        assert not set(message.split()) - set(words.split())
    assert text.splitlines()[-1] == "drains"


def test_screen_keeps_the_newest_lines_that_it_has_room_for() -> None:
    told = [(datetime.fromtimestamp(NOW + at, UTC), Line("event", "bytes-lm", f"line {at} {'word ' * 30}")) for at in range(10)]
    text = rendered(Screen([view(step=100, Training="True")], told, NOW, "drains"), width=80, height=14)
    # Two lines of the job, one of the header of its table, a free one and the last: 9 of 14 are left, and each of these takes three.
    assert [at for at in range(10) if f"line {at} " in text] == [7, 8, 9]
    assert len(text.splitlines()) == 14


def test_summary_has_the_state_losses_and_a_row_for_each_unit() -> None:
    units = [unit(state="Completed", tokens=270336, tokensPerSecond=2878.7, weight=0.195, restarts=1, recoverSeconds=2.5)]
    progress = {"tokens": 270336, "loss": 2.7049, "heldOutLoss": 2.6739}
    text = rendered(summary(view(*units, step=400, progress=progress, Complete="True")))
    assert "bytes-lm  Complete: about Complete" in text
    assert "held-out loss 2.6739" in text
    assert ["v5p-0", "Completed", "270,336", "2,879", "19.5%", "1", "2.5", "s"] in [line.split() for line in text.splitlines()]


LOSSES = format_losses((step, 1 + 4 / step) for step in range(1, 401, 40))


def test_plain_output_ends_with_the_loss_curve(capsys: pytest.CaptureFixture[str]) -> None:
    PlainView().end([view(unit(), step=400, progress={"losses": LOSSES}, Complete="True")], {}, ["done"])
    shown = capsys.readouterr().out
    assert shown.index("UNIT") < shown.index("loss by outer step: 1.011 at step 361\n5.00 ") < shown.index("done")


def test_json_output_has_the_names_of_the_api_and_the_loss_history_in_its_result_alone(capsys: pytest.CaptureFixture[str]) -> None:
    views = [view(unit(recoverSeconds=2.5), step=400, progress={"losses": LOSSES}, Complete="True")]
    output = JsonView()
    output.jobs(views)
    output.end(views, {}, [])
    status, ended = map(json.loads, capsys.readouterr().out.splitlines())
    assert "losses" not in status["progress"]
    assert status["progress"]["step"] == 400
    (job,) = ended["jobs"]
    assert (job["progress"]["losses"], job["progress"]["step"]) == (LOSSES, 400)
    assert job["conditions"][0]["type"] == "Complete"
    assert job["units"][0]["recoverSeconds"] == 2.5


def test_a_unit_has_the_style_of_what_its_hardware_does() -> None:
    """Two units that status shows as Joining: one still copies the parameters, the other compiles."""
    units = [
        unit("v5p-0", "Joining", reason="TakingParameters", slice="np-0"),
        unit("v5p-1", "Joining", reason="FirstStep", slice="np-1"),
    ]
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=160)
    with console.capture() as shown:
        console.print(live_units(view(*units).status.units, 0.0, 160))
    copying, compiling = (line for line in shown.get().splitlines() if "v5p-" in line)
    assert "\x1b[33mJoining" in copying  # yellow
    assert "\x1b[35mJoining" in compiling  # magenta
