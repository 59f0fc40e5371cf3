"""What waits for a link, and what goes next."""

from functools import partial

from diloco.simulation.queues import Answer, Answers, Broadcasts

DELTA, WHOLE = 1.0, 4.0


class Sent:
    """What one unit is sent, and what it has heard of."""

    def __init__(self) -> None:
        self.queue = Broadcasts(DELTA, WHOLE)
        self.heard: list[str] = []

    def add(self, fragment: int, t: int) -> None:
        self.queue.add(fragment, t, partial(self.heard.append, f"{fragment} at {t}"))

    def next(self) -> tuple[int, float]:
        """Send what is next to its end; return its fragment and its bits."""
        version = self.queue.choose()
        version.begun()
        version.arrived()
        self.queue.under_way = None
        return version.fragment, version.bits


def test_deltas_of_a_fragment_wait_up_to_the_size_of_its_whole_value() -> None:
    sent = Sent()
    for t in (1, 2, 3, 4):
        sent.add(0, t)
    assert [sent.next() for _ in range(4)] == [(0, DELTA)] * 4
    assert not sent.queue
    for t in (5, 6, 7, 8, 9):
        sent.add(0, t)
    assert sent.next() == (0, WHOLE)
    assert not sent.queue
    assert sent.heard == ["0 at 1", "0 at 2", "0 at 3", "0 at 4", "0 at 9"]


def test_fragments_one_delta_behind_and_others_have_half_of_the_bits_each() -> None:
    sent = Sent()
    for fragment in (10, 11):
        sent.queue.add_whole(fragment, lambda: None, lambda: None)
    for fragment in range(6):
        sent.add(fragment, 1)
    # The first delta, then a whole value of four bits, then deltas until they have had as much.
    assert [sent.next()[0] for _ in range(8)] == [0, 10, 1, 2, 3, 4, 11, 5]


def test_a_unit_that_joins_gets_the_newest_value_of_a_fragment_and_hears_of_its_version_first() -> None:
    sent = Sent()
    sent.queue.add_whole(0, lambda: sent.heard.append("begun"), lambda: sent.heard.append("all there"))
    sent.add(0, 7)
    sent.add(0, 8)
    assert sent.next() == (0, WHOLE)
    assert sent.heard == ["begun", "0 at 8", "0 at 7", "all there"]


def test_a_pull_is_released_with_the_last_version_of_its_fragment_and_dropped_by_a_merge() -> None:
    sent = Sent()
    sent.add(0, 1)
    sent.queue.hold(0, 2, 2, lambda: sent.heard.append("pull"))
    assert sent.queue.released(0) is None
    sent.next()
    assert sent.queue.released(0) is not None
    sent.add(0, 3)
    sent.queue.hold(0, 4, 2, lambda: None)
    sent.add(0, 4)
    sent.next()
    sent.next()
    assert sent.queue.released(0) is None
    sent.add(1, 5)
    sent.queue.hold(1, 6, 2, lambda: None)
    sent.add(2, 5)
    sent.queue.hold(2, 9, 2, lambda: None)
    sent.next()
    assert sent.queue.released(1) is None, "the exchange of step 6 is over at step 9"


class Given:
    """What one unit answers, with tau = 2, at a time of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answers = Answers(2, lambda: self.now)

    def add(self, *steps: int) -> None:
        for t in steps:
            self.answers.add(Answer(t, t % 24, lambda: None))

    def choose(self) -> int | None:
        answer = self.answers.choose()
        return None if answer is None else answer.t


def test_the_newest_answer_goes_first_and_at_most_tau_wait_beside_it() -> None:
    given = Given()
    given.add(1)
    assert given.choose() == 1
    given.add(2, 3, 4)
    given.answers.under_way = None
    assert [given.choose(), given.choose(), given.choose()] == [4, 3, None]


def test_answers_are_over_when_their_fragment_is_merged_or_tau_steps_have_passed() -> None:
    given = Given()
    given.add(5)
    assert given.choose() == 5
    given.add(6, 7)
    assert not given.answers.at_step(7)
    assert given.answers.at_step(8), "what is under way is over"
    assert not given.answers.merged(6, 6)
    assert [given.choose(), given.choose()] == [7, None]


def test_an_answer_that_would_come_too_late_is_left_for_the_next_one() -> None:
    given = Given()
    # Each takes 2.5 s, and its exchange is over 3 s after it was ready: one that has waited for 1 s would be late.
    for t in range(1, 7):
        given.now = 10.0 * t
        given.add(t)
        answer = given.answers.choose()
        assert answer is not None
        given.now += 2.5
        given.answers.took(answer)
        given.answers.under_way = None
        given.now += 0.5
        given.answers.at_step(t + 3)
    given.add(7)
    given.now += 1.0
    assert given.choose() is None
    assert not given.answers
