from diloco_operator.operator.job_context import StatusPostponement


def test_a_status_is_postponed_for_a_limited_time() -> None:
    postponement = StatusPostponement(2.0)
    assert [postponement.postpone(now) for now in (10.0, 11.0, 11.9, 12.0, 50.0)] == [True, True, True, False, False]


def test_postponement_begins_anew_once_the_status_is_written() -> None:
    postponement = StatusPostponement(2.0)
    postponement.reset()  # never put off
    postponement.postpone(10.0)
    postponement.reset()
    assert postponement.postpone(12.5)
