import threading
import time

from diloco.learner.inbox import Finished, Inbox, Leased


def test_events_come_out_in_order_and_once() -> None:
    inbox = Inbox()
    inbox.put(Leased(0, 4))
    inbox.put(Finished(3))
    assert inbox.drain() == [Leased(0, 4), Finished(3)]
    assert inbox.drain() == []


def test_waiting_ends_with_the_next_event_and_not_before_the_time_without_one() -> None:
    inbox = Inbox()
    began = time.monotonic()
    inbox.wait(0.05)
    assert time.monotonic() - began >= 0.05
    threading.Timer(0.05, inbox.put, [Finished(3)]).start()
    began = time.monotonic()
    inbox.wait(60)
    assert time.monotonic() - began < 30
    # An event that is there already is not waited for.
    inbox.wait(60)
    assert time.monotonic() - began < 30
